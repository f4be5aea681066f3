// The log callback and text for messages.
#include "base/log.h"

#include <atomic>
#include <thread>

#include "base/text.h"
#include "test.h"

using namespace powerinfer;

TEST(messages_reach_the_callback_and_nobody_else) {
  std::vector<std::pair<LogLevel, std::string>> seen;
  base::log(LogLevel::kInfo, "to nobody");
  set_log_callback([&](LogLevel level, std::string_view message) { seen.emplace_back(level, message); });
  base::log(LogLevel::kWarning, "one");
  base::log(LogLevel::kDebug, "two");
  set_log_callback({});
  base::log(LogLevel::kInfo, "to nobody again");
  CHECK_EQ(seen.size(), std::size_t{2});
  CHECK(seen[0] == std::pair(LogLevel::kWarning, std::string("one")));
  CHECK(seen[1] == std::pair(LogLevel::kDebug, std::string("two")));
}

TEST(a_callback_may_throw_log_or_replace_itself) {
  int calls = 0;
  set_log_callback([&](LogLevel, std::string_view) {
    ++calls;
    set_log_callback({});
    base::log(LogLevel::kInfo, "to nobody");
    throw std::runtime_error("broken receiver");
  });
  base::log(LogLevel::kInfo, "once");
  base::log(LogLevel::kInfo, "to nobody");
  CHECK_EQ(calls, 1);
}

TEST(threads_log_while_the_callback_changes) {
  std::atomic<int> calls = 0;
  std::vector<std::thread> threads;
  set_log_callback([&](LogLevel, std::string_view) { ++calls; });
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int n = 0; n < 500; ++n) base::log(LogLevel::kInfo, "x");
    });
  }
  for (int n = 0; n < 500; ++n) set_log_callback([&](LogLevel, std::string_view) { ++calls; });
  for (std::thread& thread : threads) thread.join();
  set_log_callback({});
  CHECK_EQ(calls.load(), 2000);
}

TEST(version_is_three_numbers) {
  int major = -1;
  int minor = -1;
  int patch = -1;
  CHECK_EQ(std::sscanf(version(), "%d.%d.%d", &major, &minor, &patch), 3);
  CHECK(major >= 0 && minor >= 0 && patch >= 0);
}

TEST(untrusted_bytes_become_plain_text) {
  CHECK_EQ(base::printable("blk.0.attn_q.weight"), std::string("blk.0.attn_q.weight"));
  CHECK_EQ(base::printable(std::string("a\0\n\\\xC3\xA9", 6)), std::string("a\\x00\\x0a\\x5c\\xc3\\xa9"));
  CHECK_EQ(base::printable("0123456789", 4), std::string("0123... (10 bytes)"));
  CHECK_EQ(base::printable("0123", 4), std::string("0123"));
}

TEST_MAIN()

// A test framework in one header. TEST(name) { ... } registers a case; TEST_MAIN() runs all, or those whose names
// contain argv[1]. Checks report and go on; the process exits with 1 if any failed.
#pragma once

#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace pi_test {

struct Case {
  const char* name;
  std::function<void()> run;
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
inline int& failures() {
  static int count = 0;
  return count;
}
inline bool add(const char* name, std::function<void()> run) {
  cases().push_back({name, std::move(run)});
  return true;
}
inline void fail(const char* file, int line, const std::string& what) {
  std::cerr << file << ":" << line << ": " << what << "\n";
  ++failures();
}

inline int run_all(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : "";
  int n_run = 0;
  for (const Case& test : cases()) {
    if (std::string(test.name).find(filter) == std::string::npos) continue;
    const int before = failures();
    try {
      test.run();
    } catch (const std::exception& error) {
      fail(test.name, 0, std::string("threw: ") + error.what());
    }
    std::cout << (failures() == before ? "ok     " : "FAILED ") << test.name << std::endl;
    ++n_run;
  }
  std::cout << n_run << " tests, " << failures() << " failed checks" << std::endl;
  return failures() == 0 && n_run > 0 ? 0 : 1;
}

}  // namespace pi_test

#define TEST(name)                                                   \
  static void test_##name();                                         \
  static const bool added_##name = pi_test::add(#name, test_##name); \
  static void test_##name()

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) pi_test::fail(__FILE__, __LINE__, "CHECK(" #condition ")"); \
  } while (0)

#define CHECK_EQ(a, b)                                               \
  do {                                                               \
    const auto va = (a);                                             \
    const auto vb = (b);                                             \
    if (!(va == vb)) {                                               \
      std::cerr << "  left: " << va << "  right: " << vb << "\n";    \
      pi_test::fail(__FILE__, __LINE__, "CHECK_EQ(" #a ", " #b ")"); \
    }                                                                \
  } while (0)

// The expression must throw exactly this type, with `part` in its message.
#define CHECK_THROWS(expression, Type, part)                                                               \
  do {                                                                                                     \
    bool thrown = false;                                                                                   \
    try {                                                                                                  \
      (void)(expression);                                                                                  \
    } catch (const Type& error) {                                                                          \
      thrown = true;                                                                                       \
      if (std::string(error.what()).find(part) == std::string::npos)                                       \
        pi_test::fail(__FILE__, __LINE__, std::string("message lacks '") + (part) + "': " + error.what()); \
    }                                                                                                      \
    if (!thrown) pi_test::fail(__FILE__, __LINE__, #expression " did not throw " #Type);                   \
  } while (0)

#define TEST_MAIN() \
  int main(int argc, char** argv) { return pi_test::run_all(argc, argv); }

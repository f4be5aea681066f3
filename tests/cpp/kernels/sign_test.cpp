// Sign scores on every instruction set against counting sign by sign.
#include <vector>

#include "kernels/random_rows.h"
#include "test.h"

using namespace powerinfer;
using namespace powerinfer::kernels;

TEST(sign_scores) {
  std::mt19937 random(5);
  for (const auto* table : pi_test::usable_tables()) {
    for (const std::size_t n_cols : {1U, 31U, 32U, 33U, 64U, 72U, 96U, 1000U, 4096U}) {
      constexpr std::size_t kRows = 5;
      const std::size_t n_words = (n_cols + 31) / 32;
      std::vector<std::uint32_t> words((kRows + 1) * n_words);  // the last row is the input
      for (std::size_t row = 0; row <= kRows; ++row) {
        for (std::size_t i = 0; i < n_cols; ++i) words[row * n_words + i / 32] |= (random() & 1U) << i % 32;
      }
      const std::uint32_t* input = words.data() + kRows * n_words;
      std::vector<float> scores(kRows);
      table->sign_scores(
          {reinterpret_cast<const std::uint8_t*>(words.data()), n_words * 4, kRows, n_cols, input, scores.data()});
      for (std::size_t row = 0; row < kRows; ++row) {
        int expected = 0;
        for (std::size_t i = 0; i < n_cols; ++i) {
          const auto bit = [i](const std::uint32_t* of) { return of[i / 32] >> i % 32 & 1U; };
          expected += bit(words.data() + row * n_words) == bit(input) ? 1 : -1;
        }
        CHECK_EQ(scores[row], static_cast<float>(expected));
      }
    }
  }
}

TEST_MAIN()

// The registry of types, block geometry, and exact (de)quantization.
#include "quant/dtype.h"

#include <cstring>
#include <limits>
#include <vector>

#include "base/half.h"
#include "powerinfer/error.h"
#include "quant/quantize.h"
#include "test.h"

using namespace powerinfer;
using namespace powerinfer::quant;

namespace {

constexpr std::uint16_t kHalfOne = 0x3C00;

std::vector<std::uint8_t> bytes_of_half(std::uint16_t half) {
  return {static_cast<std::uint8_t>(half), static_cast<std::uint8_t>(half >> 8)};
}

std::vector<float> dequantized(DType type, const std::vector<std::uint8_t>& block) {
  const auto& info = traits(type);
  CHECK_EQ(block.size(), info.block_bytes);
  std::vector<float> out(info.block_len);
  dequantize(type, block.data(), info.block_len, out.data());
  return out;
}

std::vector<std::uint8_t> quantized(DType type, const std::vector<float>& x, const float* importance = nullptr) {
  std::vector<std::uint8_t> blocks(dtype_row_bytes(type, x.size()));
  quantize(type, x.data(), x.size(), blocks.data(), importance);
  return blocks;
}

std::vector<float> dequantized_all(DType type, const std::vector<std::uint8_t>& blocks) {
  const auto& info = traits(type);
  std::vector<float> out(blocks.size() / info.block_bytes * info.block_len);
  dequantize(type, blocks.data(), out.size(), out.data());
  return out;
}

void append(std::vector<std::uint8_t>& to, const std::vector<std::uint8_t>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace

TEST(geometry_is_ggmls) {
  struct Row {
    DType type;
    const char* name;
    std::size_t block_len;
    std::size_t block_bytes;
    bool int8_input;
  };
  const Row rows[] = {{DType::kF32, "F32", 1, 4, false},      {DType::kF16, "F16", 1, 2, false},
                      {DType::kBF16, "BF16", 1, 2, false},    {DType::kQ4_0, "Q4_0", 32, 18, true},
                      {DType::kQ4_1, "Q4_1", 32, 20, true},   {DType::kQ5_0, "Q5_0", 32, 22, true},
                      {DType::kQ8_0, "Q8_0", 32, 34, true},   {DType::kQ4_K, "Q4_K", 256, 144, true},
                      {DType::kQ5_K, "Q5_K", 256, 176, true}, {DType::kQ6_K, "Q6_K", 256, 210, true},
                      {DType::kI32, "I32", 1, 4, false}};
  CHECK_EQ(std::size(rows), kNumDTypes);
  std::vector<bool> seen(kNumDTypes);
  for (const Row& row : rows) {
    const auto& info = traits(row.type);
    CHECK(info.type == row.type);
    CHECK_EQ(std::string(info.name), row.name);
    CHECK_EQ(std::string(dtype_name(row.type)), row.name);
    CHECK_EQ(info.block_len, row.block_len);
    CHECK_EQ(info.block_bytes, row.block_bytes);
    CHECK_EQ(info.int8_input, row.int8_input);
    CHECK_EQ(info.is_weight, row.type != DType::kI32);
    CHECK(find_traits(static_cast<std::uint32_t>(row.type)) == &info);
    CHECK(dtype_index(row.type) < kNumDTypes && !seen[dtype_index(row.type)]);
    seen[dtype_index(row.type)] = true;
    CHECK_EQ(dtype_row_bytes(row.type, 512), 512 / row.block_len * row.block_bytes);
    CHECK(supported_dtypes().find(row.name) != std::string::npos);
  }
}

TEST(other_types_have_names_but_no_traits) {
  CHECK(find_traits(10) == nullptr);
  CHECK_EQ(ggml_type_name(10), "Q2_K");
  CHECK_EQ(ggml_type_name(12), "Q4_K");
  CHECK_EQ(ggml_type_name(24), "I8");
  CHECK_EQ(ggml_type_name(39), "MXFP4");
  CHECK_EQ(ggml_type_name(4), "type 4");
  CHECK_EQ(ggml_type_name(4000000000U), "type 4000000000");
  CHECK_EQ(std::string(dtype_name(static_cast<DType>(99))), "unknown");
}

TEST(lengths_are_checked) {
  float out[256];
  const std::uint8_t data[1024] = {};
  CHECK_THROWS(dtype_row_bytes(DType::kQ8_0, 33), InvalidArgument, "blocks of 32");
  CHECK_THROWS(dtype_row_bytes(DType::kQ4_K, 128), InvalidArgument, "multiple of 256");
  CHECK_THROWS(dtype_row_bytes(DType::kF32, std::numeric_limits<std::size_t>::max()), InvalidArgument, "address space");
  CHECK_THROWS(dequantize(DType::kQ4_0, data, 16, out), InvalidArgument, "got 16");
  CHECK_THROWS(dequantize(DType::kI32, data, 1, out), InvalidArgument, "I32");
  CHECK_THROWS(quantize(DType::kQ4_0, out, 31, out), InvalidArgument, "got 31");
  CHECK_THROWS(quantize(DType::kQ6_K, out, 128, out), InvalidArgument, "multiple of 256");
  CHECK_THROWS(quantize(DType::kI32, out, 256, out), UnsupportedError, "I32");
}

TEST(every_half_is_exact) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = base::half_to_float(half);
    const int exponent = (half >> 10) & 31;
    const int mantissa = half & 1023;
    double want = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31) want = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
    if ((half & 0x8000) != 0) want = -want;
    if (std::isnan(want)) {
      CHECK(std::isnan(value));
    } else {
      CHECK_EQ(static_cast<double>(value), want);
      CHECK_EQ(std::signbit(value), (half & 0x8000) != 0);
      CHECK_EQ(base::float_to_half(value), half);
    }
  }
}

TEST(bfloat16_rounds_half_to_even) {
  CHECK_EQ(base::float_to_bfloat16(1.0F), 0x3F80);
  CHECK_EQ(base::float_to_bfloat16(base::bits_to_float(0x3F808000)), 0x3F80);  // half way, even below
  CHECK_EQ(base::float_to_bfloat16(base::bits_to_float(0x3F818000)), 0x3F82);  // half way, even above
  CHECK_EQ(base::float_to_bfloat16(base::bits_to_float(0x3F808001)), 0x3F81);
  CHECK_EQ(base::float_to_bfloat16(base::bits_to_float(0x7F7FFFFF)), 0x7F80);
  CHECK(std::isnan(base::bfloat16_to_float(base::float_to_bfloat16(base::bits_to_float(0x7F800001)))));
}

TEST(q8_0_by_hand) {
  auto block = bytes_of_half(0x3800);  // 0.5
  for (int i = 0; i < 32; ++i) block.push_back(static_cast<std::uint8_t>(i * 8 - 128));
  const auto out = dequantized(DType::kQ8_0, block);
  for (int i = 0; i < 32; ++i) CHECK_EQ(out[static_cast<std::size_t>(i)], 0.5F * static_cast<float>(i * 8 - 128));
}

TEST(legacy_nibbles_by_hand) {
  std::vector<std::uint8_t> nibbles;
  for (unsigned i = 0; i < 16; ++i) nibbles.push_back(static_cast<std::uint8_t>(i | (15 - i) << 4));
  auto q4_0 = bytes_of_half(kHalfOne);
  append(q4_0, nibbles);
  auto q4_1 = bytes_of_half(kHalfOne);
  append(q4_1, bytes_of_half(0xC000));  // -2
  append(q4_1, nibbles);
  auto q5_0 = bytes_of_half(kHalfOne);
  append(q5_0, {0x01, 0x80, 0x00, 0x80});  // columns 0, 15 and 31 have the fifth bit
  append(q5_0, nibbles);
  const auto a = dequantized(DType::kQ4_0, q4_0);
  const auto b = dequantized(DType::kQ4_1, q4_1);
  const auto c = dequantized(DType::kQ5_0, q5_0);
  for (std::size_t i = 0; i < 32; ++i) {
    const int q = static_cast<int>(i < 16 ? i : 31 - i);
    CHECK_EQ(a[i], static_cast<float>(q - 8));
    CHECK_EQ(b[i], static_cast<float>(q - 2));
    const bool high = i == 0 || i == 15 || i == 31;
    CHECK_EQ(c[i], static_cast<float>(q + (high ? 16 : 0) - 16));
  }
}

TEST(k_scales_by_hand) {
  // Sub-block j has scale j + 33 and minimum 63 - j; all q are 1 in even, 2 in odd sub-blocks.
  std::vector<std::uint8_t> scales(12);
  for (unsigned j = 0; j < 8; ++j) {
    const unsigned scale = j + 33;
    const unsigned min = 63 - j;
    if (j < 4) {
      scales[j] = static_cast<std::uint8_t>(scales[j] | scale);
      scales[j + 4] = static_cast<std::uint8_t>(scales[j + 4] | min);
    } else {
      scales[j + 4] = static_cast<std::uint8_t>((scale & 15) | (min & 15) << 4);
      scales[j - 4] = static_cast<std::uint8_t>(scales[j - 4] | (scale >> 4) << 6);
      scales[j] = static_cast<std::uint8_t>(scales[j] | (min >> 4) << 6);
    }
  }
  std::vector<std::uint8_t> head = bytes_of_half(kHalfOne);
  append(head, bytes_of_half(0x3800));  // dmin = 0.5
  append(head, scales);
  auto q4 = head;
  append(q4, std::vector<std::uint8_t>(128, 0x21));
  auto q5 = head;
  append(q5, std::vector<std::uint8_t>(32, 0x80));  // the last sub-block's fifth bits
  append(q5, std::vector<std::uint8_t>(128, 0x21));
  const auto a = dequantized(DType::kQ4_K, q4);
  const auto b = dequantized(DType::kQ5_K, q5);
  for (std::size_t i = 0; i < 256; ++i) {
    const std::size_t j = i / 32;
    const auto scale = static_cast<float>(j + 33);
    const float min = 0.5F * static_cast<float>(63 - j);
    const float q = j % 2 == 0 ? 1.0F : 2.0F;
    CHECK_EQ(a[i], scale * q - min);
    CHECK_EQ(b[i], scale * (j == 7 ? q + 16 : q) - min);
  }
}

TEST(q6_k_by_hand) {
  std::vector<std::uint8_t> block(210);
  // Column i of the block holds q = (i * 7) % 64, placed bit by bit as the format's comment says.
  for (std::size_t i = 0; i < 256; ++i) {
    const auto q = static_cast<unsigned>(i * 7 % 64);
    const std::size_t n = i / 128;
    const std::size_t k = i / 32 % 4;
    const std::size_t c = i % 32;
    std::uint8_t& low = block[64 * n + 32 * (k % 2) + c];
    low = static_cast<std::uint8_t>(low | (q & 15) << (4 * (k / 2)));
    std::uint8_t& high = block[128 + 32 * n + c];
    high = static_cast<std::uint8_t>(high | (q >> 4) << (2 * k));
  }
  for (unsigned i = 0; i < 16; ++i) block[192 + i] = static_cast<std::uint8_t>(i * 9 - 60);
  block[208] = 0x00;
  block[209] = 0x3C;  // d = 1
  const auto out = dequantized(DType::kQ6_K, block);
  for (std::size_t i = 0; i < 256; ++i) {
    const int scale = static_cast<int>(i / 16) * 9 - 60;
    CHECK_EQ(out[i], static_cast<float>(scale * (static_cast<int>(i * 7 % 64) - 32)));
  }
}

TEST(quantizing_gives_back_within_a_step) {
  for (const DType type :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0}) {
    CHECK(can_quantize(type));
    std::vector<float> x(96);
    for (std::size_t i = 0; i < 64; ++i) x[i] = std::sin(static_cast<float>(i) * 0.7F) * static_cast<float>(i + 1);
    std::vector<std::uint8_t> blocks(dtype_row_bytes(type, x.size()));
    std::vector<float> back(x.size());
    quantize(type, x.data(), x.size(), blocks.data());
    dequantize(type, blocks.data(), x.size(), back.data());
    for (std::size_t i = 0; i < 96; ++i) {
      const float largest = i < 32 ? 32.0F : 64.0F;
      const float step = type == DType::kF32 ? 0.0F
                                             : largest / (type == DType::kQ8_0   ? 127.0F
                                                          : type == DType::kQ5_0 ? 16.0F
                                                                                 : 8.0F);
      CHECK(std::fabs(back[i] - x[i]) <= (i < 64 ? 1.01F * step : 0.0F));
    }
  }
  CHECK(!can_quantize(DType::kI32));
}

TEST(k_types_give_back_within_their_grid) {
  struct Row {
    DType type;
    float codes;  // steps from the least to the greatest value of a sub-block
    std::size_t sub_block;
  };
  for (const Row& row : {Row{DType::kQ4_K, 15, 32}, Row{DType::kQ5_K, 31, 32}, Row{DType::kQ6_K, 63, 16}}) {
    CHECK(can_quantize(row.type));
    std::vector<float> x(512);
    for (std::size_t i = 0; i < 512; ++i) x[i] = std::sin(static_cast<float>(i * i % 97)) * (i < 256 ? 0.03F : 700.0F);
    const auto blocks = quantized(row.type, x);
    const auto back = dequantized_all(row.type, blocks);
    for (std::size_t i = 0; i < 512; ++i) {
      const float step = 2.0F * (i < 256 ? 0.03F : 700.0F) / row.codes;
      CHECK(std::fabs(back[i] - x[i]) <= 1.5F * step);
    }
    // What a block can hold exactly comes back exactly, and gives the same bytes again.
    const auto again = dequantized_all(row.type, quantized(row.type, back));
    double error = 0.0;
    for (std::size_t i = 0; i < 512; ++i) error += std::fabs(static_cast<double>(again[i] - back[i]));
    CHECK(error <= 1e-3 * 512 * 700);
  }
}

TEST(k_types_of_special_blocks) {
  for (const DType type : {DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    const std::vector<float> zeros(256, 0.0F);
    CHECK(dequantized_all(type, quantized(type, zeros)) == zeros);
    for (const float value : {-3.0F, 3.0F}) {
      for (const float y : dequantized_all(type, quantized(type, std::vector<float>(256, value)))) {
        CHECK(std::fabs(y - value) <= 0.02F * 3.0F);
      }
    }
    for (const float spike : {-8.0F, 8.0F}) {  // one value in the whole block
      std::vector<float> x(256, 0.0F);
      x[100] = spike;
      const auto back = dequantized_all(type, quantized(type, x));
      for (std::size_t i = 0; i < 256; ++i) CHECK(std::fabs(back[i] - x[i]) <= 0.02F * 8.0F);
    }
    std::vector<float> tiny(256, 1e-12F);  // below what half scales can say
    for (const float y : dequantized_all(type, quantized(type, tiny))) CHECK(std::fabs(y) <= 1e-6F);
  }
}

TEST(importance_moves_the_error_where_it_matters_less) {
  for (const DType type : {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    std::vector<float> x(256);
    std::vector<float> importance(256);
    for (std::size_t i = 0; i < 256; ++i) {
      x[i] = std::sin(static_cast<float>(i * i % 89) * 1.7F);
      importance[i] = i % 3 == 0 ? 100.0F : 0.1F;
    }
    const auto weighted_error = [&](const std::vector<float>& back) {
      double sum = 0.0;
      for (std::size_t i = 0; i < 256; ++i)
        sum += static_cast<double>(importance[i] * (back[i] - x[i]) * (back[i] - x[i]));
      return sum;
    };
    const auto without = weighted_error(dequantized_all(type, quantized(type, x)));
    const auto with = weighted_error(dequantized_all(type, quantized(type, x, importance.data())));
    CHECK(with < without);
    // An importance of nothing is no importance.
    const std::vector<float> none(256, 0.0F);
    const std::vector<float> ones(256, 1.0F);
    CHECK(quantized(type, x, none.data()) == quantized(type, x, ones.data()));
  }
}

TEST(q8_0_rounds_half_away_from_zero) {
  std::vector<float> x(32, 0.0F);
  x[0] = 127.0F;
  x[1] = 2.5F;
  x[2] = -2.5F;
  x[3] = 0.49999997F;
  std::vector<std::uint8_t> block(34);
  quantize(DType::kQ8_0, x.data(), 32, block.data());
  CHECK_EQ(static_cast<int>(static_cast<std::int8_t>(block[3])), 3);
  CHECK_EQ(static_cast<int>(static_cast<std::int8_t>(block[4])), -3);
  CHECK_EQ(static_cast<int>(static_cast<std::int8_t>(block[5])), 0);
}

TEST_MAIN()

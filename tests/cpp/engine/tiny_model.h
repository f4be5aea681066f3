// Writes small random models of every architecture, block format and down layout for the engine's tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/half.h"
#include "powerinfer/gguf.h"
#include "quant/dtype.h"

namespace tiny {

using powerinfer::DType;

struct Options {
  std::string architecture = "llama";
  DType type = DType::kF32;  // of 2-D tensors
  bool transposed_down = true;
  bool predictors = true;
  std::string activation = "relu";  // "" leaves the key out
  std::uint32_t d_model = 256;
  std::uint32_t d_ff = 512;
  std::uint32_t n_layers = 2;
  std::uint32_t n_heads = 4;
  std::uint32_t n_kv_heads = 2;
  std::uint32_t n_vocab = 256;
  std::uint32_t rank = 256;
  std::uint32_t n_ctx = 1024;
  std::uint32_t seed = 1;
};

/// Offset of the scale (f16) in a block and the standard deviation of a value whose scale is 1.
struct ScaleInfo {
  std::size_t offset;
  double deviation;
  double mean;  // of the quants; the minimum is set so that values are centred
};

inline ScaleInfo scale_info(DType type) {
  switch (type) {
    case DType::kQ8_0:
      return {0, 74.0, 0};
    case DType::kQ4_0:
      return {0, 4.6, 0};
    case DType::kQ4_1:
      return {0, 4.6, 7.5};
    case DType::kQ5_0:
      return {0, 9.2, 0};
    case DType::kQ4_K:
      return {0, 230.0, 7.5};
    case DType::kQ5_K:
      return {0, 470.0, 15.5};
    case DType::kQ6_K:
      return {208, 1370.0, 0};
    default:
      return {0, 1, 0};
  }
}

class Builder {
 public:
  explicit Builder(const Options& options) : options_(options), random_(options.seed) {}

  void write(const std::filesystem::path& path) {
    const bool sparse = options_.transposed_down || options_.predictors;
    powerinfer::GgufWriter writer(sparse ? powerinfer::GgufWriter::Magic::kPowerInfer
                                         : powerinfer::GgufWriter::Magic::kGguf);
    add_keys(writer);
    add_tensors(writer);
    writer.write(path);
  }

 private:
  template <class T>
  static powerinfer::GgufValue scalar(T value) {
    return powerinfer::GgufScalar(std::move(value));
  }

  void add_keys(powerinfer::GgufWriter& writer) const {
    const std::string a = options_.architecture + ".";
    writer.add("general.architecture", scalar(options_.architecture));
    writer.add(a + "context_length", scalar(options_.n_ctx));
    writer.add(a + "embedding_length", scalar(options_.d_model));
    writer.add(a + "feed_forward_length", scalar(options_.d_ff));
    writer.add(a + "block_count", scalar(options_.n_layers));
    writer.add(a + "attention.head_count", scalar(options_.n_heads));
    writer.add(a + "attention.head_count_kv", scalar(options_.n_kv_heads));
    const bool rms = options_.architecture == "llama" || options_.architecture == "bamboo";
    writer.add(a + (rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"), scalar(1e-5F));
    if (!options_.activation.empty()) writer.add(a + "hidden_activation", scalar(options_.activation));
    if (options_.activation == "fatrelu") writer.add(a + "hidden_activation_param", scalar(0.05F));
  }

  void add_tensors(powerinfer::GgufWriter& writer) {
    const std::uint64_t d = options_.d_model;
    const std::uint64_t f = options_.d_ff;
    const std::uint64_t kv = d / options_.n_heads * options_.n_kv_heads;
    const bool opt = options_.architecture == "opt";
    const bool falcon = options_.architecture == "falcon";
    const bool gated = !opt && !falcon;
    matrix(writer, "token_embd.weight", d, options_.n_vocab, 1.0);
    if (opt) matrix(writer, "position_embd.weight", d, options_.n_ctx + 2, 0.3);
    norm(writer, "output_norm", !gated);
    if (!opt) matrix(writer, "output.weight", d, options_.n_vocab, 1.0);
    for (std::uint32_t i = 0; i < options_.n_layers; ++i) {
      const std::string blk = "blk." + std::to_string(i) + ".";
      norm(writer, blk + "attn_norm", !gated);
      if (falcon) {
        matrix(writer, blk + "attn_qkv.weight", d, d + 2 * kv, 1.0);
      } else {
        linear(writer, blk + "attn_q", d, d, opt);
        linear(writer, blk + "attn_k", d, kv, opt);
        linear(writer, blk + "attn_v", d, kv, opt);
        norm(writer, blk + "ffn_norm", opt);
      }
      linear(writer, blk + "attn_output", d, d, opt);
      if (gated) matrix(writer, blk + "ffn_gate.weight", d, f, 1.0);
      linear(writer, blk + "ffn_up", d, f, opt);
      const std::string down = blk + (options_.transposed_down ? "ffn_down_t" : "ffn_down");
      if (options_.transposed_down) {
        matrix(writer, down + ".weight", d, f, 1.0);
      } else {
        matrix(writer, down + ".weight", f, d, 1.0);
      }
      if (opt) vector(writer, down + ".bias", d, 0.1);
      if (!options_.predictors) continue;
      matrix(writer, blk + "fc1.weight", d, options_.rank, 1.0);
      matrix(writer, blk + "fc2.weight", options_.rank, f, 1.0);
    }
  }

  void linear(powerinfer::GgufWriter& writer, const std::string& name, std::uint64_t n_cols, std::uint64_t n_rows,
              bool bias) {
    matrix(writer, name + ".weight", n_cols, n_rows, 1.0);
    if (bias) vector(writer, name + ".bias", n_rows, 0.1);
  }

  void norm(powerinfer::GgufWriter& writer, const std::string& name, bool bias) {
    vector(writer, name + ".weight", options_.d_model, 0.1, 1.0);
    if (bias) vector(writer, name + ".bias", options_.d_model, 0.1);
  }

  void vector(powerinfer::GgufWriter& writer, const std::string& name, std::uint64_t n, double deviation,
              double mean = 0.0) {
    std::normal_distribution<double> normal(mean, deviation);
    std::vector<std::uint8_t>& bytes = storage_.emplace_back(n * sizeof(float));
    for (std::uint64_t i = 0; i < n; ++i) {
      const auto value = static_cast<float>(normal(random_));
      std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof value);
    }
    writer.add_tensor(name, DType::kF32, {n}, bytes.data());
  }

  /// Values of standard deviation gain / sqrt(n_cols).
  void matrix(powerinfer::GgufWriter& writer, const std::string& name, std::uint64_t n_cols, std::uint64_t n_rows,
              double gain) {
    const double deviation = gain / std::sqrt(static_cast<double>(n_cols));
    const std::size_t n_bytes = powerinfer::dtype_row_bytes(options_.type, n_cols) * n_rows;
    std::vector<std::uint8_t>& bytes = storage_.emplace_back(n_bytes);
    const auto& traits = powerinfer::quant::traits(options_.type);
    if (!traits.int8_input) {
      fill_floats(bytes, n_cols * n_rows, deviation);
    } else {
      fill_blocks(bytes, traits.block_bytes, deviation);
    }
    writer.add_tensor(name, options_.type, {n_cols, n_rows}, bytes.data());
  }

  void fill_floats(std::vector<std::uint8_t>& bytes, std::size_t n, double deviation) {
    std::normal_distribution<double> normal(0.0, deviation);
    for (std::size_t i = 0; i < n; ++i) {
      const auto value = static_cast<float>(normal(random_));
      const std::uint32_t bits = powerinfer::base::float_to_bits(value);
      const std::uint16_t half = powerinfer::base::float_to_half(value);
      const auto brain = static_cast<std::uint16_t>(bits >> 16);
      if (options_.type == DType::kF32) std::memcpy(bytes.data() + 4 * i, &value, 4);
      if (options_.type == DType::kF16) std::memcpy(bytes.data() + 2 * i, &half, 2);
      if (options_.type == DType::kBF16) std::memcpy(bytes.data() + 2 * i, &brain, 2);
    }
  }

  void fill_blocks(std::vector<std::uint8_t>& bytes, std::size_t block_bytes, double deviation) {
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random_());
    const ScaleInfo info = scale_info(options_.type);
    std::uniform_real_distribution<double> spread(0.5, 1.5);
    for (std::size_t at = 0; at < bytes.size(); at += block_bytes) {
      const double scale = deviation / info.deviation * spread(random_);
      put_half(bytes.data() + at + info.offset, scale);
      if (info.mean == 0) continue;
      put_half(bytes.data() + at + info.offset + 2, scale * info.mean * (options_.type == DType::kQ4_1 ? -1 : 1));
    }
  }

  static void put_half(std::uint8_t* target, double value) {
    const std::uint16_t half = powerinfer::base::float_to_half(static_cast<float>(value));
    std::memcpy(target, &half, sizeof half);
  }

  Options options_;
  std::mt19937 random_;
  std::deque<std::vector<std::uint8_t>> storage_;
};

/// A file that is removed with this object.
class ModelFile {
 public:
  explicit ModelFile(const Options& options) {
    static int counter = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("powerinfer-test-" + std::to_string(std::random_device{}()) + "-" + std::to_string(counter++) + ".gguf");
    Builder(options).write(path_);
  }
  ~ModelFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  ModelFile(const ModelFile&) = delete;
  ModelFile& operator=(const ModelFile&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tiny

// A small but complete model file (llama with predictors and a vocabulary), made to be damaged.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "powerinfer/gguf.h"

namespace pi_fuzz {

class SmallModel {
 public:
  static constexpr std::uint32_t kDim = 64;
  static constexpr std::uint32_t kFf = 96;
  static constexpr std::uint32_t kLayers = 2;

  static void write(const std::filesystem::path& path) {
    SmallModel model;
    model.add_keys();
    model.add_vocabulary();
    model.add_tensors();
    model.writer_.write(path);
  }

 private:
  using DType = powerinfer::DType;

  template <class T>
  void add(const std::string& key, T value) {
    writer_.add(key, powerinfer::GgufScalar(std::move(value)));
  }
  template <class T>
  void add(const std::string& key, std::vector<T> values) {
    writer_.add(key, powerinfer::GgufArray(std::move(values)));
  }

  void add_keys() {
    add("general.architecture", std::string("llama"));
    add("general.name", std::string("small"));
    add("llama.context_length", std::uint32_t{128});
    add("llama.embedding_length", kDim);
    add("llama.feed_forward_length", kFf);
    add("llama.block_count", kLayers);
    add("llama.attention.head_count", std::uint32_t{4});
    add("llama.attention.head_count_kv", std::uint32_t{2});
    add("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    add("llama.rope.dimension_count", std::uint32_t{16});
    add("llama.rope.freq_base", 10000.0F);
    add("llama.hidden_activation", std::string("relu"));
    add("powerinfer.version", std::uint32_t{1});
    add("powerinfer.predictor.kind", std::string("mlp"));
    add("powerinfer.predictor.input", std::string("residual"));
    add("powerinfer.predictor.threshold", std::vector<float>(kLayers, 0.1F));
  }

  void add_vocabulary() {
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<std::int32_t> types = {2, 3, 3};
    for (int byte = 0; byte < 256; ++byte) {
      const char* hex = "0123456789ABCDEF";
      tokens.push_back(std::string("<0x") + hex[byte / 16] + hex[byte % 16] + ">");
      types.push_back(6);
    }
    for (const char* text : {"\xE2\x96\x81", "a", "b", "c", "ab",
                             "\xE2\x96\x81"
                             "a",
                             "abc"}) {
      tokens.emplace_back(text);
      types.push_back(1);
    }
    n_vocab_ = tokens.size();
    std::vector<float> scores(n_vocab_);
    for (std::size_t i = 0; i < n_vocab_; ++i) scores[i] = -static_cast<float>(i);
    add("tokenizer.ggml.model", std::string("llama"));
    add("tokenizer.ggml.tokens", std::move(tokens));
    add("tokenizer.ggml.scores", std::move(scores));
    add("tokenizer.ggml.token_type", std::move(types));
    add("tokenizer.ggml.bos_token_id", std::uint32_t{1});
    add("tokenizer.ggml.eos_token_id", std::uint32_t{2});
    add("tokenizer.ggml.unknown_token_id", std::uint32_t{0});
    add("tokenizer.ggml.add_bos_token", true);
  }

  void add_tensors() {
    tensor("token_embd.weight", DType::kF16, {kDim, n_vocab_});
    for (std::uint32_t i = 0; i < kLayers; ++i) {
      const std::string blk = "blk." + std::to_string(i) + ".";
      tensor(blk + "attn_norm.weight", DType::kF32, {kDim});
      tensor(blk + "attn_q.weight", DType::kQ8_0, {kDim, kDim});
      tensor(blk + "attn_k.weight", DType::kQ8_0, {kDim, kDim / 2});
      tensor(blk + "attn_v.weight", DType::kQ8_0, {kDim, kDim / 2});
      tensor(blk + "attn_output.weight", DType::kF32, {kDim, kDim});
      tensor(blk + "ffn_norm.weight", DType::kF32, {kDim});
      tensor(blk + "ffn_gate.weight", DType::kQ8_0, {kDim, kFf});
      tensor(blk + "ffn_up.weight", DType::kQ8_0, {kDim, kFf});
      tensor(blk + "ffn_down_t.weight", DType::kQ8_0, {kDim, kFf});
      tensor(blk + "fc1.weight", DType::kF32, {kDim, 32});
      tensor(blk + "fc2.weight", DType::kF16, {32, kFf});
    }
    tensor("output_norm.weight", DType::kF32, {kDim});
    tensor("output.weight", DType::kF16, {kDim, n_vocab_});
  }

  /// Any finite values will do. 0.125 is 0x3000 as a half; its neighbours 0x30?? lie below 0.25.
  void tensor(const std::string& name, DType type, std::vector<std::uint64_t> shape) {
    std::uint64_t n = 1;
    for (const std::uint64_t size : shape) n *= size;
    std::string& bytes = storage_.emplace_back();
    const std::size_t n_bytes = powerinfer::dtype_row_bytes(type, static_cast<std::size_t>(n));
    while (bytes.size() < n_bytes) append_values(bytes, type);
    writer_.add_tensor(name, type, std::move(shape), bytes.data());
  }

  void append_values(std::string& bytes, DType type) {
    const auto random_byte = [this] {
      random_ = random_ * 1664525U + 1013904223U;
      return static_cast<char>(random_ >> 24);
    };
    const auto half = [&](char high) {
      bytes += random_byte();
      bytes += static_cast<char>(high | (random_byte() & '\x80'));
    };
    if (type == DType::kF32) {
      const float value = static_cast<float>(random_byte()) / 512.0F + 0.3F;
      bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
    } else if (type == DType::kF16) {
      half('\x30');
    } else {  // Q8_0: a scale near 2^-11 and 32 integers
      half('\x10');
      for (int i = 0; i < 32; ++i) bytes += random_byte();
    }
  }

  powerinfer::GgufWriter writer_{powerinfer::GgufWriter::Magic::kPowerInfer};
  std::deque<std::string> storage_;
  std::uint64_t n_vocab_ = 0;
  std::uint32_t random_ = 1;
};

}  // namespace pi_fuzz

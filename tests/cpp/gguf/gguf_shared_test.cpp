// Real files: four vocabularies of llama.cpp and models written by the reference engine's own tools.
#include <chrono>
#include <cmath>
#include <cstdlib>

#include "powerinfer/error.h"
#include "powerinfer/gguf.h"
#include "test.h"

using namespace powerinfer;

namespace {

std::filesystem::path shared_folder() {
  const char* folder = std::getenv("POWERINFER_SHARED");
  if (folder != nullptr) return folder;
  return std::filesystem::path(__FILE__).parent_path() / "../../../../shared";
}

/// The file, or nothing (and a word about it) when the shared data is not there.
std::optional<GgufFile> open_shared(const std::string& name) {
  const std::filesystem::path path = shared_folder() / name;
  if (std::filesystem::exists(path)) return GgufFile::open(path);
  std::cout << "skipped: no " << path << "; set POWERINFER_SHARED\n";
  return std::nullopt;
}

void check_vocabulary(const std::string& name, std::size_t n_tokens, const std::string& model) {
  const auto start = std::chrono::steady_clock::now();
  const auto file = open_shared("data/vocab/ggml-vocab-" + name + ".gguf");
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  if (!file) return;
  std::cout << name << ": opened in " << ms << " ms\n";
  CHECK_EQ(*file->find_string("tokenizer.ggml.model"), model);
  CHECK_EQ(file->find_strings("tokenizer.ggml.tokens")->size(), n_tokens);
  CHECK_EQ(file->find_i32s("tokenizer.ggml.token_type")->size(), n_tokens);
  CHECK_EQ(file->tensors().size(), std::size_t{0});
}

/// Shapes as the fact sheet of the family says; values finite.
void check_model(const GgufFile& file, const std::string& gate) {
  const std::string architecture = *file.find_string("general.architecture");
  const std::uint64_t d_model = file.find_u64(architecture + ".embedding_length").value();
  const std::uint64_t d_ff = file.find_u64(architecture + ".feed_forward_length").value();
  CHECK(file.has_powerinfer_magic());
  for (std::uint64_t i = 0; i < file.find_u64(architecture + ".block_count").value(); ++i) {
    const std::string blk = "blk." + std::to_string(i) + ".";
    for (const std::string& name : {gate, std::string("ffn_up"), std::string("ffn_down_t")}) {
      const TensorInfo* tensor = file.find_tensor(blk + name + ".weight");
      CHECK(tensor != nullptr && tensor->n_cols() == d_model && tensor->n_rows() == d_ff);
    }
    const TensorInfo* fc1 = file.find_tensor(blk + "fc1.weight");
    const TensorInfo* fc2 = file.find_tensor(blk + "fc2.weight");
    CHECK(fc1 != nullptr && fc2 != nullptr && fc1->n_rows() == fc2->n_cols() && fc2->n_rows() == d_ff);
  }
  for (const TensorInfo& tensor : file.tensors()) {
    std::vector<float> values(tensor.n_cols() * tensor.n_rows());
    dequantize(tensor.type, file.data(tensor), values.size(), values.data());
    std::size_t n_finite = 0;
    for (const float value : values) n_finite += std::isfinite(value);
    CHECK_EQ(n_finite, values.size());
  }
}

}  // namespace

TEST(vocabularies) {
  check_vocabulary("llama-spm", 32000, "llama");
  check_vocabulary("phi-3", 32064, "llama");
  check_vocabulary("falcon", 65024, "gpt2");
  check_vocabulary("gpt-2", 50257, "gpt2");
}

TEST(reference_models) {
  if (const auto file = open_shared("data/reference/llama-f16.powerinfer.gguf")) check_model(*file, "ffn_gate");
  if (const auto file = open_shared("data/reference/falcon7b-f16.powerinfer.gguf")) check_model(*file, "ffn_up");
}

TEST(reference_split_file) {
  const auto file = open_shared("data/reference/llama-hf/ref.powerinfer.gguf.generated.gpuidx");
  if (!file) return;
  const std::uint64_t n_layers = file->find_u64("generic.gpu_index.block_count").value();
  CHECK(file->find_u64("split.vram_capacity").has_value());
  CHECK_EQ(file->tensors().size(), static_cast<std::size_t>(2 * n_layers));
  for (const TensorInfo& tensor : file->tensors()) CHECK(tensor.type == DType::kI32);
}

TEST_MAIN()

// A broken weight must show: NaN in a model gives NaN logits, whatever the format of the matrices and the mode.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "engine/tiny_model.h"
#include "kernels/dispatch.h"
#include "kernels/force_isa.h"
#include "powerinfer/context.h"
#include "test.h"

using namespace powerinfer;

namespace {

/// Overwrites one number of a vector of the file.
void patch(const std::filesystem::path& path, const std::string& tensor, std::uint64_t index, float value) {
  const std::uint64_t offset = GgufFile::open(path).find_tensor(tensor)->offset + index * sizeof value;
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(reinterpret_cast<const char*>(&value), sizeof value);
  if (!file) throw std::runtime_error("cannot patch the model");
}

struct Seen {
  bool all_finite = true;
  bool all_nan = true;

  void add(std::span<const float> logits) {
    all_finite = all_finite && std::ranges::all_of(logits, [](float x) { return std::isfinite(x); });
    all_nan = all_nan && std::ranges::all_of(logits, [](float x) { return std::isnan(x); });
  }
};

/// The logits of a batch and of a single token.
Seen run(const std::filesystem::path& path, Sparsity mode) {
  Context context(Model::load(path), {.sparsity = mode});
  Seen seen;
  seen.add(context.eval(std::vector<Token>{1, 20, 3, 40, 5, 60, 7}, true));
  seen.add(context.eval(std::vector<Token>{8}));
  return seen;
}

}  // namespace

TEST(a_nan_reaches_the_logits) {
  for (const char* isa : {"scalar", ""}) {  // "": the best there is
    pi_test::force_isa(isa);
    for (const DType type : {DType::kF32, DType::kQ8_0, DType::kQ4_0}) {
      for (const bool transposed : {true, false}) {
        for (const char* tensor : {"", "blk.0.attn_norm.weight", "blk.1.ffn_norm.weight", "output_norm.weight"}) {
          const tiny::ModelFile file({.type = type, .transposed_down = transposed, .predictors = false});
          const bool broken = *tensor != 0;
          if (broken) patch(file.path(), tensor, 77, std::numeric_limits<float>::quiet_NaN());
          for (const Sparsity mode : {Sparsity::kDense, Sparsity::kExact}) {
            const Seen seen = run(file.path(), mode);
            if (broken ? seen.all_nan : seen.all_finite) continue;
            pi_test::fail(__FILE__, __LINE__,
                          std::string(dtype_name(type)) + ", NaN in '" + tensor + "', " + sparsity_name(mode) +
                              (transposed ? ", transposed" : ", plain") +
                              (broken ? ": logits hide it" : ": logits are not finite"));
          }
        }
      }
    }
  }
}

TEST_MAIN()

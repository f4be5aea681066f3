// Tensors by name, with shape and type checked, and a record of which were used: a tensor nobody asked for means that
// the file holds a model this build would compute wrongly.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "powerinfer/gguf.h"
#include "tensor/weight.h"

namespace powerinfer::models {

class TensorSource {
 public:
  explicit TensorSource(const GgufFile& file) : file_(file) {}

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }
  /// A matrix of `n_rows` rows of `n_cols` values in place. Throws FormatError if absent or of another shape.
  WeightView matrix(const std::string& name, std::size_t n_rows, std::size_t n_cols);
  /// As matrix(), the number of rows taken from the file.
  WeightView matrix_of_any_rows(const std::string& name, std::size_t n_cols);
  /// A matrix of I32 words in place: `n_rows` rows of `n_cols`. Throws FormatError if absent or otherwise made.
  WeightView words(const std::string& name, std::size_t n_rows, std::size_t n_cols);
  /// A vector of `n` values as floats, owned by this source's storage (see take_storage).
  const float* vector(const std::string& name, std::size_t n);
  /// Null when absent.
  const float* optional_vector(const std::string& name, std::size_t n);
  /// Marks a tensor as known though not needed.
  void ignore(const std::string& name) { used_.insert(name); }
  /// Throws UnsupportedError naming the first tensor that was neither used nor ignored.
  void require_all_used(const std::string& architecture) const;
  /// The vectors' memory; must outlive the views.
  std::vector<std::unique_ptr<float[]>> take_storage() { return std::move(storage_); }

  const GgufFile& file() const { return file_; }

 private:
  const TensorInfo& require(const std::string& name);

  const GgufFile& file_;
  std::unordered_set<std::string> used_;
  std::vector<std::unique_ptr<float[]>> storage_;
};

}  // namespace powerinfer::models

#include "models/side_data.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "base/text.h"
#include "models/parts.h"
#include "powerinfer/error.h"

namespace powerinfer::models {

namespace {

class SideData {
 public:
  SideData(TensorSource& source, const Hyperparameters& hp) : source_(source), file_(source.file()), hp_(hp) {}

  void check() {
    (void)file_.find_string("powerinfer.fingerprint");  // another type is an error
    (void)file_.find_u64("powerinfer.activation.tokens");
    check_shares("powerinfer.predictor.recall");
    check_shares("powerinfer.predictor.density");
    check_cuts("powerinfer.threshold.cut");
    // A file of magic GGUF carries no tensors that other engines do not know; its ids lie in the side file.
    const bool needs_ids = is_reordered() && file_.has_powerinfer_magic();
    for (std::size_t layer = 0; layer < hp_.n_layers; ++layer) {
      check_counts(layer_name(layer, "ffn_activation_count"));
      check_ids(layer_name(layer, "ffn_neuron_id"), needs_ids);
    }
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(const Args&... args) const {
    throw FormatError(base::text(file_.path().string(), ": ", args...));
  }

  const std::vector<float>* per_layer(const char* key) const {
    const std::vector<float>* values = file_.find_floats(key);
    if (values != nullptr && values->size() != hp_.n_layers) {
      fail("key '", key, "': expected ", hp_.n_layers, " entries, got ", values->size());
    }
    return values;
  }

  void check_shares(const char* key) const {
    const std::vector<float>* values = per_layer(key);
    if (values == nullptr) return;
    for (const float value : *values) {
      if (!(value >= 0.0F && value <= 1.0F)) fail("key '", key, "': expected shares between 0 and 1, got ", value);
    }
  }

  void check_cuts(const char* key) const {
    const std::vector<float>* values = per_layer(key);
    if (values == nullptr) return;
    for (const float value : *values) {
      if (!std::isfinite(value) || value < 0.0F) fail("key '", key, "': expected numbers >= 0, got ", value);
    }
  }

  bool is_reordered() const {
    const std::string* order = file_.find_string("powerinfer.neuron_order");
    if (order == nullptr || *order == "original") return false;
    if (*order == "activation") return true;
    throw UnsupportedError(base::text(file_.path().string(), ": powerinfer.neuron_order '", base::printable(*order),
                                      "' is unknown; supported: original, activation"));
  }

  /// The d_ff numbers of an I32 tensor; empty when it is absent.
  std::vector<std::int32_t> numbers(const std::string& name) {
    const TensorInfo* info = file_.find_tensor(name);
    if (info == nullptr) return {};
    source_.ignore(name);
    if (info->type != DType::kI32 || info->n_cols() != hp_.d_ff || info->n_rows() != 1) {
      fail("tensor '", name, "': expected I32 [", hp_.d_ff, "], got ", dtype_name(info->type), " of ",
           info->n_cols() * info->n_rows(), " values");
    }
    std::vector<std::int32_t> values(hp_.d_ff);
    std::memcpy(values.data(), file_.data(*info), values.size() * sizeof(std::int32_t));
    return values;
  }

  void check_counts(const std::string& name) {
    for (const std::int32_t count : numbers(name)) {
      if (count < 0) fail("tensor '", name, "': expected counts >= 0, got ", count);
    }
  }

  void check_ids(const std::string& name, bool needed) {
    const std::vector<std::int32_t> ids = numbers(name);
    if (ids.empty()) {
      if (needed)
        fail("tensor '", name, "' is missing; a file with neuron_order 'activation' must tell the original ids");
      return;
    }
    std::vector<bool> seen(ids.size());
    for (const std::int32_t id : ids) {
      const auto index = static_cast<std::size_t>(id);
      if (id < 0 || index >= ids.size() || seen[index]) {
        fail("tensor '", name, "': expected every number from 0 to ", ids.size() - 1, " once, got ", id,
             id >= 0 && index < ids.size() ? " twice" : "");
      }
      seen[index] = true;
    }
  }

  TensorSource& source_;
  const GgufFile& file_;
  const Hyperparameters& hp_;
};

}  // namespace

void check_side_data(TensorSource& source, const Hyperparameters& hp) { SideData(source, hp).check(); }

}  // namespace powerinfer::models

#include "models/hyperparameters.h"

#include <cmath>

#include "base/text.h"
#include "powerinfer/error.h"

namespace powerinfer::models {

namespace {

class Keys {
 public:
  Keys(const GgufFile& file, const std::string& architecture) : file_(file), prefix_(architecture + ".") {}

  std::size_t required(const std::string& name) const {
    const auto value = file_.find_u32(prefix_ + name);
    if (!value) {
      throw FormatError(base::text(where(), "required key '", prefix_, name, "' is missing; re-run the conversion"));
    }
    return positive(name, *value);
  }
  std::size_t optional(const std::string& name, std::size_t fallback) const {
    const auto value = file_.find_u32(prefix_ + name);
    return value ? positive(name, *value) : fallback;
  }
  double number(const std::string& name, double fallback) const {
    const double value = file_.find_f32(prefix_ + name).value_or(static_cast<float>(fallback));
    if (!std::isfinite(value) || value <= 0.0) {
      throw FormatError(base::text(where(), "key '", prefix_, name, "': expected a positive number, got ", value));
    }
    return value;
  }
  std::string where() const { return base::text(file_.path().string(), ": "); }
  const std::string& prefix() const { return prefix_; }

 private:
  std::size_t positive(const std::string& name, std::uint32_t value) const {
    if (value == 0 || value > 0x7FFFFFFFU) {
      throw FormatError(
          base::text(where(), "key '", prefix_, name, "': expected a number between 1 and 2^31 - 1, got ", value));
    }
    return value;
  }

  const GgufFile& file_;
  std::string prefix_;
};

// Keys of other variants of these architectures that change the computation: leaving them out would be wrong.
constexpr const char* kForeignKeys[] = {"attention.scale",         "attention.clamp_kqv",   "logit_scale",
                                        "embedding_scale",         "residual_scale",        "attention.max_alibi_bias",
                                        "final_logit_softcapping", "attn_logit_softcapping"};
constexpr std::size_t kMaxHeadDim = 65536;  // rows of weights are far shorter

void refuse_foreign_keys(const GgufFile& file, const Keys& keys) {
  for (const char* name : kForeignKeys) {
    if (file.find(keys.prefix() + name) != nullptr) {
      throw UnsupportedError(base::text(keys.where(), "key '", keys.prefix(), name,
                                        "' changes the computation in a way this version does not know"));
    }
  }
  const std::uint32_t window = file.find_u32(keys.prefix() + "attention.sliding_window").value_or(0);
  if (window > 0 && window < keys.required("context_length")) {
    throw UnsupportedError(base::text(keys.where(), "attention over a sliding window of ", window,
                                      " tokens is not supported; only attention over the whole context is"));
  }
  if (!file.find_bool(keys.prefix() + "attention.causal").value_or(true)) {
    throw UnsupportedError(
        base::text(keys.where(), "'", keys.prefix(), "attention.causal' is false; only causal attention is supported"));
  }
}

void refuse_experts(const GgufFile& file, const Keys& keys) {
  if (file.find_u32(keys.prefix() + "expert_count").value_or(0) > 0) {
    throw UnsupportedError(
        base::text(keys.where(), "mixture-of-experts models ('", keys.prefix(),
                   "expert_count' > 0) are not supported; supported are models with one FFN a layer"));
  }
}

double read_rope_scale(const GgufFile& file, const Keys& keys) {
  const std::string* type = file.find_string(keys.prefix() + "rope.scaling.type");
  if (type != nullptr && *type != "none" && *type != "linear") {
    throw UnsupportedError(base::text(keys.where(), "RoPE scaling '", base::printable(*type),
                                      "' is not supported; supported: none, linear, and Llama 3 factors (rope_freqs)"));
  }
  if (type != nullptr && *type == "none") return 1.0;
  // Files from before the scaling type had a key say only the factor.
  const double old_factor = keys.number("rope.scale_linear", 1.0);
  return keys.number("rope.scaling.factor", old_factor);
}

}  // namespace

Hyperparameters read_hyperparameters(const GgufFile& file, const std::string& architecture) {
  const Keys keys(file, architecture);
  Hyperparameters hp;
  hp.architecture = architecture;
  refuse_experts(file, keys);
  refuse_foreign_keys(file, keys);
  hp.n_ctx_train = keys.required("context_length");
  hp.d_model = keys.required("embedding_length");
  hp.d_ff = keys.required("feed_forward_length");
  hp.n_layers = keys.required("block_count");
  hp.n_heads = keys.required("attention.head_count");
  hp.n_kv_heads = keys.optional("attention.head_count_kv", hp.n_heads);
  if (hp.n_heads % hp.n_kv_heads != 0) {
    throw FormatError(base::text(keys.where(), "'", keys.prefix(), "attention.head_count' (", hp.n_heads,
                                 ") is not a multiple of 'attention.head_count_kv' (", hp.n_kv_heads, ")"));
  }
  if (file.find_u32(keys.prefix() + "attention.key_length")) {
    hp.head_dim = keys.required("attention.key_length");
  } else {
    if (hp.d_model % hp.n_heads != 0) {
      throw FormatError(base::text(keys.where(), "'", keys.prefix(), "embedding_length' (", hp.d_model,
                                   ") is not a multiple of 'attention.head_count' (", hp.n_heads,
                                   ") and there is no 'attention.key_length'"));
    }
    hp.head_dim = hp.d_model / hp.n_heads;
  }
  if (hp.head_dim > kMaxHeadDim) {
    throw FormatError(base::text(keys.where(), "heads of ", hp.head_dim, " values: expected at most ", kMaxHeadDim));
  }
  const std::size_t value_length = keys.optional("attention.value_length", hp.head_dim);
  if (value_length != hp.head_dim) {
    throw UnsupportedError(base::text(keys.where(), "values of another length than keys (", value_length, " and ",
                                      hp.head_dim, ") are not supported"));
  }
  hp.rope_dim = keys.optional("rope.dimension_count", hp.head_dim);
  hp.rope_base = keys.number("rope.freq_base", 10000.0);
  hp.rope_scale = read_rope_scale(file, keys);
  return hp;
}

float read_epsilon(const GgufFile& file, const std::string& key, float fallback) {
  const auto value = file.find_f32(key);
  if (!value && fallback <= 0.0F) {
    throw FormatError(base::text(file.path().string(), ": required key '", key, "' is missing; re-run the conversion"));
  }
  const float epsilon = value.value_or(fallback);
  if (!std::isfinite(epsilon) || epsilon < 0.0F || epsilon >= 1.0F) {
    throw FormatError(
        base::text(file.path().string(), ": key '", key, "': expected a number in [0, 1), got ", epsilon));
  }
  return epsilon;
}

}  // namespace powerinfer::models

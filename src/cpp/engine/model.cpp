#include "powerinfer/model.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "base/text.h"
#include "engine/model_impl.h"
#include "kernels/dispatch.h"
#include "ops/activation.h"
#include "ops/cpu_backend.h"
#include "powerinfer/error.h"

namespace powerinfer {

namespace {

constexpr Sparsity kModes[] = {Sparsity::kDense, Sparsity::kExact, Sparsity::kPredictor, Sparsity::kThreshold};

/// Why the model cannot run in `mode`; empty when it can.
std::string obstacle(const ModelImpl& model, Sparsity mode) {
  switch (mode) {
    case Sparsity::kExact:
      if (!model.has_true_zeros()) {
        return base::text("activation ", ops::activation_text(model.loaded.activation),
                          " has no true zeros, so no neuron can be skipped exactly");
      }
      return "";
    case Sparsity::kPredictor:
      return model.has_predictors() ? "" : "the file holds no predictor (tensors fc1 and fc2, or ffn_gate_sign)";
    case Sparsity::kThreshold:
      return "it needs a calibration that does not exist yet";
    default:
      return "";
  }
}

std::string mean_text(const std::vector<float>* values) {
  if (values == nullptr || values->empty()) return "";
  double sum = 0;
  for (const float value : *values) sum += value;
  return base::text(std::round(sum / static_cast<double>(values->size()) * 1000) / 1000);
}

std::string skip_note(const ModelImpl& model, Sparsity mode) {
  const std::string down =
      model.all_down_transposed()
          ? "their output rows"
          : "blocks of 32 columns of ffn_down without an active neuron (a conversion to ffn_down_t "
            "would skip each inactive neuron's own)";
  const bool gated = static_cast<bool>(model.ffn(0).unit.gate);
  switch (mode) {
    case Sparsity::kDense:
      return "computes every neuron";
    case Sparsity::kExact:
      return gated ? "computes every gate, skips up rows of inactive neurons and " + down
                   : "computes every up row, skips " + down;
    case Sparsity::kPredictor:
      return (gated ? "skips gate and up rows of neurons predicted inactive and "
                    : "skips up rows of neurons predicted inactive and ") +
             down;
    default:
      return "";
  }
}

const char* predictor_kind_name(backend::PredictorKind kind) {
  switch (kind) {
    case backend::PredictorKind::kMlp:
      return "mlp";
    case backend::PredictorKind::kSvd:
      return "svd";
    case backend::PredictorKind::kSign:
      return "sign";
    case backend::PredictorKind::kNone:
      return "none";
  }
  return "none";
}

void check_device(const std::string& device) {
  if (device == "auto" || device == "cpu") return;
  throw DeviceError(
      base::text("device '", device, "' is not available: this build computes on the CPU only; use 'cpu' or 'auto'"));
}

std::optional<backend::Activation> wanted_activation(const ModelOptions& options) {
  if (options.activation.empty()) return std::nullopt;
  return ops::parse_activation(options.activation);
}

void load_tokenizer(ModelImpl& impl) {
  const std::string* model = impl.file.find_string("tokenizer.ggml.model");
  if (model == nullptr || *model == "none" || *model == "no_vocab") return;
  impl.tokenizer = Tokenizer::from_gguf(impl.file);
}

}  // namespace

const backend::FfnOp& ModelImpl::ffn(std::size_t layer) const { return loaded.plan.layers[layer].ffn(); }

bool ModelImpl::has_predictors() const {
  for (std::size_t layer = 0; layer < loaded.plan.layers.size(); ++layer) {
    if (ffn(layer).unit.predictor) return true;
  }
  return false;
}

bool ModelImpl::all_down_transposed() const {
  for (std::size_t layer = 0; layer < loaded.plan.layers.size(); ++layer) {
    if (!ffn(layer).unit.transposed_down) return false;
  }
  return true;
}

bool ModelImpl::has_true_zeros() const { return ops::has_true_zeros(loaded.activation); }

Sparsity ModelImpl::resolve(Sparsity mode) const {
  if (mode == Sparsity::kAuto) {
    if (has_predictors()) return Sparsity::kPredictor;
    return has_true_zeros() ? Sparsity::kExact : Sparsity::kDense;
  }
  const std::string reason = obstacle(*this, mode);
  if (!reason.empty()) {
    throw UnsupportedError(base::text(file.path().string(), ": mode '", sparsity_name(mode), "' is not possible: ",
                                      reason, "; use 'auto', or see the modes that `inspect` lists"));
  }
  return mode;
}

std::vector<backend::LayerMode> ModelImpl::layer_modes(Sparsity mode, const std::vector<float>& threshold) const {
  const std::size_t n_layers = loaded.plan.layers.size();
  if (threshold.size() > 1 && threshold.size() != n_layers) {
    throw InvalidArgument(
        base::text("threshold: expected one value or one per layer (", n_layers, "), got ", threshold.size()));
  }
  if (std::ranges::any_of(threshold, [](float value) { return std::isnan(value); })) {
    throw InvalidArgument("threshold: NaN is not a threshold; use a number (-inf computes every neuron)");
  }
  std::vector<backend::LayerMode> modes(n_layers);
  for (std::size_t layer = 0; layer < n_layers; ++layer) {
    const backend::Predictor& predictor = ffn(layer).unit.predictor;
    modes[layer].mode = mode;
    if (mode == Sparsity::kPredictor && !predictor) {
      modes[layer].mode = has_true_zeros() ? Sparsity::kExact : Sparsity::kDense;
    }
    modes[layer].threshold = threshold.empty()       ? predictor.threshold
                             : threshold.size() == 1 ? threshold[0]
                                                     : threshold[layer];
  }
  return modes;
}

const char* sparsity_name(Sparsity mode) noexcept {
  switch (mode) {
    case Sparsity::kAuto:
      return "auto";
    case Sparsity::kDense:
      return "dense";
    case Sparsity::kExact:
      return "exact";
    case Sparsity::kPredictor:
      return "predictor";
    case Sparsity::kThreshold:
      return "threshold";
  }
  return "?";
}

Sparsity parse_sparsity(std::string_view name) {
  if (name == sparsity_name(Sparsity::kAuto)) return Sparsity::kAuto;
  for (const Sparsity mode : kModes) {
    if (name == sparsity_name(mode)) return mode;
  }
  throw InvalidArgument(
      base::text("sparsity '", name, "' is unknown; expected auto, dense, exact, predictor or threshold"));
}

Model::Model(std::unique_ptr<ModelImpl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

std::shared_ptr<const Model> Model::load(const std::filesystem::path& path, const ModelOptions& options) {
  check_device(options.device);
  if (options.n_threads < 0) {
    throw InvalidArgument(base::text("n_threads: expected a number >= 0 (0: automatic), got ", options.n_threads));
  }
  const models::LoadOptions load_options{wanted_activation(options)};
  const FileAccess access = options.weights == WeightsMode::kRead ? FileAccess::kRead : FileAccess::kMmap;
  auto impl = std::make_unique<ModelImpl>(GgufFile::open(path, access), options);
  models::TensorSource source(impl->file);
  impl->loaded = models::load_model(source, load_options);
  impl->vectors = source.take_storage();
  load_tokenizer(*impl);
  impl->backend = ops::make_cpu_backend(kernels::select_kernels());
  impl->default_sparsity = impl->resolve(options.sparsity);
  impl->layer_modes(impl->default_sparsity, options.threshold);  // a bad threshold is an error of loading
  std::shared_ptr<const Model> model(new Model(std::move(impl)));
  base::log(LogLevel::kInfo, base::text(model->name(), ": mode ", sparsity_name(model->default_sparsity()), ", ",
                                        model->mode_summary(model->default_sparsity())));
  return model;
}

const GgufFile& Model::file() const { return impl_->file; }
bool Model::has_tokenizer() const { return impl_->tokenizer.has_value(); }

const Tokenizer& Model::tokenizer() const {
  if (!impl_->tokenizer) {
    throw UnsupportedError(base::text(impl_->file.path().string(), ": the file has no vocabulary; use token ids"));
  }
  return *impl_->tokenizer;
}

const std::string& Model::architecture() const { return impl_->loaded.hp.architecture; }

std::string Model::name() const {
  const std::string* name = impl_->file.find_string("general.name");
  return name != nullptr && !name->empty() ? *name : impl_->file.path().filename().string();
}

std::int32_t Model::n_vocab() const { return static_cast<std::int32_t>(impl_->loaded.plan.n_vocab); }
std::int32_t Model::n_ctx_train() const { return static_cast<std::int32_t>(impl_->loaded.hp.n_ctx_train); }
std::int32_t Model::d_model() const { return static_cast<std::int32_t>(impl_->loaded.hp.d_model); }
std::int32_t Model::d_ff() const { return static_cast<std::int32_t>(impl_->loaded.hp.d_ff); }
std::int32_t Model::n_layers() const { return static_cast<std::int32_t>(impl_->loaded.hp.n_layers); }
std::int32_t Model::n_heads() const { return static_cast<std::int32_t>(impl_->loaded.hp.n_heads); }
std::int32_t Model::n_kv_heads() const { return static_cast<std::int32_t>(impl_->loaded.hp.n_kv_heads); }
std::int32_t Model::head_dim() const { return static_cast<std::int32_t>(impl_->loaded.hp.head_dim); }

std::uint64_t Model::n_params() const {
  std::uint64_t total = 0;
  for (const TensorInfo& info : impl_->file.tensors()) {
    const bool predictor =
        info.name.ends_with(".fc1.weight") || info.name.ends_with(".fc2.weight") || info.name.ends_with(".fc2.bias");
    if (info.type != DType::kI32 && !predictor) total += info.n_cols() * info.n_rows();
  }
  return total;
}

std::uint64_t Model::weight_bytes() const {
  std::uint64_t total = 0;
  for (const TensorInfo& info : impl_->file.tensors()) total += info.n_bytes;
  return total;
}

std::string Model::activation() const { return ops::activation_text(impl_->loaded.activation); }
std::string Model::activation_source() const { return impl_->loaded.activation_source; }
bool Model::has_transposed_down() const { return impl_->all_down_transposed(); }
Sparsity Model::default_sparsity() const { return impl_->default_sparsity; }

std::vector<ModeInfo> Model::modes() const {
  std::vector<ModeInfo> infos;
  for (const Sparsity mode : kModes) {
    const std::string reason = obstacle(*impl_, mode);
    infos.push_back({mode, reason.empty(), reason.empty() ? skip_note(*impl_, mode) : reason});
  }
  return infos;
}

std::vector<LayerInfo> Model::layers() const {
  std::vector<LayerInfo> infos;
  for (std::size_t layer = 0; layer < impl_->loaded.plan.layers.size(); ++layer) {
    const backend::Predictor& predictor = impl_->ffn(layer).unit.predictor;
    infos.push_back(
        {predictor_kind_name(predictor.kind), static_cast<std::int32_t>(predictor.fc1.n_rows), predictor.threshold});
  }
  return infos;
}

std::string Model::mode_summary(Sparsity mode) const {
  if (mode != Sparsity::kPredictor) return "lossless";
  const std::string recall = mean_text(impl_->file.find_floats("powerinfer.predictor.recall"));
  const std::string density = mean_text(impl_->file.find_floats("powerinfer.predictor.density"));
  std::string text = "lossy: a predictor decides (";
  text += recall.empty() ? "recall not recorded" : "recorded recall " + recall;
  text += density.empty() ? ", density not recorded" : ", predicted density " + density;
  text += impl_->has_true_zeros() ? "); sparsity 'exact' or 'dense' is lossless" : "); sparsity 'dense' is lossless";
  return text;
}

const ModelOptions& Model::options() const { return impl_->options; }
const ModelImpl& Model::impl() const { return *impl_; }

}  // namespace powerinfer

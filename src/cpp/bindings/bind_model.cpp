// Model.
#include "common.h"

namespace powerinfer::bindings {
namespace {

WeightsMode weights_from(const std::string& name) {
  if (name == "auto") return WeightsMode::kAuto;
  if (name == "mmap") return WeightsMode::kMmap;
  if (name == "read") return WeightsMode::kRead;
  throw InvalidArgument("weights='" + name + "' is unknown; expected 'auto', 'mmap' or 'read'");
}

PyModel load(const std::filesystem::path& path, const std::string& sparsity, const py::object& threshold,
             const std::string& activation, int n_threads, const std::string& device, const std::string& weights) {
  const ModelOptions options{.sparsity = parse_sparsity(sparsity),
                             .threshold = thresholds_from(threshold),
                             .activation = activation,
                             .n_threads = n_threads,
                             .device = device,
                             .weights = weights_from(weights)};
  const py::gil_scoped_release release;
  return {Model::load(path, options)};
}

py::list modes(const PyModel& self) {
  py::list result;
  for (const ModeInfo& info : self.model->modes()) {
    result.append(py::make_tuple(sparsity_name(info.mode), info.available, to_str(info.note)));
  }
  return result;
}

py::list layers(const PyModel& self) {
  py::list result;
  for (const LayerInfo& info : self.model->layers()) {
    result.append(py::make_tuple(info.predictor_kind, info.predictor_rank, info.predictor_threshold));
  }
  return result;
}

}  // namespace

void bind_model(py::module_& module) {
  const auto of_model = [](auto method) { return [method](const PyModel& self) { return (*self.model.*method)(); }; };
  py::class_<PyModel>(module, "Model", "A loaded, validated model. Immutable; may be shared by threads.")
      .def(py::init(&load), py::arg("path"), py::kw_only(), py::arg("sparsity") = "auto",
           py::arg("threshold") = py::none(), py::arg("activation") = "", py::arg("n_threads") = 0,
           py::arg("device") = "auto", py::arg("weights") = "auto")
      .def_property_readonly("file", [](const PyModel& self) { return self.model->file(); })
      .def_property_readonly("has_tokenizer", of_model(&Model::has_tokenizer))
      .def_property_readonly(
          "tokenizer", [](const PyModel& self) { return self.model->tokenizer(); },
          "Raises UnsupportedError when the file has no vocabulary.")
      .def_property_readonly("architecture", [](const PyModel& self) { return to_str(self.model->architecture()); })
      .def_property_readonly("name", [](const PyModel& self) { return to_str(self.model->name()); })
      .def_property_readonly("n_vocab", of_model(&Model::n_vocab))
      .def_property_readonly("n_ctx_train", of_model(&Model::n_ctx_train))
      .def_property_readonly("d_model", of_model(&Model::d_model))
      .def_property_readonly("d_ff", of_model(&Model::d_ff))
      .def_property_readonly("n_layers", of_model(&Model::n_layers))
      .def_property_readonly("n_heads", of_model(&Model::n_heads))
      .def_property_readonly("n_kv_heads", of_model(&Model::n_kv_heads))
      .def_property_readonly("head_dim", of_model(&Model::head_dim))
      .def_property_readonly("n_params", of_model(&Model::n_params))
      .def_property_readonly("weight_bytes", of_model(&Model::weight_bytes))
      .def_property_readonly("activation", [](const PyModel& self) { return to_str(self.model->activation()); })
      .def_property_readonly("activation_source",
                             [](const PyModel& self) { return to_str(self.model->activation_source()); })
      .def_property_readonly("has_transposed_down", of_model(&Model::has_transposed_down))
      .def_property_readonly("default_sparsity",
                             [](const PyModel& self) { return sparsity_name(self.model->default_sparsity()); })
      .def_property_readonly("modes", modes, "[(name, available, note)]")
      .def_property_readonly("layers", layers, "[(predictor kind, its rank or 0, its threshold)]")
      .def(
          "mode_summary",
          [](const PyModel& self, const std::string& mode) {
            return to_str(self.model->mode_summary(parse_sparsity(mode)));
          },
          py::arg("mode"), "What a mode can lose and how to avoid it, one sentence.");
}

}  // namespace powerinfer::bindings

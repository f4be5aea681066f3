// The extension module powerinfer_py._core: the public C++ API, thin. The Python package on top gives it its face.
#include "common.h"
#include "powerinfer/log.h"

PYBIND11_MODULE(_core, module) {
  namespace bindings = powerinfer::bindings;
  module.doc() = "Binding of the powerinfer C++ library; see the package powerinfer_py.";
  module.def("version", [] { return powerinfer::version(); }, "Version of the linked library.");
  bindings::bind_errors(module);
  bindings::bind_log(module);
  bindings::bind_gguf(module);
  bindings::bind_gguf_writer(module);
  bindings::bind_quant(module);
  bindings::bind_tokenizer(module);
  bindings::bind_model(module);
  bindings::bind_sampler(module);
  bindings::bind_sinks(module);
  bindings::bind_context(module);
  bindings::bind_generator(module);
}

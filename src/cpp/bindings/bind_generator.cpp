// Generator: an iterator over (text, token, logprob, finish reason).
#include "common.h"

namespace powerinfer::bindings {
namespace {

struct PyGenerator {
  PyGenerator(std::shared_ptr<PyContext> used_context, const py::object& used_sampler, const py::object& tokens,
              GenerateOptions options)
      : context(std::move(used_context)),
        sampler_object(used_sampler),
        sampler(used_sampler.cast<PySampler&>()),
        generator(context->context, sampler.sampler, tokens_from(tokens), std::move(options)) {}

  std::shared_ptr<PyContext> context;
  py::object sampler_object;  // keeps `sampler` alive
  PySampler& sampler;
  Generator generator;
  bool prompt_is_done = false;
  std::atomic<bool> busy{false};
};

const char* reason_name(FinishReason reason) { return reason == FinishReason::kStop ? "stop" : "length"; }

py::tuple next(PyGenerator& self) {
  const BusyGuard guard(self.busy, "the generator");
  const BusyGuard sampler_guard(self.sampler.busy, "the sampler");
  std::optional<Piece> piece;
  if (self.prompt_is_done) {
    const py::gil_scoped_release release;
    piece = self.generator.next();
  } else {
    run_interruptible(self.context->context, [&] { piece = self.generator.next(); });
    self.prompt_is_done = true;
  }
  if (!piece) throw py::stop_iteration();
  py::object reason = py::none();
  if (piece->finish_reason != FinishReason::kNone) reason = py::str(reason_name(piece->finish_reason));
  return py::make_tuple(to_str(piece->text), piece->token, piece->logprob, reason);
}

}  // namespace

void bind_generator(py::module_& module) {
  py::class_<PyGenerator>(module, "Generator", "Iterates over (text, token, logprob, 'stop' | 'length' | None).")
      .def(py::init([](std::shared_ptr<PyContext> context, const py::object& sampler, const py::object& tokens,
                       int max_tokens, std::vector<std::string> stop, bool ignore_eos) {
             return std::make_unique<PyGenerator>(
                 std::move(context), sampler, tokens,
                 GenerateOptions{.max_tokens = max_tokens, .stop = std::move(stop), .ignore_eos = ignore_eos});
           }),
           py::arg("context"), py::arg("sampler"), py::arg("tokens"), py::kw_only(), py::arg("max_tokens") = -1,
           py::arg("stop") = std::vector<std::string>{}, py::arg("ignore_eos") = false)
      .def("__iter__", [](const py::object& self) { return self; })
      .def("__next__", next);
}

}  // namespace powerinfer::bindings

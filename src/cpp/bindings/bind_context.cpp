// Context, with taps and forced masks as Python callables.
#include <optional>

#include "common.h"

namespace powerinfer::bindings {

class CallableTap final : public TapSink {
 public:
  explicit CallableTap(py::function callable) : callable_(std::move(callable)) {}
  void on_tap(const TapEvent& event) override {
    const py::gil_scoped_acquire acquire;
    const std::vector<py::ssize_t> shape{static_cast<py::ssize_t>(event.n_rows), static_cast<py::ssize_t>(event.width)};
    callable_(event.layer, event.unit, to_array({event.data, event.n_rows * event.width}, shape));
  }

 private:
  py::function callable_;
};

class CallableMask final : public MaskSource {
 public:
  explicit CallableMask(py::function callable) : callable_(std::move(callable)) {}
  bool mask(int layer, int unit, const BatchEntry& entry, std::span<std::uint8_t> active) override {
    const py::gil_scoped_acquire acquire;
    const py::object result = callable_(layer, unit, entry.token, entry.position, entry.sequence);
    if (result.is_none()) return false;
    const auto flags = result.cast<py::array_t<bool, py::array::c_style | py::array::forcecast>>();
    if (flags.ndim() != 1 || static_cast<std::size_t>(flags.size()) != active.size()) {
      throw InvalidArgument("mask: expected [" + std::to_string(active.size()) + "] booleans, one per neuron, got " +
                            py::str(py::tuple(flags.attr("shape"))).cast<std::string>());
    }
    std::copy(flags.data(), flags.data() + flags.size(), active.begin());
    return true;
  }

 private:
  py::function callable_;
};

PyContext::PyContext(const PyModel& model, const ContextOptions& options) : context(model.model, options) {}
PyContext::~PyContext() = default;

namespace {

TapPoint tap_point_from(const std::string& name) {
  constexpr std::array<std::pair<const char*, TapPoint>, 8> kPoints{{{"layer_input", TapPoint::kLayerInput},
                                                                     {"attn_input", TapPoint::kAttnInput},
                                                                     {"attn_output", TapPoint::kAttnOutput},
                                                                     {"residual", TapPoint::kResidual},
                                                                     {"ffn_input", TapPoint::kFfnInput},
                                                                     {"gate", TapPoint::kGate},
                                                                     {"h", TapPoint::kH},
                                                                     {"ffn_output", TapPoint::kFfnOutput}}};
  std::string known;
  for (const auto& [known_name, point] : kPoints) {
    if (name == known_name) return point;
    known += std::string(known.empty() ? "" : ", ") + known_name;
  }
  throw InvalidArgument("tap point '" + name + "' is unknown; known: " + known);
}

KvType kv_type_from(const std::string& name) {
  if (name == "f16") return KvType::kF16;
  if (name == "f32") return KvType::kF32;
  throw InvalidArgument("kv_type '" + name + "' is unknown; expected 'f16' or 'f32'");
}

std::shared_ptr<PyContext> make(const PyModel& model, int n_ctx, int n_seqs, int n_batch, const std::string& kv_type,
                                const std::optional<std::string>& sparsity, const py::object& threshold, int n_threads,
                                int n_threads_batch, bool audit) {
  ContextOptions options{.n_ctx = n_ctx,
                         .n_seqs = n_seqs,
                         .n_batch = n_batch,
                         .kv_type = kv_type_from(kv_type),
                         .sparsity = std::nullopt,
                         .threshold = thresholds_from(threshold),
                         .n_threads = n_threads,
                         .n_threads_batch = n_threads_batch,
                         .audit = audit};
  if (sparsity) options.sparsity = parse_sparsity(*sparsity);
  const py::gil_scoped_release release;
  return std::make_shared<PyContext>(model, options);
}

/// A single token is soon done: the interpreter looks for signals by itself afterwards.
void compute(Context& context, std::size_t n_tokens, const std::function<void()>& work) {
  if (n_tokens > 1) {
    run_interruptible(context, work);
  } else {
    const py::gil_scoped_release release;
    work();
  }
}

/// `out` where given and fitting, else a new array.
py::array_t<float> output_array(const py::object& out, const std::vector<py::ssize_t>& shape) {
  if (out.is_none()) return py::array_t<float>(shape);
  using Exact = py::array_t<float, py::array::c_style>;
  if (!py::isinstance<Exact>(out)) throw InvalidArgument("out: expected a C-contiguous float32 array");
  auto array = py::reinterpret_borrow<py::array_t<float>>(out);
  const std::vector<py::ssize_t> found(array.shape(), array.shape() + array.ndim());
  if (found != shape || !array.writeable()) {
    const auto shown = [](const std::vector<py::ssize_t>& dims) { return py::str(py::tuple(py::cast(dims))); };
    throw InvalidArgument("out: expected a writable array of shape " + shown(shape).cast<std::string>() + ", got " +
                          shown(found).cast<std::string>() + (array.writeable() ? "" : ", read-only"));
  }
  return array;
}

py::array_t<float> eval(PyContext& self, const py::object& token_ids, bool all_logits, const py::object& out) {
  const std::vector<Token> tokens = tokens_from(token_ids);
  std::vector<py::ssize_t> shape{static_cast<py::ssize_t>(self.context.model()->n_vocab())};
  if (all_logits) shape.insert(shape.begin(), static_cast<py::ssize_t>(tokens.size()));
  py::array_t<float> result = output_array(out, shape);
  float* const data = result.mutable_data();
  // Copied before anybody else can start a call that reuses the buffer.
  compute(self.context, tokens.size(), [&] {
    const std::span<const float> logits = self.context.eval(tokens, all_logits);
    std::copy(logits.begin(), logits.end(), data);
  });
  return result;
}

py::array_t<float> forward(PyContext& self, const std::vector<std::tuple<Token, int, int, bool>>& entries) {
  Batch batch;
  py::ssize_t n_outputs = 0;
  for (const auto& [token, position, sequence, wants_output] : entries) {
    batch.push_back({token, position, sequence, wants_output});
    n_outputs += wants_output ? 1 : 0;
  }
  py::array_t<float> result({n_outputs, static_cast<py::ssize_t>(self.context.model()->n_vocab())});
  float* const data = result.mutable_data();
  compute(self.context, batch.size(), [&] {
    const std::span<const float> logits = self.context.forward(batch);
    std::copy(logits.begin(), logits.end(), data);
  });
  return result;
}

py::dict stats(const PyContext& self) {
  const Stats s = self.context.stats();
  py::dict result;
  result["n_prompt_tokens"] = s.n_prompt_tokens;
  result["prompt_seconds"] = s.prompt_seconds;
  result["n_generated_tokens"] = s.n_generated_tokens;
  result["generate_seconds"] = s.generate_seconds;
  result["density"] = s.density;
  result["predicted_density"] = s.predicted_density;
  py::list audits;
  for (const LayerAudit& audit : s.audit) {
    audits.append(py::make_tuple(audit.n_tokens, audit.n_active, audit.n_predicted, audit.n_hit));
  }
  result["audit"] = std::move(audits);
  result["weight_bytes_per_token"] = s.weight_bytes_per_token;
  result["n_threads"] = s.n_threads;
  result["n_threads_batch"] = s.n_threads_batch;
  result["isa"] = s.isa;
  result["mode"] = sparsity_name(s.mode);
  result["kv_bytes"] = s.kv_bytes;
  result["scratch_bytes"] = s.scratch_bytes;
  result["workers_seen"] = s.workers_seen;
  return result;
}

void set_tap(PyContext& self, const std::string& point_name, const py::object& listener) {
  const TapPoint point = tap_point_from(point_name);
  std::shared_ptr<TapSink> sink;
  if (py::isinstance<TapSink>(listener)) {
    sink = listener.cast<std::shared_ptr<TapSink>>();
  } else if (!listener.is_none()) {
    sink = std::make_shared<CallableTap>(listener.cast<py::function>());
  }
  self.context.set_tap(point, sink.get());
  self.taps[point] = std::move(sink);
}

void set_mask(PyContext& self, const std::optional<py::function>& callable) {
  auto source = callable ? std::make_unique<CallableMask>(*callable) : nullptr;
  self.context.set_mask_source(source.get());
  self.mask = std::move(source);
}

}  // namespace

void bind_context(py::module_& module) {
  py::class_<PyContext, std::shared_ptr<PyContext>>(module, "Context",
                                                    "State of sequences over a model; one thread at a time.")
      .def(py::init(&make), py::arg("model"), py::kw_only(), py::arg("n_ctx") = 0, py::arg("n_seqs") = 1,
           py::arg("n_batch") = 512, py::arg("kv_type") = "f16", py::arg("sparsity") = py::none(),
           py::arg("threshold") = py::none(), py::arg("n_threads") = 0, py::arg("n_threads_batch") = 0,
           py::arg("audit") = false)
      .def("eval", eval, py::arg("tokens"), py::arg("all_logits") = false, py::arg("out") = py::none(),
           "Appends tokens to sequence 0; float32 [n_vocab], or [n_tokens, n_vocab] with all_logits.")
      .def("forward", forward, py::arg("entries"),
           "Entries (token, position, sequence, wants_output); float32 [n_outputs, n_vocab].")
      .def(
          "n_past", [](const PyContext& self, int sequence) { return self.context.n_past(sequence); },
          py::arg("sequence") = 0)
      .def(
          "truncate", [](PyContext& self, int n, int sequence) { self.context.truncate(n, sequence); }, py::arg("n"),
          py::arg("sequence") = 0)
      .def("reset", [](PyContext& self) { self.context.reset(); })
      .def(
          "copy_sequence",
          [](PyContext& self, int from, int to) {
            const py::gil_scoped_release release;
            self.context.copy_sequence(from, to);
          },
          py::arg("source"), py::arg("target"))
      .def("cancel", [](PyContext& self) { self.context.cancel(); })
      .def_property_readonly("n_ctx", [](const PyContext& self) { return self.context.n_ctx(); })
      .def_property_readonly("n_seqs", [](const PyContext& self) { return self.context.n_seqs(); })
      .def_property_readonly("n_batch", [](const PyContext& self) { return self.context.n_batch(); })
      .def_property_readonly(
          "kv_type", [](const PyContext& self) { return self.context.kv_type() == KvType::kF16 ? "f16" : "f32"; })
      .def_property_readonly("sparsity", [](const PyContext& self) { return sparsity_name(self.context.sparsity()); })
      .def_property_readonly("stats", stats)
      .def("reset_stats", [](PyContext& self) { self.context.reset_stats(); })
      .def("set_tap", set_tap, py::arg("point"), py::arg("callback").none(true),
           "A TapSink or callback(layer, unit, float32 [rows, width]) for a named point; None detaches.")
      .def("set_mask", set_mask, py::arg("callback").none(true),
           "callback(layer, unit, token, position, sequence) -> bool [d_ff] or None; None detaches.");
}

}  // namespace powerinfer::bindings

// Sampler.
#include <optional>

#include "common.h"

namespace powerinfer::bindings {
namespace {

using FloatArray = py::array_t<float, py::array::c_style | py::array::forcecast>;

std::vector<std::uint8_t> mask_from(const py::object& mask) {
  if (mask.is_none()) return {};
  const auto flags = mask.cast<py::array_t<bool, py::array::c_style | py::array::forcecast>>();
  if (flags.ndim() != 1) throw InvalidArgument("sampler: the mask must have one dimension");
  return {flags.data(), flags.data() + flags.size()};
}

py::tuple apply(PySampler& self, const FloatArray& logits, const py::object& mask) {
  if (logits.ndim() != 1) throw InvalidArgument("sampler: the logits must have one dimension");
  const std::vector<std::uint8_t> allowed = mask_from(mask);
  const BusyGuard guard(self.busy, "the sampler");
  const Sampled sampled =
      self.sampler.apply(std::span<const float>(logits.data(), static_cast<std::size_t>(logits.size())), allowed);
  return py::make_tuple(sampled.token, sampled.logprob);
}

std::unique_ptr<PySampler> make(std::optional<std::uint32_t> seed, float temperature, int top_k, float top_p,
                                float min_p, float repeat_penalty, float frequency_penalty, float presence_penalty,
                                int repeat_last_n, std::vector<std::pair<Token, float>> logit_bias) {
  SamplerOptions options;
  if (seed) options.seed = *seed;
  options.temperature = temperature;
  options.top_k = top_k;
  options.top_p = top_p;
  options.min_p = min_p;
  options.repeat_penalty = repeat_penalty;
  options.frequency_penalty = frequency_penalty;
  options.presence_penalty = presence_penalty;
  options.repeat_last_n = repeat_last_n;
  options.logit_bias = std::move(logit_bias);
  return std::make_unique<PySampler>(Sampler(options));
}

}  // namespace

void bind_sampler(py::module_& module) {
  const SamplerOptions defaults;
  py::class_<PySampler>(module, "Sampler", "Chooses tokens; one thread at a time.")
      .def(py::init(&make), py::kw_only(), py::arg("seed") = py::none(), py::arg("temperature") = defaults.temperature,
           py::arg("top_k") = defaults.top_k, py::arg("top_p") = defaults.top_p, py::arg("min_p") = defaults.min_p,
           py::arg("repeat_penalty") = defaults.repeat_penalty,
           py::arg("frequency_penalty") = defaults.frequency_penalty,
           py::arg("presence_penalty") = defaults.presence_penalty, py::arg("repeat_last_n") = defaults.repeat_last_n,
           py::arg("logit_bias") = std::vector<std::pair<Token, float>>{})
      .def("apply", apply, py::arg("logits"), py::arg("mask") = py::none(),
           "(token, logprob) from logits [n_vocab]; mask [n_vocab] forbids tokens where it is False.")
      .def(
          "accept",
          [](PySampler& self, Token token) {
            const BusyGuard guard(self.busy, "the sampler");
            self.sampler.accept(token);
          },
          py::arg("token"), "Tells that a token has become part of the text; penalties look at it.")
      .def(
          "clone",
          [](PySampler& self) {
            const BusyGuard guard(self.busy, "the sampler");
            return std::make_unique<PySampler>(self.sampler);
          },
          "A sampler that continues independently from the same state.")
      .def_property_readonly("seed", [](const PySampler& self) { return self.sampler.seed(); });
}

}  // namespace powerinfer::bindings

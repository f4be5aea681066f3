// Tokenizer and StreamDecoder.
#include "common.h"

namespace powerinfer::bindings {
namespace {

/// str as UTF-8 (surrogates, which have no UTF-8, as U+FFFD) or bytes as they are.
std::string text_from(const py::object& text) {
  if (py::isinstance<py::bytes>(text)) return text.cast<std::string>();
  if (!py::isinstance<py::str>(text)) throw py::type_error("expected str or bytes");
  // Through UTF-16 a lone surrogate becomes U+FFFD and a pair becomes its character.
  py::ssize_t size = 0;
  if (const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size)) return {utf8, static_cast<std::size_t>(size)};
  PyErr_Clear();
  const py::object wide = text.attr("encode")("utf-16-le", "surrogatepass");
  return wide.attr("decode")("utf-16-le", "replace").cast<std::string>();
}

}  // namespace

void bind_tokenizer(py::module_& module) {
  py::class_<Tokenizer>(module, "Tokenizer", "Text to token ids and back. Immutable; may be shared by threads.")
      .def(py::init([](const std::filesystem::path& path) {
             const py::gil_scoped_release release;
             return Tokenizer::from_gguf(GgufFile::open(path));
           }),
           py::arg("path"))
      .def(
          "encode",
          [](const Tokenizer& tokenizer, const py::object& text, bool add_special, bool parse_special) {
            const std::string bytes = text_from(text);
            const py::gil_scoped_release release;
            return tokenizer.encode(bytes, {.add_special = add_special, .parse_special = parse_special});
          },
          py::arg("text"), py::arg("add_special") = true, py::arg("parse_special") = false,
          "Token ids of str or bytes (UTF-8).")
      .def(
          "decode",
          [](const Tokenizer& tokenizer, const py::object& tokens, bool special) {
            return py::bytes(tokenizer.decode(tokens_from(tokens), special));
          },
          py::arg("tokens"), py::arg("special") = false, "Bytes of the tokens; may end inside a UTF-8 character.")
      .def(
          "piece", [](const Tokenizer& t, Token token, bool special) { return py::bytes(t.piece(token, special)); },
          py::arg("token"), py::arg("special") = false, "Bytes of one token, no space removed.")
      .def(
          "text", [](const Tokenizer& t, Token token) { return to_str(t.text(token)); }, py::arg("token"),
          "The vocabulary's own spelling.")
      .def(
          "type", [](const Tokenizer& t, Token token) { return static_cast<int>(t.type(token)); }, py::arg("token"),
          "GGUF token type: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.")
      .def("score", &Tokenizer::score, py::arg("token"))
      .def(
          "find", [](const Tokenizer& t, const std::string& text) { return t.find(text); }, py::arg("text"),
          "Id of a vocabulary entry, -1 when absent.")
      .def("is_end_of_generation", &Tokenizer::is_end_of_generation, py::arg("token"))
      .def_property_readonly("end_of_generation",
                             [](const Tokenizer& t) {
                               const auto ids = t.end_of_generation();
                               return std::vector<Token>(ids.begin(), ids.end());
                             })
      .def_property_readonly("n_vocab", &Tokenizer::n_vocab)
      .def_property_readonly("model", &Tokenizer::model, "'llama' or 'gpt2'.")
      .def_property_readonly("pre_tokenizer", &Tokenizer::pre_tokenizer, "'' for 'llama' vocabularies.")
      .def_property_readonly("bos", &Tokenizer::bos, "-1 when the file has none; likewise eos and unknown.")
      .def_property_readonly("eos", &Tokenizer::eos)
      .def_property_readonly("unknown", &Tokenizer::unknown)
      .def_property_readonly("add_bos", &Tokenizer::add_bos)
      .def_property_readonly("add_eos", &Tokenizer::add_eos);

  py::class_<StreamDecoder>(module, "StreamDecoder", "Incremental detokenizing: returns only whole UTF-8 characters.")
      .def(py::init<Tokenizer, bool>(), py::arg("tokenizer"), py::arg("special") = false)
      .def(
          "push", [](StreamDecoder& d, Token token) { return to_str(d.push(token)); }, py::arg("token"),
          "Text that became complete with this token; may be empty.")
      .def("finish", [](StreamDecoder& d) { return to_str(d.finish()); }, "What is left at the end.");
}

}  // namespace powerinfer::bindings

// 2,000 seeded mutants of a small model through loading, tokenizing and evaluating: success or a typed error, bounded
// time and memory. And files that are well-formed GGUF but no model this build can compute.
#include <chrono>

#include "engine/tiny_model.h"
#include "fuzz/mutate.h"
#include "fuzz/small_model.h"
#include "gguf/temp_folder.h"
#include "powerinfer/context.h"
#include "powerinfer/error.h"
#include "test.h"

using namespace powerinfer;
using namespace pi_test;

namespace {

/// Loads, tokenizes and evaluates in every mode the model offers.
void use(const std::filesystem::path& path) {
  const auto model = Model::load(path);
  std::vector<Token> tokens = {0, 1};
  if (model->has_tokenizer()) {
    tokens = model->tokenizer().encode("ab c\xF0\x9F\xA6\x99 <s>", {.add_special = true, .parse_special = true});
    (void)model->tokenizer().decode(tokens, true);
  }
  tokens.resize(std::min<std::size_t>(tokens.size(), 4));
  for (const ModeInfo& info : model->modes()) {
    if (!info.available) continue;
    ContextOptions options;
    options.n_ctx = std::min(model->n_ctx_train(), 16);
    options.sparsity = info.mode;
    options.n_threads = 1;
    Context context(model, options);
    (void)context.eval(
        std::span(tokens).first(std::min<std::size_t>(tokens.size(), static_cast<std::size_t>(options.n_ctx))));
  }
}

}  // namespace

TEST(mutants_compute_or_give_a_typed_error) {
  constexpr std::uint64_t kMutants = 2000;
  const TempFolder folder;
  const std::filesystem::path path = folder / "model.gguf";
  pi_fuzz::SmallModel::write(path);
  const std::string original = read_file(path);
  const auto header_bytes = static_cast<std::size_t>(GgufFile::open(path).tensors()[0].offset);
  use(path);

  int n_computed = 0;
  int n_refused = 0;
  double slowest_ms = 0;
  for (std::uint64_t seed = 1; seed <= kMutants; ++seed) {
    const std::filesystem::path mutant = folder / ("mutant-" + std::to_string(seed) + ".gguf");
    write_file(mutant, pi_fuzz::Mutator(seed).mutate(original, header_bytes));
    const auto start = std::chrono::steady_clock::now();
    try {
      use(mutant);
      ++n_computed;
    } catch (const Error&) {
      ++n_refused;
    } catch (const std::exception& error) {
      pi_test::fail(__FILE__, __LINE__, "seed " + std::to_string(seed) + ": " + error.what());
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    slowest_ms = std::max(slowest_ms, took.count());
    std::filesystem::remove(mutant);
  }
  std::printf("%d mutants computed, %d refused, slowest %.0f ms\n", n_computed, n_refused, slowest_ms);
  CHECK(n_computed > 50);
  CHECK(n_refused > 500);
  CHECK(slowest_ms < 5000);
}

namespace {

/// Builds a small llama key by key, leaving out or replacing one thing.
class Changed {
 public:
  using Change = std::function<void(std::string& key, GgufValue& value)>;
  static GgufValue text(const char* value) { return GgufScalar(std::string(value)); }
  static GgufValue number(std::uint32_t value) { return GgufScalar(value); }
};

/// A copy of the model at `from` with keys changed by `edit` (an empty name drops the key) and extra keys appended.
void rewrite(const std::filesystem::path& from, const std::filesystem::path& to, const Changed::Change& edit,
             const std::vector<std::pair<std::string, GgufValue>>& extra = {},
             const std::function<void(TensorInfo&)>& edit_tensor = {}) {
  const GgufFile file = GgufFile::open(from);
  GgufWriter writer(file.has_powerinfer_magic() ? GgufWriter::Magic::kPowerInfer : GgufWriter::Magic::kGguf);
  for (auto [key, value] : file.metadata()) {
    edit(key, value);
    if (!key.empty()) writer.add(key, value);
  }
  for (const auto& [key, value] : extra) writer.add(key, value);
  for (const TensorInfo& tensor : file.tensors()) {
    TensorInfo changed = tensor;
    if (edit_tensor) edit_tensor(changed);
    if (!changed.name.empty()) writer.add_tensor(changed.name, changed.type, changed.shape, file.data(tensor));
  }
  writer.write(to);
}

struct KeyCase {
  const char* key;   // key to change, or tensor name with `tensor`
  GgufValue value;   // its new value
  const char* part;  // of the message
};

}  // namespace

TEST(keys_that_make_no_model_are_named) {
  const TempFolder folder;
  const tiny::ModelFile source({});
  const std::vector<KeyCase> format_cases = {
      {"llama.embedding_length", Changed::number(0), "embedding_length"},
      {"llama.block_count", Changed::number(0), "block_count"},
      {"llama.block_count", Changed::number(5), "blk.2."},
      {"llama.feed_forward_length", Changed::number(511), "ffn_"},
      {"llama.attention.head_count", Changed::number(3), "head_count"},
      {"llama.attention.head_count", Changed::number(0), "head_count"},
      {"llama.attention.head_count_kv", Changed::number(3), "head_count_kv"},
      {"llama.context_length", Changed::number(0xFFFFFFFF), "context_length"},
      {"llama.attention.layer_norm_rms_epsilon", GgufScalar(std::nanf("")), "epsilon"},
      {"llama.attention.layer_norm_rms_epsilon", Changed::text("small"), "epsilon"},
      {"general.architecture", Changed::number(3), "general.architecture"},
  };
  int index = 0;
  for (const KeyCase& each : format_cases) {
    const auto path = folder / ("format-" + std::to_string(index++) + ".gguf");
    rewrite(source.path(), path, [&](std::string& key, GgufValue& value) {
      if (key == each.key) value = each.value;
    });
    CHECK_THROWS(Model::load(path), FormatError, each.part);
  }
  const std::vector<KeyCase> unsupported_cases = {
      {"general.architecture", Changed::text("mamba"), "llama, bamboo, falcon, opt"},
      {"general.architecture", Changed::text("generic.gpu_index"), "split file"},
      {"llama.hidden_activation", Changed::text("swish"), "fatrelu"},
  };
  for (const KeyCase& each : unsupported_cases) {
    const auto path = folder / ("unsupported-" + std::to_string(index++) + ".gguf");
    rewrite(source.path(), path, [&](std::string& key, GgufValue& value) {
      if (key == each.key) value = each.value;
    });
    CHECK_THROWS(Model::load(path), UnsupportedError, each.part);
  }
}

TEST(extra_keys_are_checked) {
  const TempFolder folder;
  const tiny::ModelFile source({});
  const auto keep = [](std::string&, GgufValue&) {};
  int index = 0;
  const auto with = [&](const char* key, GgufValue value) {
    const auto path = folder / ("extra-" + std::to_string(index++) + ".gguf");
    rewrite(source.path(), path, keep, {{key, std::move(value)}});
    return path;
  };
  CHECK_THROWS(Model::load(with("powerinfer.version", Changed::number(2))), UnsupportedError, "powerinfer.version");
  CHECK(Model::load(with("powerinfer.predictor.kind", Changed::text("svd")))->layers()[0].predictor_kind == "svd");
  CHECK_THROWS(Model::load(with("powerinfer.predictor.kind", Changed::text("sign"))), FormatError, "sign");
  CHECK_THROWS(Model::load(with("powerinfer.predictor.kind", Changed::text("magic"))), UnsupportedError, "magic");
  CHECK_THROWS(Model::load(with("powerinfer.predictor.kind", GgufArray(std::vector<std::string>{"mlp"}))), FormatError,
               "expected 2 entries");
  CHECK_THROWS(Model::load(with("powerinfer.predictor.input", Changed::text("nowhere"))), UnsupportedError,
               "ffn_input");
  CHECK_THROWS(Model::load(with("powerinfer.predictor.threshold", GgufArray(std::vector<float>{0.0F}))), FormatError,
               "expected 2 entries");
  CHECK_THROWS(Model::load(with("powerinfer.sparse_threshold", GgufScalar(std::nanf("")))), FormatError, "NaN");
  CHECK_THROWS(Model::load(with("powerinfer.hot_neurons", GgufArray(std::vector<std::uint32_t>{1, 1}))), FormatError,
               "blk.0.ffn_gate.weight");
  CHECK_THROWS(Model::load(with("powerinfer.neuron_order", Changed::text("random"))), UnsupportedError, "activation");
  CHECK_THROWS(Model::load(with("llama.rope.scaling.type", Changed::text("yarn"))), UnsupportedError, "yarn");
  CHECK_THROWS(Model::load(with("llama.rope.dimension_count", Changed::number(7))), FormatError, "dimension_count");
  CHECK_THROWS(Model::load(with("llama.expert_count", Changed::number(8))), UnsupportedError, "expert");
  CHECK_THROWS(Model::load(with("tokenizer.ggml.model", Changed::text("bert"))), UnsupportedError, "bert");
  CHECK_THROWS(Model::load(with("tokenizer.ggml.tokens", GgufArray(std::vector<std::string>{"a"}))), FormatError,
               "vocabulary 1 tokens");
}

TEST(a_giant_head_is_refused_at_once) {
  const TempFolder folder;
  const tiny::ModelFile source({});
  const auto path = folder / "giant.gguf";
  const std::uint32_t giant = 0x7FFFFFFE;
  rewrite(source.path(), path, [](std::string&, GgufValue&) {},
          {{"llama.attention.key_length", Changed::number(giant)},
           {"llama.attention.value_length", Changed::number(giant)}});
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS(Model::load(path), FormatError, "at most 65536");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(2));
}

TEST(keys_that_change_the_computation_are_refused) {
  const TempFolder folder;
  const tiny::ModelFile source({});
  int index = 0;
  const auto with = [&](const char* key, GgufValue value) {
    const auto path = folder / ("foreign-" + std::to_string(index++) + ".gguf");
    rewrite(source.path(), path, [](std::string&, GgufValue&) {}, {{key, std::move(value)}});
    return path;
  };
  for (const char* key : {"llama.attention.scale", "llama.attention.clamp_kqv", "llama.logit_scale",
                          "llama.attention.max_alibi_bias", "llama.final_logit_softcapping"}) {
    CHECK_THROWS(Model::load(with(key, GgufScalar(2.0F))), UnsupportedError, key);
  }
  CHECK_THROWS(Model::load(with("llama.attention.causal", GgufScalar(false))), UnsupportedError, "causal");
  CHECK_THROWS(Model::load(with("llama.attention.sliding_window", Changed::number(64))), UnsupportedError, "window");
  CHECK(Model::load(with("llama.attention.sliding_window", Changed::number(4096))) != nullptr);
}

TEST(the_magic_must_be_true) {
  const TempFolder folder;
  const auto with_magic = [&](const tiny::Options& options, const char* magic) {
    const tiny::ModelFile source(options);
    std::string bytes = read_file(source.path());
    bytes.replace(0, 4, magic);
    const auto path = folder / (std::string(magic) + ".gguf");
    write_file(path, bytes);
    return path;
  };
  CHECK_THROWS(Model::load(with_magic({}, "GGUF")), FormatError, "magic GGUF but");
  CHECK_THROWS(Model::load(with_magic({.transposed_down = false, .predictors = false}, "PWRI")), FormatError,
               "magic PWRI but");
}

namespace {

/// A copy of a tiny model with an I32 tensor for each layer, and keys.
std::filesystem::path with_side_data(const std::filesystem::path& path, const char* tensor, DType type,
                                     const std::vector<std::int32_t>& values,
                                     const std::vector<std::pair<std::string, GgufValue>>& keys = {}) {
  const tiny::ModelFile source({});
  const GgufFile file = GgufFile::open(source.path());
  GgufWriter writer(GgufWriter::Magic::kPowerInfer);
  for (const auto& [key, value] : file.metadata()) writer.add(key, value);
  for (const auto& [key, value] : keys) writer.add(key, value);
  for (const TensorInfo& info : file.tensors()) writer.add_tensor(info.name, info.type, info.shape, file.data(info));
  for (const char* layer : {"blk.0.", "blk.1."}) {
    if (!values.empty()) writer.add_tensor(std::string(layer) + tensor, type, {values.size()}, values.data());
  }
  writer.write(path);
  return path;
}

}  // namespace

TEST(side_data_is_checked) {
  const TempFolder folder;
  std::vector<std::int32_t> ids(512);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i ^ 1);
  const std::pair<std::string, GgufValue> reordered = {"powerinfer.neuron_order", Changed::text("activation")};
  const auto good = with_side_data(folder / "good.gguf", "ffn_neuron_id", DType::kI32, ids, {reordered});
  CHECK(Model::load(good) != nullptr);
  CHECK(Model::load(with_side_data(folder / "counts.gguf", "ffn_activation_count", DType::kI32, ids)) != nullptr);

  const auto load_ids = [&](const char* name, std::size_t at, std::int32_t value) {
    std::vector<std::int32_t> changed = ids;
    changed[at] = value;
    return Model::load(with_side_data(folder / name, "ffn_neuron_id", DType::kI32, changed));
  };
  CHECK_THROWS(load_ids("twice.gguf", 3, 0), FormatError, "0 twice");
  CHECK_THROWS(load_ids("negative.gguf", 3, -5), FormatError, "got -5");
  CHECK_THROWS(load_ids("large.gguf", 3, 512), FormatError, "got 512");
  const std::vector<std::int32_t> few = {1, 2, 3};
  CHECK_THROWS(Model::load(with_side_data(folder / "few.gguf", "ffn_activation_count", DType::kI32, few)), FormatError,
               "ffn_activation_count");
  CHECK_THROWS(Model::load(with_side_data(folder / "float.gguf", "ffn_activation_count", DType::kF32, ids)),
               FormatError, "expected I32");
  CHECK_THROWS(Model::load(with_side_data(folder / "none.gguf", "", DType::kI32, {}, {reordered})), FormatError,
               "ffn_neuron_id");
  const auto with_key = [&](const char* key, GgufValue value) {
    return with_side_data(folder / "key.gguf", "", DType::kI32, {}, {{key, std::move(value)}});
  };
  using Floats = std::vector<float>;
  CHECK_THROWS(Model::load(with_key("powerinfer.predictor.recall", GgufArray(Floats{1.0F}))), FormatError, "2 entries");
  CHECK_THROWS(Model::load(with_key("powerinfer.predictor.recall", GgufArray(Floats{1.0F, 1.5F}))), FormatError, "1.5");
  CHECK_THROWS(Model::load(with_key("powerinfer.predictor.density", Changed::text("half"))), FormatError, "density");
  CHECK_THROWS(Model::load(with_key("powerinfer.threshold.cut", GgufArray(Floats{0.0F, -1.0F}))), FormatError, "cut");
  CHECK_THROWS(Model::load(with_key("powerinfer.fingerprint", Changed::number(1))), FormatError, "fingerprint");
  CHECK_THROWS(Model::load(with_key("powerinfer.activation.tokens", Changed::text("many"))), FormatError, "tokens");
}

TEST(tensors_are_checked) {
  const TempFolder folder;
  const tiny::ModelFile source({});
  const auto keep = [](std::string&, GgufValue&) {};
  const auto edited = [&](const char* file, const std::function<void(TensorInfo&)>& edit) {
    const auto path = folder / file;
    rewrite(source.path(), path, keep, {}, edit);
    return path;
  };
  const auto rename = [](const char* from, const char* to) {
    return [=](TensorInfo& info) {
      if (info.name == from) info.name = to;
    };
  };
  CHECK_THROWS(Model::load(edited("a.gguf", rename("blk.1.ffn_up.weight", ""))), FormatError, "blk.1.ffn_up.weight");
  CHECK_THROWS(Model::load(edited("b.gguf", rename("output_norm.weight", "output_nrom.weight"))), FormatError,
               "output_norm.weight");
  CHECK_THROWS(Model::load(edited("c.gguf", rename("output.weight", "blk.0.ffn_gate_inp.weight"))), UnsupportedError,
               "ffn_gate_inp");
  CHECK_THROWS(Model::load(edited("d.gguf",
                                  [](TensorInfo& info) {
                                    if (info.name == "blk.0.attn_q.weight") info.shape = {512, 128};
                                  })),
               FormatError, "expected [256, 256], got [512, 128]");
  CHECK_THROWS(Model::load(edited("e.gguf",
                                  [](TensorInfo& info) {
                                    if (info.name == "blk.0.attn_q.weight") info.type = DType::kI32;
                                  })),
               FormatError, "I32");
  CHECK_THROWS(Model::load(edited("f.gguf",
                                  [](TensorInfo& info) {
                                    if (info.name == "blk.0.fc2.weight") info.shape = {512, 256};
                                  })),
               FormatError, "fc2");
}

TEST_MAIN()

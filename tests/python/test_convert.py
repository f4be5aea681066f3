"""Checkpoints of every class to files: logits as transformers computes them, the same bytes from every form."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
for package in ("safetensors", "tokenizers"):
    pytest.importorskip(package, reason=f"{package} is not installed")

from helpers.checkpoints import N_VOCAB, TEMPLATE, change_config, make_model, save  # noqa: E402
from helpers.compare import mean_kl, spread_error  # noqa: E402
from helpers.llama_cpp_witness import llama_cpp_logits  # noqa: E402

import powerinfer_py as pi  # noqa: E402
from powerinfer_py.convert import convert  # noqa: E402
from powerinfer_py.files import GgufInput  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("POWERINFER_SHARED", REPOSITORY.parent / "shared/data"))
REFERENCE = next((p for p in (SHARED, SHARED / "data") if (p / "reference").is_dir()), SHARED) / "reference/llama-hf"
TOLERANCE = 1e-4
N_TOKENS = 60
TOKENS = np.random.default_rng(7).integers(0, N_VOCAB, N_TOKENS)

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-relu": ("Llama", {"hidden_act": "relu"}),
    "llama-relu2": ("Llama", {"hidden_act": "relu2"}),
    "llama-silu": ("Llama", {"hidden_act": "silu"}),
    "llama-gelu": ("Llama", {"hidden_act": "gelu"}),
    "llama-gelu-tanh": ("Llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "hidden_act": "relu"}),
    "llama-head-dim": ("Llama", {"head_dim": 24}),
    "llama-mqa": ("Llama", {"num_key_value_heads": 1}),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3, "hidden_act": "relu"}),
    "llama-linear": ("Llama", {"rope_parameters": LINEAR}),
    "llama-yarn": ("Llama", {"rope_parameters": YARN, "max_position_embeddings": 128}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-relu": ("Mistral", {"hidden_act": "relu", "sliding_window": None, "head_dim": 32}),
    "falcon-7b": ("Falcon", {"multi_query": True, "new_decoder_architecture": False, "activation": "relu"}),
    "falcon-gelu": ("Falcon", {"multi_query": True, "new_decoder_architecture": False}),
    "falcon-40b": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-mha": ("Falcon", {"multi_query": False, "new_decoder_architecture": False, "activation": "relu"}),
    "opt": ("OPT", {}),
    "opt-gelu": ("OPT", {"activation_function": "gelu"}),
    "opt-no-bias": ("OPT", {"enable_bias": False, "layer_norm_elementwise_affine": False}),
}


def logits_of(path: Path, sparsity: str = "auto") -> np.ndarray:
    with (
        pi.Model(path, n_threads=2) as model,
        pi.Context(model, kv_type="f32", sparsity=sparsity) as context,
    ):
        return context.eval(TOKENS, all_logits=True)


def witness_of(model: Any) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(TOKENS)[None]).logits[0].double().numpy()


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    name, settings = CASES[case]
    model = make_model(name, **settings)
    folder = save(model, tmp_path / "hf")
    report = convert(folder, tmp_path / "m.gguf", outtype="f32")
    assert spread_error(logits_of(report.path), witness_of(model)) < TOLERANCE
    sparse = "relu" in report.activation
    with GgufInput(report.path) as file:
        assert file.is_powerinfer == sparse
        assert ("blk.0.ffn_down_t.weight" in file.tensors) == sparse
        assert file.get("tokenizer.chat_template") == TEMPLATE
        assert file.computed_fingerprint() == report.fingerprint


@pytest.mark.parametrize(
    "changes",
    [
        {
            "rope_parameters": None,
            "rope_scaling": {"type": "yarn", "factor": 4.0},
            "original_max_position_embeddings": 32,
        },
        {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_parameters": None, "rope_theta": 500.0, "rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"rope_parameters": None, "rope_scaling": {k: v for k, v in LLAMA3.items() if "original" not in k}},
    ],
)
def test_positions_are_read_as_transformers_reads_them(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = save(make_model("Mistral", sliding_window=64), tmp_path / "hf", config=changes)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    report = convert(folder, tmp_path / "m.gguf", outtype="f32")
    assert spread_error(logits_of(report.path), witness_of(model)) < TOLERANCE


class _FatRelu(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.where(x > 0.3, x, 0.0)


def test_sparse_llama_has_a_cut(tmp_path: Path) -> None:
    model = make_model("Llama", hidden_act="relu")
    settings = {"architectures": ["SparseLlamaForCausalLM"], "hidden_act": "fatrelu", "hidden_act_param": 0.3}
    folder = save(model, tmp_path / "hf", config=settings)
    for layer in model.model.layers:
        layer.mlp.act_fn = _FatRelu()
    report = convert(folder, tmp_path / "m.gguf", outtype="f32")
    assert report.activation == "fatrelu:0.3"
    assert spread_error(logits_of(report.path), witness_of(model)) < TOLERANCE


class _Drelu(torch.nn.Module):
    """Bamboo's FFN: both halves through the ReLU."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, x: Any) -> Any:
        return self.mlp.down_proj(torch.relu(self.mlp.gate_proj(x)) * torch.relu(self.mlp.up_proj(x)))


def test_bamboo_is_drelu_whatever_its_configuration_says(tmp_path: Path) -> None:
    model = make_model("Mistral", hidden_act="relu", sliding_window=None)
    config = {"architectures": ["BambooForCausalLM"], "model_type": "bamboo", "hidden_act": "silu"}
    folder = save(model, tmp_path / "hf", config=config)
    for layer in model.model.layers:
        layer.mlp = _Drelu(layer.mlp)
    report = convert(folder, tmp_path / "m.gguf", outtype="f32")
    assert (report.architecture, report.activation) == ("bamboo", "drelu")
    assert spread_error(logits_of(report.path), witness_of(model)) < TOLERANCE


def test_every_form_of_a_checkpoint_gives_the_same_bytes(tmp_path: Path) -> None:
    model = make_model("Llama", hidden_act="relu").to(torch.bfloat16)
    single = save(model, tmp_path / "single")
    sharded = save(model, tmp_path / "sharded", max_shard_size="50KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    binary = save(model, tmp_path / "binary")
    (binary / "model.safetensors").unlink()
    torch.save(model.state_dict(), binary / "pytorch_model.bin")
    outputs = []
    for folder in (single, sharded, binary):
        outputs.append(tmp_path / f"{folder.name}.gguf")
        convert(folder, outputs[-1])
        convert(folder, outputs[-1], force=True, n_threads=1)
    assert len({path.read_bytes() for path in outputs}) == 1
    with GgufInput(outputs[0]) as file:
        assert file.tensor("blk.0.attn_q.weight").type == "BF16"


def test_types_and_fallbacks(tmp_path: Path) -> None:
    folder = save(make_model("Llama", hidden_act="relu", intermediate_size=200), tmp_path / "hf")
    report = convert(folder, tmp_path / "m.gguf", outtype="q4_k")
    assert any("Q4_K" in note and "Q8_0" in note for note in report.notes)
    with GgufInput(report.path) as file:
        assert file.tensor("blk.0.ffn_gate.weight").type == "Q8_0"
    logits_of(report.path)


@pytest.mark.parametrize("outtype", ["f16", "q8_0", "q4_0", "q4_1", "q5_0", "q4_k", "q5_k", "q6_k"])
def test_from_a_file_as_from_the_checkpoint(outtype: str, tmp_path: Path) -> None:
    folder = save(make_model("Llama", hidden_act="relu", hidden_size=256, intermediate_size=256), tmp_path / "hf")
    whole = convert(folder, tmp_path / "f32.gguf", outtype="f32")
    direct = convert(folder, tmp_path / "direct.gguf", outtype=outtype)
    again = convert(whole.path, tmp_path / "again.gguf", outtype=outtype)
    assert direct.fingerprint == again.fingerprint
    with GgufInput(again.path) as file:
        assert file.tensor("blk.1.ffn_down_t.weight").type == outtype.upper()


def test_plain_and_back(tmp_path: Path) -> None:
    folder = save(make_model("Llama", hidden_act="relu"), tmp_path / "hf")
    report = convert(folder, tmp_path / "t.gguf", outtype="f32")
    with pytest.raises(pi.InvalidArgument, match="--force-plain"):
        convert(report.path, tmp_path / "p.gguf", layout="plain")
    plain = convert(report.path, tmp_path / "p.gguf", layout="plain", force_plain=True)
    assert any("another activation" in note for note in plain.notes)
    with GgufInput(plain.path) as file:
        assert not file.is_powerinfer
        assert "blk.0.ffn_down.weight" in file.tensors
    back = convert(plain.path, tmp_path / "b.gguf")
    assert back.fingerprint == report.fingerprint
    assert spread_error(logits_of(plain.path), logits_of(back.path).astype(np.float64)) < TOLERANCE


def test_quantized_columns_need_permission(tmp_path: Path) -> None:
    folder = save(make_model("Llama", hidden_act="relu"), tmp_path / "hf")
    plain = convert(folder, tmp_path / "p.gguf", outtype="q8_0", layout="plain", force_plain=True)
    with pytest.raises(pi.InvalidArgument, match="--allow-requantize"):
        convert(plain.path, tmp_path / "t.gguf")
    assert not (tmp_path / "t.gguf").exists()
    report = convert(plain.path, tmp_path / "t.gguf", allow_requantize=True)
    assert report.requantization_error is not None
    assert 0 < report.requantization_error < 0.02


def test_a_silu_model_stays_plain(tmp_path: Path) -> None:
    folder = save(make_model("Llama", hidden_act="silu"), tmp_path / "hf")
    with pytest.raises(pi.InvalidArgument, match="silu"):
        convert(folder, tmp_path / "m.gguf", layout="transposed")


@pytest.mark.parametrize(
    "case", ["llama-silu", "llama-tied", "llama-head-dim", "llama-llama3", "mistral", "falcon-gelu"]
)
def test_plain_files_are_llama_cpps(case: str, tmp_path: Path) -> None:
    name, settings = CASES[case]
    silu = {} if name == "Falcon" else {"hidden_act": "silu"}
    folder = save(make_model(name, **(settings | silu)), tmp_path / "hf")
    report = convert(folder, tmp_path / "m.gguf", outtype="f32", layout="plain")
    theirs = llama_cpp_logits(report.path, TOKENS.tolist(), f32_cache=True)
    assert mean_kl(theirs, logits_of(report.path)) < 1e-5
    dumped = gguf.GGUFReader(report.path)
    assert {tensor.name for tensor in dumped.tensors} >= {"token_embd.weight", "blk.2.ffn_down.weight"}


needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason=f"no {REFERENCE}")


@needs_reference
def test_compatible_equals_the_reference_converter(tmp_path: Path) -> None:
    parts = {"predictors": REFERENCE / "predictors", "activation": REFERENCE / "activation"}
    report = convert(REFERENCE / "hf", tmp_path / "m.gguf", outtype="f16", compatible=True, **parts)
    with GgufInput(report.path) as ours, GgufInput(REFERENCE / "ref.powerinfer.gguf") as theirs:
        assert set(ours.tensors) == set(theirs.tensors)
        for name, tensor in theirs.tensors.items():
            assert (ours.tensor(name).type, tuple(ours.tensor(name).shape)) == (tensor.type, tuple(tensor.shape))
            assert np.array_equal(ours.read(name), theirs.read(name)), name
        for key, value in theirs.metadata.items():
            assert ours.metadata[key].type == value.type, key
            assert np.array_equal(ours.metadata[key].value, value.value), key
    assert report.side_file is not None
    assert report.side_file.exists()


@needs_reference
def test_compatible_falcon_has_the_published_layout(tmp_path: Path) -> None:
    published = REFERENCE.parent / "falcon7b-f16.powerinfer.gguf"
    head_dim, n_heads = 32, 4
    with GgufInput(published) as theirs:
        values = {name: _rows(theirs, name) for name in theirs.tensors}
        expected = {name: (tensor.type, tuple(tensor.shape)) for name, tensor in theirs.tensors.items()}
        metadata = dict(theirs.metadata)
    state = {
        "transformer.word_embeddings.weight": values["token_embd.weight"],
        "lm_head.weight": values["output.weight"],
    }
    state |= {f"transformer.ln_f.{part}": values[f"output_norm.{part}"] for part in ("weight", "bias")}
    (tmp_path / "predictors").mkdir()
    for layer in range(3):
        ours, name = f"blk.{layer}.", f"transformer.h.{layer}."
        queries, keys, rest = np.split(values[ours + "attn_qkv.weight"], [n_heads * head_dim, (n_heads + 1) * head_dim])
        state |= {
            name + "self_attention.query_key_value.weight": np.concatenate([queries, keys, rest]),
            name + "self_attention.dense.weight": values[ours + "attn_output.weight"],
            name + "mlp.dense_h_to_4h.weight": values[ours + "ffn_up.weight"],
            name + "mlp.dense_4h_to_h.weight": values[ours + "ffn_down_t.weight"].T,
        }
        state |= {f"{name}input_layernorm.{part}": values[f"{ours}attn_norm.{part}"] for part in ("weight", "bias")}
        predictor = {f"fc{n}.weight": torch.tensor(values[f"{ours}fc{n}.weight"]) for n in (1, 2)}
        torch.save(predictor, tmp_path / f"predictors/model_{layer}.pt")
    (tmp_path / "predictors/config.json").write_text(json.dumps({"sparse_threshold": 0.6}))
    config = {
        "architectures": ["FalconForCausalLM"], "model_type": "falcon", "activation": "relu", "hidden_size": 128,
        "ffn_hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": n_heads, "vocab_size": 512,
        "multi_query": True, "new_decoder_architecture": False, "tie_word_embeddings": False,
    }  # fmt: skip
    folder = tmp_path / "hf"
    folder.mkdir()
    tensors = {name: torch.tensor(np.ascontiguousarray(array)) for name, array in state.items()}
    safetensors_torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.model").write_bytes((REFERENCE / "hf/tokenizer.model").read_bytes())
    report = convert(folder, tmp_path / "m.gguf", outtype="f16", compatible=True, predictors=tmp_path / "predictors")
    with GgufInput(report.path) as ours_file:
        assert {name: (tensor.type, tuple(tensor.shape)) for name, tensor in ours_file.tensors.items()} == expected
        for name, array in values.items():
            assert np.array_equal(_rows(ours_file, name), array), name
        for key, value in metadata.items():
            if key.startswith(("falcon.", "powerinfer.")):
                assert ours_file.metadata[key].type == value.type, key
                assert np.array_equal(ours_file.metadata[key].value, value.value), key


def _rows(file: GgufInput, name: str) -> np.ndarray:
    """A tensor of a reference file, [rows, columns] or [columns], F16 or F32."""
    tensor = file.tensor(name)
    return file.read(name).reshape(-1).view({"F16": "<f2", "F32": "<f4"}[tensor.type]).reshape(tensor.shape[::-1])


@needs_reference
def test_parts_of_the_reference_in_one_file(tmp_path: Path) -> None:
    parts = {"predictors": REFERENCE / "predictors", "activation": REFERENCE / "activation"}
    report = convert(REFERENCE / "hf", tmp_path / "m.gguf", **parts)
    with GgufInput(report.path) as file:
        assert file.get("powerinfer.sparse_threshold") == 0.25
        counts = file.read("blk.1.ffn_activation_count").reshape(-1).view("<i4")
    expected = torch.load(REFERENCE / "activation/activation_1.pt", weights_only=True)
    assert np.array_equal(counts, np.asarray(expected).astype(np.int32))
    reference = logits_of(REFERENCE / "ref.powerinfer.gguf", "predictor")
    assert np.array_equal(logits_of(report.path, "predictor"), reference)


def _no_output(folder: Path, **options: Any) -> Any:
    output = folder.parent / "m.gguf"
    with pytest.raises(pi.Error) as caught:
        convert(folder, output, **options)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["hf"]
    return caught


def test_bad_checkpoints_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    model = make_model("Llama", hidden_act="relu")
    folder = save(model, tmp_path / "hf", max_shard_size="50KB")
    shard = sorted(folder.glob("*.safetensors"))[1]
    content = shard.read_bytes()
    shard.unlink()
    assert shard.name in str(_no_output(folder).value)
    shard.write_bytes(content[:-10])
    assert shard.name in str(_no_output(folder).value)
    shard.write_bytes(content)
    for values, words in (
        ({"hidden_act": "mish"}, ("mish", "silu")),
        ({"architectures": ["GPT2LMHeadModel"]}, ("GPT2LMHeadModel", "FalconForCausalLM")),
        ({"intermediate_size": 128}, ("128", "192")),
        ({"vocab_size": 10}, ("10",)),
        ({"num_hidden_layers": 4}, ("layers.3",)),
        ({"num_hidden_layers": 2}, ("layers.2",)),
    ):
        original = json.loads((folder / "config.json").read_text())
        change_config(folder, **values)
        message = str(_no_output(folder).value)
        assert all(word in message for word in words), message
        change_config(folder, **original)


def test_values_that_are_not_finite_are_named(tmp_path: Path) -> None:
    model = make_model("Llama", hidden_act="relu")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[5, 7] = float("nan")
    folder = save(model, tmp_path / "hf")
    message = str(_no_output(folder).value)
    assert "blk.1.ffn_up.weight" in message
    assert "row 5" in message
    assert "column 7" in message


def test_an_output_that_exists_is_kept(tmp_path: Path) -> None:
    folder = save(make_model("Llama", hidden_act="relu"), tmp_path / "hf")
    output = tmp_path / "m.gguf"
    output.write_text("mine")
    with pytest.raises(pi.InvalidArgument, match="--force"):
        convert(folder, output)
    assert output.read_text() == "mine"


def test_pickles_with_code_are_not_run(tmp_path: Path) -> None:
    folder = save(make_model("Llama", hidden_act="relu"), tmp_path / "hf")
    (folder / "model.safetensors").unlink()
    marker = tmp_path / "hf" / "ran"

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (marker,)

    torch.save({"model.embed_tokens.weight": Evil()}, folder / "pytorch_model.bin")
    _no_output(folder)
    assert not marker.exists()

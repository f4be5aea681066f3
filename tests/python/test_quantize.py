"""Rows of block types from floats, and `powerinfer quantize`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from helpers.compare import mean_kl, spread_error
from helpers.llama_cpp_witness import llama_cpp_logits
from helpers.tiny_model import tiny_model, write_gguf

import powerinfer_py as pi
from powerinfer_py import _core
from powerinfer_py._core import FormatError, InvalidArgument
from powerinfer_py.files import GgufInput
from powerinfer_py.sparsity.activation import ActivationCounts, load_counts, side_file_of, write_side_file
from powerinfer_py.sparsity.quantize import TYPES, quantize

AS_GGUF = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0")
K_TYPES = ("Q4_K", "Q5_K", "Q6_K")


def sample_rows(seed: int, n_rows: int = 16, n_cols: int = 512) -> npt.NDArray[np.float32]:
    """Rows of very different sizes and tails, with blocks of zeros, constants, ties and single large values."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n_rows, n_cols)) * 10.0 ** rng.uniform(-6, 3, (n_rows, 1))
    rows[1] = rng.standard_t(2, n_cols)
    rows[2] = rng.integers(-8, 8, n_cols) / 2
    rows[3, :256], rows[3, 256:] = 0.0, 1.5
    rows[4] = 0.0
    rows[4, 100] = -7.0
    rows[5] = np.abs(rows[5])
    return rows.astype(np.float32)


def dequantized(type_name: str, data: npt.NDArray[np.uint8], n_cols: int) -> npt.NDArray[np.float32]:
    """Values of rows."""
    return _core.dequantize(type_name, data, len(data) * n_cols).reshape(len(data), n_cols)


@pytest.mark.parametrize("type_name", AS_GGUF)
def test_bytes_are_those_of_the_gguf_package(type_name: str) -> None:
    rows = sample_rows(seed=1)
    expected = gguf.quants.quantize(rows, gguf.GGMLQuantizationType[type_name])
    got = _core.quantize(type_name, rows)
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("type_name", K_TYPES)
def test_gguf_package_reads_k_types_the_same(type_name: str) -> None:
    rows = sample_rows(seed=2)
    data = _core.quantize(type_name, rows)
    theirs = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[type_name])
    np.testing.assert_array_equal(dequantized(type_name, data, rows.shape[1]), theirs)


@pytest.mark.parametrize("type_name", [*AS_GGUF, *K_TYPES])
def test_threads_and_pieces_change_nothing(type_name: str) -> None:
    rows = sample_rows(seed=3)
    importance = np.random.default_rng(4).lognormal(size=rows.shape[1]).astype(np.float32)
    whole = _core.quantize(type_name, rows, importance, n_threads=2)
    pieces = [_core.quantize(type_name, rows[i : i + 5], importance, n_threads=1) for i in range(0, len(rows), 5)]
    assert whole.tobytes() == np.concatenate(pieces).tobytes()
    converted = _core.convert_rows("F32", rows.view(np.uint8), rows.shape[1], type_name, importance)
    assert whole.tobytes() == converted.tobytes()


def test_unfit_rows_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="256"):
        _core.quantize("Q4_K", np.zeros((2, 128), dtype=np.float32))
    with pytest.raises(InvalidArgument, match="512"):
        _core.quantize("Q4_K", np.zeros((2, 512), dtype=np.float32), np.ones(256, dtype=np.float32))
    rows = np.zeros((2, 256), dtype=np.float32)
    rows[1, 3] = np.nan
    with pytest.raises(FormatError, match="row 1"):
        _core.convert_rows("F32", rows.view(np.uint8), 256, "Q4_K")


# Files.

TOKENS = np.random.default_rng(3).integers(3, 512, 40)


def types_of(path: Path) -> dict[str, str]:
    """Tensor name -> type."""
    with GgufInput(path) as file:
        return {name: tensor.type for name, tensor in file.tensors.items()}


def logits_of(path: Path, sparsity: str = "exact") -> npt.NDArray[np.float32]:
    """Logits of some tokens."""
    with pi.Model(path, n_threads=1) as model, pi.Context(model, kv_type="f32", sparsity=sparsity) as context:
        return context.eval(TOKENS, all_logits=True)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An F32 ReLU llama with predictors, sign bits, counts and ids."""
    folder = tmp_path_factory.mktemp("quantize")
    rng = np.random.default_rng(0)
    tensors = {}
    for layer in (0, 1):
        tensors[f"blk.{layer}.ffn_activation_count"] = (-np.sort(-rng.integers(0, 90, 512)), "I32")
        tensors[f"blk.{layer}.ffn_neuron_id"] = (rng.permutation(512), "I32")
    return tiny_model(
        folder / "sparse.gguf",
        activation="relu",
        predictor_rank=64,
        density=0.3,
        tensors=tensors,
        metadata={"powerinfer.neuron_order": "activation", "powerinfer.activation.tokens": np.uint64(100)},
    ).path


@pytest.mark.parametrize("type_name", TYPES)
def test_every_type_loads_and_computes_nearly_the_same(sparse: Path, type_name: str, tmp_path: Path) -> None:
    report = quantize(sparse, tmp_path / "out.gguf", type_name.lower())
    old, new = types_of(sparse), types_of(report.path)
    assert list(old) == list(new)
    rank_type = type_name if 64 % _core.block_length(type_name) == 0 else "Q8_0"
    for name, kept in old.items():
        is_matrix = kept == "F32" and "norm" not in name
        expected = kept if not is_matrix else rank_type if name.endswith("fc2.weight") else type_name
        assert new[name] == expected, name
    with GgufInput(report.path) as file, GgufInput(sparse) as source:
        assert file.computed_fingerprint() == file.fingerprint != source.fingerprint
        expected_type = gguf.LlamaFileType(file.get("general.file_type")).name.replace("ALL_", "MOSTLY_")
        assert expected_type.startswith(f"MOSTLY_{type_name}")
        assert file.get("general.quantization_version") == gguf.GGML_QUANT_VERSION
        for name, kept in old.items():
            if new[name] == kept:
                assert np.array_equal(file.read(name), source.read(name)), name
            else:
                rows = source.read_f32(name)
                assert np.array_equal(file.read(name), _core.quantize(new[name], rows)), name
    bound = {"F32": 1e-6, "F16": 1e-2, "BF16": 5e-2, "Q8_0": 5e-2, "Q6_K": 0.1, "Q5_K": 0.2, "Q5_0": 0.25}
    for mode in ("exact", "predictor"):
        assert np.isfinite(logits_of(report.path, mode)).all()
    assert spread_error(logits_of(report.path), logits_of(sparse)) < bound.get(type_name, 0.5)
    assert report.requantize_error is None and sum(report.n_tensors.values()) == len(old)


@pytest.mark.parametrize("arch", ["bamboo", "falcon", "opt"])
def test_every_architecture(arch: str, tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "in.gguf", arch, predictor_rank=64, density=0.3).path
    for type_name in ("Q4_0", "Q6_K"):
        report = quantize(source, tmp_path / f"{type_name}.gguf", type_name)
        assert spread_error(logits_of(report.path), logits_of(source)) < 0.5
    new = types_of(report.path)
    assert new.get("position_embd.weight", "F16") == "F16"  # its rows are looked up one by one


def test_each_matrix_can_have_its_own_type(sparse: Path, tmp_path: Path) -> None:
    report = quantize(
        sparse,
        tmp_path / "out.gguf",
        "Q4_0",
        tensor_types=[(r"ffn_(gate|up)", "q8_0"), (r"blk\.1\.", "F16")],
        output_tensor_type="q6_K",
        predictor_type="f16",
    )
    new = types_of(report.path)
    assert new["output.weight"] == "Q6_K" and new["token_embd.weight"] == "Q4_0"
    assert new["blk.0.ffn_up.weight"] == new["blk.1.ffn_up.weight"] == "Q8_0"
    assert new["blk.0.attn_q.weight"] == "Q4_0" and new["blk.1.attn_q.weight"] == "F16"
    assert new["blk.0.fc1.weight"] == new["blk.0.fc2.weight"] == "F16"
    assert new["blk.1.attn_norm.weight"] == "F32" and new["blk.1.ffn_neuron_id"] == "I32"
    assert np.isfinite(logits_of(report.path, "predictor")).all()


def test_a_shared_embedding_is_the_output(tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "in.gguf", tied=True, activation="relu").path
    report = quantize(source, tmp_path / "out.gguf", "Q4_0", output_tensor_type="Q8_0")
    assert types_of(report.path)["token_embd.weight"] == "Q8_0"


def test_rows_that_blocks_do_not_divide(tmp_path: Path) -> None:
    source = tiny_model(
        tmp_path / "in.gguf", d_model=96, n_heads=2, d_ff=256, activation="relu", predictor_rank=20
    ).path
    report = quantize(source, tmp_path / "out.gguf", "Q4_K")
    types = types_of(report.path)
    assert [types[f"blk.0.{name}.weight"] for name in ("ffn_up", "fc2", "attn_norm")] == ["Q8_0", "F16", "F32"]
    assert len(report.notes) == 2 and "token_embd.weight" in report.notes[0] and "multiples of 256" in report.notes[0]


def test_quantizing_again_is_refused_or_told(sparse: Path, tmp_path: Path) -> None:
    first = quantize(sparse, tmp_path / "q8.gguf", "Q8_0").path
    with pytest.raises(InvalidArgument, match="allow-requantize"):
        quantize(first, tmp_path / "q4.gguf", "Q4_0")
    assert not (tmp_path / "q4.gguf").exists()
    report = quantize(first, tmp_path / "q4.gguf", "Q4_0", allow_requantize=True)
    assert report.n_requantized > 10 and report.requantize_error is not None and 0.01 < report.requantize_error < 0.2
    assert spread_error(logits_of(report.path), logits_of(sparse)) < 0.5
    # What has its type already is copied; floats are no blocks.
    same = quantize(first, tmp_path / "same.gguf", "Q8_0")
    wider = quantize(first, tmp_path / "f16.gguf", "F16")
    assert same.requantize_error is None and wider.requantize_error is None
    with GgufInput(first) as a, GgufInput(same.path) as b:
        assert all(np.array_equal(a.read(name), b.read(name)) for name in a.tensors)
        assert a.fingerprint == b.fingerprint


def test_same_bytes_for_any_threads(sparse: Path, tmp_path: Path) -> None:
    files = [quantize(sparse, tmp_path / f"{n}.gguf", "Q4_K", n_threads=n).path.read_bytes() for n in (1, 2)]
    assert files[0] == files[1]
    assert quantize(sparse, tmp_path / "1.gguf", "Q4_K", force=True).path.read_bytes() == files[0]


def test_counts_beside_the_file_come_along(tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "in.gguf", down="plain", activation="relu").path
    counts = np.arange(1024).reshape(2, 512)
    with GgufInput(source) as file:
        write_side_file(side_file_of(source), ActivationCounts(100, counts, None, ""), file.fingerprint)
    with GgufInput(quantize(source, tmp_path / "out.gguf", "Q8_0").path) as file:
        assert not file.is_powerinfer and np.array_equal(load_counts(file).counts, counts)


def test_bad_input(sparse: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    for options, message in [
        ({"type": "Q9_9"}, "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q4_K, Q5_K, Q6_K"),
        ({"type": "I32"}, "known: F32"),
        ({"tensor_types": [("ffn_(", "Q8_0")]}, "regular expression"),
        ({"tensor_types": [("ffn_uq", "Q8_0")]}, "ffn_uq"),
        ({"tensor_types": [("ffn_up", "Q7")]}, "Q7"),
        ({"predictor_type": "Q7"}, "Q7"),
        ({"output_tensor_type": ""}, "''"),
    ]:
        with pytest.raises(InvalidArgument, match=message.replace("(", r"\(")):
            quantize(sparse, out, **({"type": "Q4_0"} | options))
    values = np.zeros((512, 256), dtype=np.float32)
    values[2, 7] = np.inf
    tiny_model(tmp_path / "bad.gguf", tensors={"blk.0.ffn_up.weight": (values, "F32")})
    for type_name in ("Q4_0", "F32"):  # also where nothing changes
        with pytest.raises(FormatError, match=r"blk\.0\.ffn_up\.weight.*row 2, column 7"):
            quantize(tmp_path / "bad.gguf", out, type_name)
    with pytest.raises(InvalidArgument, match="never changed"):
        quantize(sparse, sparse, "Q8_0", force=True)
    write_gguf(tmp_path / "part.gguf", "llama", {}, {"blk.0.ffn_up.weight": (np.zeros((4, 256)), "F32")})
    with pytest.raises(FormatError, match="missing"):
        quantize(tmp_path / "part.gguf", out, "Q4_0")
    out.write_bytes(b"kept")
    with pytest.raises(InvalidArgument, match="--force"):
        quantize(sparse, out, "Q4_0")
    assert out.read_bytes() == b"kept" and len(list(tmp_path.iterdir())) == 3


def test_llama_cpp_reads_a_quantized_plain_model(tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "in.gguf", down="plain", activation="silu").path
    for type_name in ("Q8_0", "Q4_K", "Q6_K"):
        path = quantize(source, tmp_path / f"{type_name}.gguf", type_name).path
        assert mean_kl(llama_cpp_logits(path, TOKENS.tolist()), logits_of(path, "auto")) < 1e-3


# The command.


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`powerinfer quantize`."""
    words = [sys.executable, "-m", "powerinfer_py", "quantize", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_command(sparse: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = command(sparse, out, "q4_k", "--tensor-type", "attn_.*=q6_k", "--predictor-type", "q8_0", "--threads", 1)
    assert done.returncode == 0 and "Q4_K" in done.stdout and "Q6_K" in done.stdout, done.stderr
    for arguments, code, message in [
        ([sparse, out, "q4_0"], 1, "--force"),
        ([sparse, out, "q4_9"], 1, "known: F32, F16"),
        ([sparse, out, "q4_0", "--tensor-type", "q8_0"], 2, "REGEX=TYPE"),
        ([out, tmp_path / "b.gguf", "q4_0"], 1, "--allow-requantize"),
        ([tmp_path / "absent.gguf", out, "q4_0"], 1, "absent.gguf"),
    ]:
        done = command(*arguments)
        assert done.returncode == code and message in done.stderr and "Traceback" not in done.stderr, done.stderr
    done = command(out, tmp_path / "b.gguf", "q4_0", "--allow-requantize", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["requantize_error"] > 0.01, done.stderr


def test_bundled_model_in_a_smaller_type(bundled: pi.Model, tmp_path: Path) -> None:
    report = quantize(bundled.path, tmp_path / "q4.gguf", "Q4_0", allow_requantize=True)
    assert report.n_bytes < 0.7 * report.n_bytes_before
    with pi.Model(report.path) as model:
        tokens = model.tokenize("Once upon a time there was a little girl who lived in a small house in the forest.")
        ours = model_perplexity(model, tokens)
        assert ours < 1.2 * model_perplexity(bundled, tokens)


def model_perplexity(model: pi.Model, tokens: list[int]) -> float:
    """Of the tokens after the first."""
    with pi.Context(model, n_ctx=64, sparsity="exact") as context:
        logits = context.eval(tokens, all_logits=True)[:-1].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    own = logits[np.arange(len(logits)), tokens[1:]] - np.log(np.exp(logits).sum(axis=1))
    return float(np.exp(-own.mean()))


def test_hot_and_cold_neurons(sparse: Path, tmp_path: Path) -> None:
    options = {"cold_type": "q4_0", "hot_share": 0.25}
    report = quantize(str(sparse), str(tmp_path / "out.gguf"), "q8_0", **options)
    other = quantize(sparse, tmp_path / "o.gguf", "q8_0", **options, tensor_types=[("ffn_up_cold", "q5_0")])
    assert other.n_tensors["Q5_0"] == 2
    hot, cold = (quantize(sparse, tmp_path / f"{name}.gguf", name).path for name in ("q8_0", "q4_0"))
    with GgufInput(report.path) as file, GgufInput(hot) as all_hot, GgufInput(cold) as all_cold:
        assert list(file.get("powerinfer.hot_neurons")) == [128, 128]
        for name in ("blk.1.ffn_gate", "blk.1.ffn_up", "blk.1.ffn_down_t"):
            assert np.array_equal(file.read(f"{name}.weight"), all_hot.read(f"{name}.weight", 0, 128))
            assert np.array_equal(file.read(f"{name}_cold.weight"), all_cold.read(f"{name}.weight", 128))
        assert file.computed_fingerprint() == file.fingerprint
    for mode in ("exact", "predictor"):
        assert np.isfinite(logits_of(report.path, mode)).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cold_type": "q4_0"}, "hot_share"),
        ({"hot_share": 0.2}, "cold_type"),
        ({"cold_type": "q4_0", "hot_share": 1.5}, "between 0 and 1"),
    ],
)
def test_a_cold_type_needs_a_share(options: dict[str, Any], words: str, sparse: Path, tmp_path: Path) -> None:
    with pytest.raises(pi.InvalidArgument, match=words):
        quantize(sparse, tmp_path / "out.gguf", "q8_0", **options)
    assert not list(tmp_path.iterdir())


def test_a_cold_type_needs_the_hottest_first(tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "in.gguf", activation="relu", density=0.3).path
    with pytest.raises(pi.InvalidArgument, match="powerinfer reorder"):
        quantize(source, tmp_path / "out.gguf", "q8_0", cold_type="q4_0", hot_share=0.2)

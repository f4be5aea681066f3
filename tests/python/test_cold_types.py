"""Files whose cold neurons are of another type: the same model as one in one piece, in every mode and architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.compare import spread_error
from helpers.tiny_model import GATED, TinyModel, tiny_model

import powerinfer_py as pi
from powerinfer_py.cli.inspect import gather

TOKENS = [1, 300, 17, 80, 311, 5, 260, 99]
D_FF = 320
SMALL: dict[str, Any] = {"d_model": 64, "d_ff": D_FF, "n_heads": 4, "n_vocab": 384, "n_ctx": 64}
ARCHITECTURES = ["llama", "bamboo", "falcon", "opt"]


def options(arch: str, **more: Any) -> dict[str, Any]:
    return {"activation": "drelu" if arch == "bamboo" else "relu", "density": 0.2, **SMALL, **more}


def split(
    path: Path, arch: str, hot: list[int], hot_type: str, cold_type: str, **more: Any
) -> tuple[TinyModel, TinyModel]:
    """(the model with a cold type, the same values in one piece as F32); `hot`: per layer."""
    whole = tiny_model(path.with_suffix(".f32.gguf"), arch, **options(arch, **more))
    names = ["ffn_gate", "ffn_up", "ffn_down_t"] if GATED[arch] else ["ffn_up", "ffn_down_t"]
    tensors: dict[str, Any] = {}
    for layer, k in enumerate(hot):
        for name in (f"blk.{layer}.{name}" for name in names):
            values = whole.tensors[f"{name}.weight"]
            tensors[f"{name}.weight"] = (values[:k], hot_type) if k else None
            if k < D_FF:
                tensors[f"{name}_cold.weight"] = (values[k:], cold_type)
    key = {"powerinfer.hot_neurons": np.array(hot, np.uint32)}
    cold = tiny_model(path, arch, tensors=tensors, metadata=key, **options(arch, **more))
    joined = {}
    for name in {name.replace("_cold", "") for name in tensors}:
        parts = [cold.tensors[part] for part in (name, name.replace(".weight", "_cold.weight")) if part in cold.tensors]
        joined[name] = (np.concatenate(parts), "F32")
    return cold, tiny_model(path.with_suffix(".joined.gguf"), arch, tensors=joined, **options(arch, **more))


def logits(path: Path, sparsity: str, *, one_by_one: bool = False, **more: Any) -> tuple[np.ndarray, Any]:
    with pi.Model(path) as model, pi.Context(model, sparsity=sparsity, kv_type="f32", **more) as context:
        if one_by_one:
            return np.stack([context.eval([token]) for token in TOKENS]), context.stats
        return context.eval(TOKENS, all_logits=True), context.stats


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("hot", [[64, 200], [0, 320], [1, 319], [128, 129]])
def test_floats_give_the_model_in_one_piece(arch: str, hot: list[int], tmp_path: Path) -> None:
    cold, joined = split(tmp_path / "m.gguf", arch, hot, "F32", "F16", predictor_rank=32, threshold=0.1)
    for sparsity in ("dense", "exact", "predictor"):
        for one_by_one in (False, True):
            ours, stats = logits(cold.path, sparsity, one_by_one=one_by_one)
            theirs, other = logits(joined.path, sparsity, one_by_one=one_by_one)
            assert spread_error(ours, theirs) < 1e-6
            assert stats["density"] == other["density"]
            assert stats["predicted_density"] == other["predicted_density"]


@pytest.mark.parametrize("dtype", ["F32", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_two_parts_of_one_type_give_the_bits_of_one(arch: str, dtype: str, tmp_path: Path) -> None:
    more = {"dtype": dtype, "predictor_rank": 32, "fc2_bias": True}
    cold, _ = split(tmp_path / "m.gguf", arch, [100, 300], dtype, dtype, **more)
    whole = tiny_model(tmp_path / "whole.gguf", arch, **options(arch, **more))
    for sparsity in ("dense", "exact", "predictor"):
        for one_by_one in (False, True):
            ours, stats = logits(cold.path, sparsity, one_by_one=one_by_one)
            theirs, other = logits(whole.path, sparsity, one_by_one=one_by_one)
            assert np.array_equal(ours, theirs)
            assert stats["weight_bytes_per_token"] == other["weight_bytes_per_token"]


def rounded(x: np.ndarray) -> np.ndarray:
    """What rows of block types meet: int8 in blocks of 32."""
    blocks = x.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    return np.asarray(np.rint(blocks * (np.float32(127) / largest)) * (largest / np.float32(127))).reshape(x.shape)


@pytest.mark.parametrize(
    ("hot_type", "cold_type"), [("Q8_0", "Q4_0"), ("F16", "Q4_0"), ("Q5_0", "F32"), ("BF16", "Q8_0")]
)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_mixed_types_against_double_precision(arch: str, hot_type: str, cold_type: str, tmp_path: Path) -> None:
    """The FFN's output from the values as stored, each row meeting the input that its type reads."""
    hot = [96, 192]
    cold, joined = split(tmp_path / "m.gguf", arch, hot, hot_type, cold_type)
    taps: dict[str, list[np.ndarray]] = {"ffn_input": [], "ffn_output": []}
    with pi.Model(cold.path) as model, pi.Context(model, sparsity="exact", kv_type="f32") as context:
        for point, rows in taps.items():
            context.set_tap(point, lambda layer, unit, values, rows=rows: rows.append(values))
        context.eval(TOKENS)
    x, y = (np.concatenate(rows).reshape(2, len(TOKENS), -1) for rows in taps.values())
    for layer, k in enumerate(hot):
        get = {name.removeprefix(f"blk.{layer}."): values for name, values in joined.tensors.items()}.get

        def product(name: str, layer: int = layer, k: int = k, get: Any = get) -> np.ndarray:
            weights = get(f"{name}.weight").astype(np.float64)
            parts = ((weights[:k], hot_type), (weights[k:], cold_type))
            inputs = [rounded(x[layer]) if "Q" in kind else x[layer] for _, kind in parts]
            sums = [z @ rows.T for z, (rows, _) in zip(inputs, parts, strict=True)]
            return np.concatenate(sums, axis=1) + get(f"{name}.bias", 0)

        h = np.maximum(product("ffn_gate" if GATED[arch] else "ffn_up"), 0)
        if GATED[arch]:
            up = product("ffn_up")
            h *= np.maximum(up, 0) if arch == "bamboo" else up
        expected = h @ get("ffn_down_t.weight").astype(np.float64) + get("ffn_down_t.bias", 0)
        assert spread_error(y[layer], expected) < 1e-5


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_modes_agree(arch: str, tmp_path: Path) -> None:
    more = {"predictor_rank": 32, "predictor_kind": "svd", "fc2_bias": True}
    cold, joined = split(tmp_path / "m.gguf", arch, [32, 250], "Q8_0", "Q4_0", **more)
    dense, _ = logits(cold.path, "dense")
    exact, stats = logits(cold.path, "exact", one_by_one=True)
    assert np.array_equal(dense, exact)
    everything, _ = logits(cold.path, "predictor", threshold=-np.inf)
    assert np.array_equal(dense, everything)
    audited, _ = logits(cold.path, "predictor", audit=True)
    plain, _ = logits(cold.path, "predictor", n_threads=2)
    assert np.array_equal(audited, plain)
    assert not np.array_equal(plain, dense)
    assert spread_error(dense, logits(joined.path, "dense")[0]) < 0.05  # int8 rounding of the inputs
    assert stats["weight_bytes_per_token"] < logits(joined.path, "exact", one_by_one=True)[1]["weight_bytes_per_token"]


def test_the_activation_may_have_no_zeros(tmp_path: Path) -> None:
    cold, joined = split(tmp_path / "m.gguf", "llama", [100, 0], "F32", "F16", activation="silu")
    assert spread_error(logits(cold.path, "dense")[0], logits(joined.path, "dense")[0]) < 1e-6


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "other layers": ({"powerinfer.hot_neurons": np.array([64], np.uint32)}, {}, "expected 2 entries, got 1"),
    "too many": ({"powerinfer.hot_neurons": np.array([64, 321], np.uint32)}, {}, "0 to 320, got 321"),
    "another number": ({"powerinfer.hot_neurons": np.array([64, 100], np.uint32)}, {}, r"blk\.1\.ffn_gate"),
    "floats": ({"powerinfer.hot_neurons": np.array([64, 64], np.float32)}, {}, "hot_neurons"),
    "a number": ({"powerinfer.hot_neurons": 64}, {}, "hot_neurons"),
    "no key": ({"powerinfer.hot_neurons": None}, {}, r"ffn_gate"),
    "a part is missing": ({}, {"blk.1.ffn_up_cold.weight": None}, r"blk\.1\.ffn_up_cold"),
    "a part of another size": (
        {},
        {"blk.0.ffn_down_t_cold.weight": (np.zeros((100, 64), np.float32), "F32")},
        r"blk\.0\.ffn_down_t_cold",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_files_that_contradict_themselves(case: str, tmp_path: Path) -> None:
    metadata, changes, message = BAD[case]
    whole = tiny_model(tmp_path / "whole.gguf", **options("llama"))
    tensors: dict[str, Any] = {}
    for layer in range(2):
        for name in ("ffn_gate", "ffn_up", "ffn_down_t"):
            values = whole.tensors[f"blk.{layer}.{name}.weight"]
            tensors[f"blk.{layer}.{name}.weight"] = (values[:64], "F32")
            tensors[f"blk.{layer}.{name}_cold.weight"] = (values[64:], "F32")
    for name, change in changes.items():
        tensors.pop(name) if change is None else tensors.update({name: change})
    key = {"powerinfer.hot_neurons": np.array([64, 64], np.uint32)}
    path = tiny_model(tmp_path / "m.gguf", tensors=tensors, metadata=key | metadata, **options("llama")).path
    with pytest.raises((pi.FormatError, pi.UnsupportedError), match=message):
        pi.Model(path)


def test_a_part_of_no_neurons_has_no_tensor(tmp_path: Path) -> None:
    cold, _ = split(tmp_path / "m.gguf", "opt", [0, 0], "F32", "Q8_0")
    with pi.Model(cold.path) as model:
        assert model.file.has_powerinfer_magic
        assert model.has_transposed_down
        assert not any(tensor.name.endswith("ffn_up.weight") for tensor in model.tensors)
    facts = gather(cold.path)
    assert facts["model"]["hot_neurons"] == [0, 0]
    assert facts["file"]["kind"] == "PowerInfer model without predictors"

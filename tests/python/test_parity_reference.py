"""Predictor mode against the logits that the reference sparse engine computed for its own file format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from helpers.compare import cosine, shared_data

import powerinfer_py

BAR = 0.9999  # cosine over all values
NAMES = ["llama", "falcon7b"]


def load(name: str) -> tuple[Path, np.ndarray, np.ndarray]:
    """Model path, tokens [48], logits [48, 512]."""
    arrays = np.load(shared_data("reference", f"{name}-f16.logits.npz"))
    return shared_data("reference", f"{name}-f16.powerinfer.gguf"), arrays["tokens"], arrays["logits"]


def evaluate(path: Path, tokens: np.ndarray, *, one_by_one: bool = False, **options: object) -> np.ndarray:
    """Our logits of every token."""
    activation = options.pop("activation", None)
    with powerinfer_py.Model(path, activation=activation) as model, powerinfer_py.Context(model, **options) as context:
        if one_by_one:
            return np.stack([context.eval([token]) for token in tokens])
        return context.eval(tokens, all_logits=True)


@pytest.mark.parametrize("one_by_one", [False, True], ids=["prompt", "token-by-token"])
@pytest.mark.parametrize("name", NAMES)
def test_reproduces_the_reference(name: str, one_by_one: bool) -> None:
    path, tokens, witness = load(name)
    ours = evaluate(path, tokens, one_by_one=one_by_one, sparsity="predictor")
    assert cosine(ours, witness) >= BAR


@pytest.mark.parametrize("name", NAMES)
def test_auto_is_predictor(name: str) -> None:
    path, tokens, witness = load(name)
    assert cosine(evaluate(path, tokens), witness) >= BAR


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["dense", "exact"])
def test_without_the_predictor_it_fails(name: str, mode: str) -> None:
    path, tokens, witness = load(name)
    assert cosine(evaluate(path, tokens, sparsity=mode), witness) < BAR


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shift", [None, 0.1])
def test_another_threshold_fails(name: str, shift: float | None) -> None:
    path, tokens, witness = load(name)
    with powerinfer_py.Model(path) as model:
        own = model.metadata["powerinfer.sparse_threshold"]
    threshold = 0.0 if shift is None else own + shift
    assert cosine(evaluate(path, tokens, threshold=threshold), witness) < BAR
    assert cosine(evaluate(path, tokens, threshold=float(own)), witness) >= BAR


def test_silu_fails() -> None:
    path, tokens, witness = load("llama")
    assert cosine(evaluate(path, tokens, activation="silu"), witness) < BAR


def rewritten(path: Path, target: Path, change: Callable[[dict[str, object]], None]) -> Path:
    """A copy of a PWRI file with other metadata."""
    patched = target.with_suffix(".in.gguf")
    patched.write_bytes(b"GGUF" + path.read_bytes()[4:])
    reader = gguf.GGUFReader(patched)
    keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    change(keys)
    writer = gguf.GGUFWriter(target, keys.pop("general.architecture"))
    for name, value in keys.items():
        field = reader.fields.get(name)
        kind = (
            field.types[0]
            if field
            else (gguf.GGUFValueType.STRING if isinstance(value, str) else gguf.GGUFValueType.FLOAT32)
        )
        sub = field.types[-1] if field and len(field.types) > 1 else None
        writer.add_key_value(name, value, kind, sub_type=sub)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open(target, "r+b") as file:
        file.write(b"PWRI")
    return target


@pytest.mark.parametrize(
    ("key", "value"),
    [("llama.rope.freq_base", 10000.0), ("powerinfer.predictor.input", "ffn_input"),
     ("powerinfer.predictor.input", "layer_input")],
    ids=["rope-base", "normalised-input", "layer-input"],
)  # fmt: skip
def test_changed_keys_fail(key: str, value: object, tmp_path: Path) -> None:
    path, tokens, witness = load("llama")
    unchanged = rewritten(path, tmp_path / "same.gguf", lambda keys: None)
    assert cosine(evaluate(unchanged, tokens), witness) >= BAR
    changed = rewritten(path, tmp_path / "changed.gguf", lambda keys: keys.update({key: value}))
    assert cosine(evaluate(changed, tokens), witness) < BAR


def test_the_other_rope_style_fails(tmp_path: Path) -> None:
    """Permuting q and k rows turns interleaved RoPE into the half-split style."""
    path, tokens, witness = load("llama")
    target = tmp_path / "style.gguf"
    data = bytearray(path.read_bytes())
    patched = tmp_path / "in.gguf"
    patched.write_bytes(b"GGUF" + data[4:])
    for tensor in gguf.GGUFReader(patched).tensors:
        if not tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            continue
        rows = np.array(tensor.data)
        n_heads = rows.shape[0] // 32
        permuted = rows.reshape(n_heads, 2, 16, -1).swapaxes(1, 2).reshape(rows.shape)
        data[tensor.data_offset : tensor.data_offset + tensor.n_bytes] = permuted.tobytes()
    target.write_bytes(data)
    assert cosine(evaluate(target, tokens), witness) < BAR

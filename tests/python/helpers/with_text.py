"""Gives a model written by `hf_to_gguf` a vocabulary, and texts to read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from powerinfer_py.files import GgufInput, GgufOutput

from .tiny_model import spm_vocabulary

_WORDS = "the and was to of in he she it that his her said you they once upon a time little girl boy"


def write_text(path: Path, n_words: int, seed: int = 0) -> Path:
    """Words of the small vocabulary, drawn at random."""
    words = np.random.default_rng(seed).choice(_WORDS.split(), n_words)
    path.write_text(" ".join(words), encoding="utf-8")
    return path


def add_vocabulary(source: Path, target: Path, n_vocab: int) -> Path:
    """A copy of a model with the small vocabulary of `n_vocab` entries."""
    with GgufInput(source) as file:
        output = GgufOutput(target, powerinfer=file.is_powerinfer)
        output.copy_metadata(file)
        for key, value in spm_vocabulary(n_vocab).items():
            output.set(key, value, "[string]" if key.endswith(".tokens") else None)
        for tensor in file.tensors.values():
            output.add_tensor(tensor.name, tensor.type, tensor.shape)
        output.write(lambda spec: file.chunks(file.tensor(spec.name)), identity=file.identity)
    return target

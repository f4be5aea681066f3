"""Logits of llama.cpp, an independent engine (package llama-cpp-python)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest


def llama_cpp_logits(path: Path, tokens: Sequence[int], *, n_threads: int = 2, f32_cache: bool = False) -> np.ndarray:
    """Logits of every token, [n_tokens, n_vocab]; skips the test where llama-cpp-python is absent.

    Weights stay as the file has them: the repacked ones of its AMX path crash on some machines (the published wheels
    load a tile configuration of which they set the first half only).
    """
    api = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed").llama_cpp
    defaults = api.llama_model_default_params

    def without_repacking() -> Any:
        params = defaults()
        params.use_extra_bufts = False
        return params

    options: dict[str, Any] = {"n_ctx": len(tokens), "n_batch": len(tokens), "n_threads": n_threads}
    if f32_cache:
        options |= {"type_k": 0, "type_v": 0}
    with mock.patch.object(api, "llama_model_default_params", without_repacking):
        model = pytest.importorskip("llama_cpp").Llama(str(path), logits_all=True, verbose=False, **options)
    model.eval(list(tokens))
    return np.array(model.scores[: len(tokens)])

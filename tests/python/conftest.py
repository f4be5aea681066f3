"""Fixtures of the Python tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.tiny_model import TinyModel, tiny_model

import powerinfer_py as pi


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """A small ReLU llama with predictors and a vocabulary."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.powerinfer.gguf"
    return tiny_model(path, "llama", activation="relu", predictor_rank=64, density=0.2, threshold=0.0, n_ctx=256)


@pytest.fixture(scope="session")
def model(tiny: TinyModel) -> Iterator[pi.Model]:
    """The small model, loaded."""
    with pi.Model(tiny.path, n_threads=2) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def bundled() -> Iterator[pi.Model]:
    """The bundled model, loaded; skips where it is not installed."""
    try:
        loaded = pi.Model()
    except pi.InvalidArgument as error:
        pytest.skip(str(error))
    with loaded:
        yield loaded


@pytest.fixture(scope="session")
def plain_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small silu llama in llama.cpp's plain layout, without a vocabulary."""
    return tiny_model(tmp_path_factory.mktemp("plain") / "plain.gguf", "llama", down="plain", vocab=None).path

"""Errors of the block types against llama.cpp's own quantizers."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from helpers.compare import shared_data

from powerinfer_py import _core

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

BOUND = 1.05
N_COLS = 1024
Values = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def ggml() -> ctypes.CDLL:
    """The library with llama.cpp's quantizers."""
    folder = Path(llama_cpp.__file__).parent / "lib"
    found = [path for path in folder.glob("*ggml-base*") if path.suffix in (".so", ".dylib", ".dll")]
    if not found:
        pytest.skip("llama-cpp-python has no ggml-base library")
    library = ctypes.CDLL(str(found[0]))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
    ]  # fmt: skip
    return library


def weights(kind: str) -> Values:
    """Rows of N_COLS weights."""
    rng = np.random.default_rng(7)
    if kind == "gaussian":
        return rng.normal(0, 0.02, (64, N_COLS)).astype(np.float32)
    if kind == "heavy-tailed":
        return (rng.standard_t(3, (64, N_COLS)) * 0.02).astype(np.float32)
    if kind == "shifted":
        return rng.normal(0.3, 0.1, (64, N_COLS)).astype(np.float32)
    header_bytes, n_embeddings = 28, 512 * 64  # what lies before the matrices
    stored = np.fromfile(shared_data("stories260k", "stories260K.bin"), np.float32, offset=header_bytes)[n_embeddings:]
    return stored[: len(stored) // N_COLS * N_COLS].reshape(-1, N_COLS)[:64].copy()


def error(type_name: str, data: npt.NDArray[np.uint8], rows: Values, importance: Values | None) -> float:
    """Sum of (weighted) squared errors."""
    values = _core.dequantize(type_name, data, rows.size).reshape(rows.shape)
    squares = (values.astype(np.float64) - rows) ** 2
    return float((squares if importance is None else squares * importance).sum())


@pytest.mark.parametrize("kind", ["gaussian", "heavy-tailed", "shifted", "real"])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("type_name", ["Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q4_1", "Q5_0", "Q8_0"])
def test_error_is_no_larger(ggml: ctypes.CDLL, type_name: str, is_weighted: bool, kind: str) -> None:
    rows = weights(kind)
    importance = np.random.default_rng(8).lognormal(0, 1.5, N_COLS).astype(np.float32) if is_weighted else None
    theirs = np.zeros((len(rows), _core.row_bytes(type_name, N_COLS)), dtype=np.uint8)
    ggml.ggml_quantize_chunk(
        int(gguf.GGMLQuantizationType[type_name]),
        rows.ctypes.data,
        theirs.ctypes.data,
        0,
        *rows.shape,
        None if importance is None else importance.ctypes.data,
    )
    ours = _core.quantize(type_name, rows, importance)
    assert error(type_name, ours, rows, importance) <= BOUND * error(type_name, theirs, rows, importance)

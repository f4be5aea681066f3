"""Rows of block types from floats, and `powerinfer quantize`."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from powerinfer_py import _core
from powerinfer_py._core import FormatError, InvalidArgument

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

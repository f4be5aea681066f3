"""Tensors as rows of a stored type, read in pieces: from a checkpoint or a GGUF file, reordered, transposed, scaled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from powerinfer_py import _core
from powerinfer_py.files.torch_state import BFLOAT16

Bytes = npt.NDArray[np.uint8]

_CHUNK_BYTES = 32 << 20


class Matrix(Protocol):
    """Rows of one type. Vectors are one row."""

    @property
    def type(self) -> str:
        """GGUF type of the rows."""

    @property
    def n_rows(self) -> int:
        """Rows; 1 of a vector."""

    @property
    def n_cols(self) -> int:
        """Values of a row."""

    def read(self, first_row: int, n_rows: int) -> Bytes:
        """Bytes of some rows [n_rows, row_bytes]."""


class Reordered:
    """The rows of another matrix in another order."""

    def __init__(self, matrix: Matrix, rows: npt.NDArray[np.int64]) -> None:
        self.type, self.n_rows, self.n_cols = matrix.type, len(rows), matrix.n_cols
        self._matrix, self._rows = matrix, rows

    def read(self, first_row: int, n_rows: int) -> Bytes:
        """As Matrix.read; whole runs of the source are read at once."""
        wanted = self._rows[first_row : first_row + n_rows]
        begin = int(wanted.min())
        return self._matrix.read(begin, int(wanted.max()) + 1 - begin)[wanted - begin]


class Transposed:
    """The columns of another matrix, which is held in memory from the first read on until the last row is read."""

    def __init__(self, matrix: Matrix, n_threads: int) -> None:
        whole = _core.block_length(matrix.type) == 1
        self.type = matrix.type if whole else "F32"
        self.n_rows, self.n_cols = matrix.n_cols, matrix.n_rows
        self._matrix, self._n_threads = matrix, n_threads
        self._data: Bytes | None = None

    def read(self, first_row: int, n_rows: int) -> Bytes:
        """As Matrix.read."""
        if self._data is None:
            self._data = self._transpose()
        rows = self._data[first_row : first_row + n_rows]
        if first_row + n_rows >= self.n_rows:
            self._data = None
        return rows

    def _transpose(self) -> Bytes:
        data = self._matrix.read(0, self._matrix.n_rows)
        if self._matrix.type != self.type:
            data = _core.convert_rows(
                self._matrix.type, data, self._matrix.n_cols, self.type, n_threads=self._n_threads
            )
        element_bytes = _core.row_bytes(self.type, 1)
        flat = _core.transpose(data, self.n_cols, self.n_rows, element_bytes, n_threads=self._n_threads)
        return flat.reshape(self.n_rows, self.n_cols * element_bytes)


class Scaled:
    """Another matrix times a factor, F32."""

    type = "F32"

    def __init__(self, matrix: Matrix, factor: float) -> None:
        self.n_rows, self.n_cols = matrix.n_rows, matrix.n_cols
        self._matrix, self._factor = matrix, np.float32(factor)

    def read(self, first_row: int, n_rows: int) -> Bytes:
        """As Matrix.read."""
        values = values_of(self._matrix, first_row, n_rows) * self._factor
        return values.view(np.uint8).reshape(n_rows, -1)


class Held:
    """Numbers in memory, or mapped by numpy: float64, float32, float16, BFLOAT16 or int32, [n_rows, n_cols] or [n]."""

    _TYPES: ClassVar = {"float64": "F32", "float32": "F32", "float16": "F16", "int32": "I32", BFLOAT16.name: "BF16"}

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.type = self._TYPES[array.dtype.name]
        self._rows = array.reshape(1, -1) if array.ndim == 1 else array
        self.n_rows, self.n_cols = self._rows.shape

    def read(self, first_row: int, n_rows: int) -> Bytes:
        """As Matrix.read."""
        rows = self._rows[first_row : first_row + n_rows]
        rows = rows.astype(np.float32) if rows.dtype == np.float64 else np.ascontiguousarray(rows)
        return rows.view(np.uint8).reshape(n_rows, -1)


def values_of(matrix: Matrix, first_row: int, n_rows: int) -> npt.NDArray[np.float32]:
    """Values of some rows, float32 [n_rows, n_cols]."""
    data = matrix.read(first_row, n_rows)
    return _core.dequantize(matrix.type, data, n_rows * matrix.n_cols).reshape(n_rows, matrix.n_cols)


def converted(matrix: Matrix, type_name: str, n_threads: int) -> Iterator[Bytes]:
    """All rows in another type, in pieces.

    Raises:
        FormatError: a value is not finite, or too large for the type; names row and column.
    """
    step = max(1, _CHUNK_BYTES // (4 * matrix.n_cols))
    for first in range(0, matrix.n_rows, step):
        rows = matrix.read(first, min(step, matrix.n_rows - first))
        if matrix.type == "I32":
            yield rows
            continue
        try:
            yield _core.convert_rows(matrix.type, rows, matrix.n_cols, type_name, n_threads=n_threads)
        except _core.FormatError as error:
            raise _core.FormatError(f"counted from row {first}: {error}" if first else str(error)) from None

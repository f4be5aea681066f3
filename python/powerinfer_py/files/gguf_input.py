"""Reading a GGUF file in pieces, so that a model far larger than the memory can be worked on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from powerinfer_py import _core
from powerinfer_py._arguments import file_path
from powerinfer_py._core import FormatError, GgufFile, InvalidArgument, TensorInfo
from powerinfer_py.files.fingerprint import FINGERPRINT_KEY, fingerprint_of

CHUNK_BYTES = 16 << 20


@dataclass(frozen=True)
class Value:
    """A metadata value with its GGUF type."""

    type: str
    """"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64", "bool", "string", or "[...]" of these."""
    value: Any
    """int, float, bool or str; arrays: a list, or a one-dimensional numpy array."""


class GgufInput:
    """An opened, validated GGUF file. Tensor bytes are read, not mapped. Used by one thread at a time.

    Raises:
        InvalidArgument: the file cannot be opened. FormatError, UnsupportedError: what it holds is broken or unknown.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = file_path(path)
        header = GgufFile(self.path)
        self._stream = self.path.open("rb", buffering=0)
        self._n_bytes = header.n_bytes
        self.is_powerinfer: bool = header.has_powerinfer_magic
        self.metadata = {key: Value(*pair) for key, pair in _core.typed_metadata(header).items()}
        """Key -> value, in file order."""
        self.tensors: dict[str, TensorInfo] = {tensor.name: tensor for tensor in header.tensors}
        """Name -> description, in file order."""

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()

    def __enter__(self) -> GgufInput:
        """The file itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the file."""
        self.close()

    def get(self, key: str, default: Any = None) -> Any:
        """A key's plain value."""
        found = self.metadata.get(key)
        return default if found is None else found.value

    @property
    def architecture(self) -> str:
        """general.architecture; "" when absent."""
        return str(self.get("general.architecture", ""))

    @property
    def identity(self) -> str:
        """Names the file as it is now: what a resumed job compares."""
        status = self.path.stat()
        return f"{self.path.resolve()}:{status.st_size}:{status.st_mtime_ns}"

    @property
    def fingerprint(self) -> str:
        """powerinfer.fingerprint; of files without it BLAKE2b-128 over the header bytes and the file size (u64)."""
        stored = self.get(FINGERPRINT_KEY)
        if stored is not None:
            return str(stored)
        header_bytes = min((tensor.offset for tensor in self.tensors.values()), default=self._n_bytes)
        digest = hashlib.blake2b(self._pread(0, header_bytes), digest_size=16)
        digest.update(self._n_bytes.to_bytes(8, "little"))
        return digest.hexdigest()

    def computed_fingerprint(self) -> str:
        """The fingerprint of the weights as they stand in the file; reads all of it."""
        return fingerprint_of(self.tensors.values(), self.chunks)

    def chunks(self, tensor: TensorInfo) -> Iterator[memoryview]:
        """A tensor's bytes in pieces of at most CHUNK_BYTES."""
        for begin in range(0, tensor.n_bytes, CHUNK_BYTES):
            n = min(CHUNK_BYTES, tensor.n_bytes - begin)
            yield memoryview(self._pread(tensor.offset + begin, n))

    def read(self, name: str, first_row: int = 0, n_rows: int | None = None) -> npt.NDArray[np.uint8]:
        """Bytes of rows [n_rows, row_bytes]; dimensions above the first are flattened into rows."""
        tensor = self.tensor(name)
        total = int(np.prod(tensor.shape[1:], dtype=np.int64))
        n_rows = total - first_row if n_rows is None else n_rows
        if not 0 <= first_row <= first_row + n_rows <= total:
            raise InvalidArgument(
                f"{self.path}: tensor {name!r} has {total} rows, not {first_row} to {first_row + n_rows}"
            )
        row_bytes = tensor.n_bytes // total if total else 0
        data = self._pread(tensor.offset + first_row * row_bytes, n_rows * row_bytes)
        return np.frombuffer(data, dtype=np.uint8).reshape(n_rows, row_bytes)

    def read_f32(self, name: str, first_row: int = 0, n_rows: int | None = None) -> npt.NDArray[np.float32]:
        """Values of rows, float32 [n_rows, n_cols]."""
        tensor = self.tensor(name)
        rows = self.read(name, first_row, n_rows)
        n_cols = int(tensor.shape[0])
        return _core.dequantize(tensor.type, rows, len(rows) * n_cols).reshape(len(rows), n_cols)

    def tensor(self, name: str) -> TensorInfo:
        """A tensor's description."""
        found = self.tensors.get(name)
        if found is None:
            raise FormatError(f"{self.path}: tensor {name!r} is missing")
        return found

    def _pread(self, offset: int, n_bytes: int) -> bytearray:
        data = bytearray(n_bytes)
        view = memoryview(data)
        self._stream.seek(offset)
        done = 0
        while done < n_bytes:
            n = self._stream.readinto(view[done:])
            if not n:
                raise FormatError(f"{self.path}: the file became shorter while it was read; run again")
            done += n
        return data

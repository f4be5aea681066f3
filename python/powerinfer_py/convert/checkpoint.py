"""A Hugging Face folder: its configuration, and its tensors read in pieces from safetensors or from torch's files.

Safetensors are checked by their library and then read with plain reads: it knows no bfloat16 without torch, and mapped
pages would count as memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from powerinfer_py._core import FormatError, InvalidArgument, UnsupportedError
from powerinfer_py.convert.config import Config, read_json
from powerinfer_py.convert.matrix import Bytes
from powerinfer_py.files import load_torch_state
from powerinfer_py.files.torch_state import BFLOAT16

_CONFIG = "config.json"
_FORMS = (
    ("model.safetensors.index.json", "model.safetensors"),
    ("pytorch_model.bin.index.json", "pytorch_model.bin"),
)
_NUMPY_TYPES = {"float32": "F32", "float16": "F16", "float64": "F64"}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint, as a Matrix: rows are the last dimension."""

    name: str
    stored: str
    """F32, F16, BF16, F64, or what else a file may hold."""
    shape: tuple[int, ...]
    """torch order."""
    source: _SafetensorsFile | _TorchFile

    @property
    def type(self) -> str:
        """Of the bytes that `read` gives: no file has float64."""
        return "F32" if self.stored == "F64" else self.stored

    @property
    def n_cols(self) -> int:
        """Values of a row."""
        return self.shape[-1]

    @property
    def n_rows(self) -> int:
        """1 for vectors."""
        return int(np.prod(self.shape[:-1], dtype=np.int64))

    def read(self, first_row: int, n_rows: int) -> Bytes:
        """Bytes of rows [n_rows, row_bytes]."""
        data = self.source.read(self, first_row, n_rows)
        return data.view("<f8").astype(np.float32).view(np.uint8) if self.stored == "F64" else data


class Checkpoint:
    """An opened folder; a context manager.

    Raises:
        InvalidArgument: no checkpoint. FormatError: files are missing or contradict each other.
        UnsupportedError: a package is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / _CONFIG).is_file():
            raise InvalidArgument(f"{folder}: no {_CONFIG} in it; give the folder of a Hugging Face checkpoint")
        self.config = Config(read_json(folder / _CONFIG), str(folder / _CONFIG))
        self._files = [_open(path) for path in _weight_files(folder)]
        self.tensors: dict[str, StoredTensor] = {}
        for file in self._files:
            for tensor in file.tensors():
                if tensor.name in self.tensors:
                    raise FormatError(f"{file.path}: tensor {tensor.name!r} is in another file of the folder too")
                self.tensors[tensor.name] = tensor
        self._check_index()

    def __enter__(self) -> Checkpoint:
        """The checkpoint itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the files."""
        for file in self._files:
            file.close()

    @property
    def identity(self) -> str:
        """Names the files as they are now."""
        status = [(file.path, file.path.stat()) for file in self._files]
        parts = [f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}" for path, stat in status]
        return "\n".join([*parts, (self.folder / _CONFIG).read_text(encoding="utf-8")])

    def _check_index(self) -> None:
        for index, _ in _FORMS:
            path = self.folder / index
            if path.is_file() and self._files[0].path.suffix == Path(index.removesuffix(".index.json")).suffix:
                missing = sorted(set(_weight_map(path)) - set(self.tensors))
                if missing:
                    raise FormatError(f"{path}: tensor {missing[0]!r} is in no shard; download the checkpoint again")


def _weight_files(folder: Path) -> list[Path]:
    for index, single in _FORMS:
        if (folder / index).is_file():
            return _shards(folder / index)
        if (folder / single).is_file():
            return [folder / single]
    names = ", ".join(name for form in _FORMS for name in form)
    raise InvalidArgument(f"{folder}: no weights in it; expected one of {names}")


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(n, str) for n in weight_map.values()):
        raise FormatError(f"{index}: expected 'weight_map', tensor name to file name")
    return weight_map


def _shards(index: Path) -> list[Path]:
    shards = sorted(set(_weight_map(index).values()))
    for name in shards:
        if Path(name).name != name:
            raise FormatError(f"{index}: shard {name!r}: expected the name of a file in the same folder")
        if not (index.parent / name).is_file():
            raise FormatError(f"{index.parent}: shard {name} is missing; download the checkpoint again")
    return [index.parent / name for name in shards]


def _open(path: Path) -> _SafetensorsFile | _TorchFile:
    return _SafetensorsFile(path) if path.suffix == ".safetensors" else _TorchFile(path)


class _SafetensorsFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        _check_safetensors(path)
        self._stream = path.open("rb", buffering=0)
        size = int.from_bytes(self._stream.read(8), "little")
        self._entries: dict[str, Any] = json.loads(self._stream.read(size))
        self._entries.pop("__metadata__", None)
        self._data_begin = 8 + size

    def tensors(self) -> Iterator[StoredTensor]:
        for name, entry in self._entries.items():
            yield StoredTensor(name, entry["dtype"], tuple(entry["shape"]), self)

    def read(self, tensor: StoredTensor, first_row: int, n_rows: int) -> Bytes:
        begin, end = self._entries[tensor.name]["data_offsets"]
        row_bytes = (end - begin) // tensor.n_rows
        data = np.empty((n_rows, row_bytes), dtype=np.uint8)
        view, done = data.reshape(-1).data, 0
        self._stream.seek(self._data_begin + begin + first_row * row_bytes)
        while done < len(view):
            n = self._stream.readinto(view[done:])
            if not n:
                raise FormatError(f"{self.path}: the file became shorter while it was read; run again")
            done += n
        return data

    def close(self) -> None:
        self._stream.close()


def _check_safetensors(path: Path) -> None:
    try:
        from safetensors import SafetensorError, safe_open  # noqa: PLC0415
    except ImportError:
        raise UnsupportedError(f"{path}: needs safetensors; pip install 'powerinfer_py[convert]'") from None
    try:
        with safe_open(path, framework="np"):
            pass
    except SafetensorError as error:
        raise FormatError(f"{path}: not a whole safetensors file: {error}; download it again") from None


class _TorchFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = load_torch_state(path)

    def tensors(self) -> Iterator[StoredTensor]:
        for name, array in self._state.items():
            type_name = "BF16" if array.dtype == BFLOAT16 else _NUMPY_TYPES.get(array.dtype.name, array.dtype.name)
            yield StoredTensor(name, type_name, array.shape, self)

    def read(self, tensor: StoredTensor, first_row: int, n_rows: int) -> Bytes:
        array = self._state[tensor.name].reshape(tensor.n_rows, tensor.n_cols)[first_row : first_row + n_rows]
        return np.ascontiguousarray(array).view(np.uint8).reshape(n_rows, -1)

    def close(self) -> None:
        self._state.clear()

"""Writing a GGUF file tensor by tensor: complete under its name or not at all, and resumable after a kill.

The file grows as `<name>.part`; `<name>.part.json` says how many tensors of it are finished and what for. A later run
with the same header and the same inputs goes on there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from powerinfer_py._arguments import file_path
from powerinfer_py._core import Error, GgufHeader, InvalidArgument, TensorInfo
from powerinfer_py.files.disk import check_free_disk, remove_written, telling_full_disk, write_atomically
from powerinfer_py.files.fingerprint import FINGERPRINT_KEY, fingerprint_of, is_side_tensor
from powerinfer_py.files.gguf_input import CHUNK_BYTES, GgufInput, Value
from powerinfer_py.files.lock import open_locked
from powerinfer_py.files.progress import Progress

_PLACEHOLDER = "0" * 32
_ALIGNMENT = 32
_NUMPY_TYPES = {
    "uint8": "[u8]", "int8": "[i8]", "uint16": "[u16]", "int16": "[i16]", "uint32": "[u32]", "int32": "[i32]",
    "uint64": "[u64]", "int64": "[i64]", "float32": "[f32]", "float64": "[f64]", "bool": "[bool]",
}  # fmt: skip


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be written."""

    name: str
    type: str
    shape: tuple[int, ...]
    """GGUF order."""
    n_bytes: int


@dataclass(frozen=True)
class OutputReport:
    """What became of a file."""

    path: Path
    n_bytes: int
    n_tensors: int
    n_resumed: int
    """Tensors that an earlier, interrupted run had finished."""
    seconds: float
    fingerprint: str


Bytes = bytes | bytearray | memoryview | npt.NDArray[Any]
Producer = Callable[[TensorSpec], "Bytes | Iterator[Bytes]"]


class GgufOutput:
    """A file to be written.

    Args:
        path: where it will lie.
        powerinfer: magic "PWRI" instead of "GGUF".
        force: an existing file is replaced, when the new one is complete.

    Raises:
        InvalidArgument: the file exists and `force` is not set.
    """

    def __init__(self, path: str | os.PathLike[str], *, powerinfer: bool, force: bool = False) -> None:
        self.path = file_path(path)
        self.part = self.path.with_name(self.path.name + ".part")
        if self.path.exists() and not force:
            raise InvalidArgument(f"{self.path}: exists already; choose another name, or --force (force=True)")
        if self.path.exists() and not self.path.is_file():
            raise InvalidArgument(f"{self.path}: is not a regular file; give the path of a file")
        if not self.path.parent.is_dir():
            raise InvalidArgument(f"{self.path}: the folder {self.path.parent} does not exist; make it first")
        self._powerinfer = powerinfer
        self._metadata: dict[str, Value] = {}
        self._tensors: list[tuple[str, str, tuple[int, ...]]] = []

    def set(self, key: str, value: Any, type: str | None = None) -> None:
        """Sets a key: a Value, str, bool, int (u32), float (f32), array or list of these, or anything with its type."""
        self._metadata[key] = value if isinstance(value, Value) else Value(type or _type_of(key, value), value)

    def discard(self, key: str) -> None:
        """Takes a key back, if it is there."""
        self._metadata.pop(key, None)

    def copy_metadata(self, source: GgufInput, *, skip: Callable[[str], bool] = lambda key: False) -> None:
        """Takes over all keys but those that `skip` names, the alignment and the fingerprint."""
        for key, value in source.metadata.items():
            if key not in ("general.alignment", FINGERPRINT_KEY) and not skip(key):
                self._metadata[key] = value

    def add_tensor(self, name: str, type: str, shape: Sequence[int]) -> None:
        """Declares a tensor; shape in GGUF order. The file has them in the order of these calls."""
        self._tensors.append((name, type, tuple(int(size) for size in shape)))

    def check_free_disk(self, n_bytes: int) -> None:
        """Raises OSError (ENOSPC) when there is no room for a file of about `n_bytes`, early: before the work for it.

        What an interrupted run has left of the file counts as room.
        """
        left = self.part.stat().st_size if self.part.exists() else 0
        check_free_disk(self.path.parent, max(0, n_bytes - left))

    def write(
        self,
        produce: Producer,
        *,
        identity: str,
        progress: Progress | None = None,
        before_naming: Callable[[str], object] | None = None,
    ) -> OutputReport:
        """Writes the file.

        Args:
            produce: a tensor's bytes, whole or in chunks; called in file order, not for tensors finished earlier.
            identity: names everything that the bytes depend on beside the header, e.g. `GgufInput.identity` and the
                options. What an interrupted run left behind is used only if it is the same.
            progress: told about bytes.
            before_naming: called with the fingerprint when the file is complete, before it gets its name: writes what
                must lie beside it then.

        Raises:
            InvalidArgument: the header cannot be written, or another process writes the same file.
            OSError: no room (nothing was written), or the disk failed; what is finished stays for the next run.
            Whatever `produce` raises.
        """
        begin = time.monotonic()
        progress = progress or Progress()
        header = self._header()
        encoded, tensors = header.encode(), header.tensors
        advice = "the finished tensors stay in this file. Free some space and run again: it goes on there"
        with _Part(self.part, encoded, tensors, identity) as file, telling_full_disk(self.part, advice):
            if file.n_done:
                progress.note(f"goes on where an earlier run ended: {file.n_done} of {len(tensors)} tensors are done")
            n_resumed = file.n_done
            with _bar(progress, "writing", file.n_bytes_left):
                file.write_tensors(produce, progress)
            with _bar(progress, "fingerprint", sum(t.n_bytes for t in tensors if not is_side_tensor(t.name))):
                fingerprint = file.finish(progress)
            if before_naming is not None:
                before_naming(fingerprint)
        os.replace(self.part, self.path)
        return OutputReport(
            self.path, self.path.stat().st_size, len(tensors), n_resumed, time.monotonic() - begin, fingerprint
        )

    def _header(self) -> GgufHeader:
        header = GgufHeader(powerinfer=self._powerinfer, alignment=_ALIGNMENT)
        for key, value in self._metadata.items():
            header.add(key, value.type, value.value)
        header.add(FINGERPRINT_KEY, "string", _PLACEHOLDER)
        for name, type_name, shape in self._tensors:
            header.add_tensor(name, type_name, shape)
        return header


class _Part:
    """The unfinished file and its journal."""

    def __init__(self, path: Path, header: bytes, tensors: list[TensorInfo], identity: str) -> None:
        self.path = path
        self.journal = path.with_name(path.name + ".json")
        self.header = header
        self.tensors = tensors
        self.plan = blake2b(header + identity.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        self.n_done = 0
        self.size = tensors[-1].offset + tensors[-1].n_bytes if tensors else len(header)
        self.size += -self.size % _ALIGNMENT
        self.file: FileIO

    def _tensors_done(self) -> int:
        """Tensors that an earlier run of the same plan has finished."""
        try:
            journal = json.loads(self.journal.read_bytes())
            n_done = int(journal["n_done"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0
        if journal.get("plan") != self.plan or not 0 < n_done <= len(self.tensors):
            return 0
        last = self.tensors[n_done - 1]
        return n_done if self._n_present >= last.offset + last.n_bytes else 0

    @property
    def n_bytes_left(self) -> int:
        """Bytes of the tensors that are not finished."""
        return sum(tensor.n_bytes for tensor in self.tensors[self.n_done :])

    def __enter__(self) -> _Part:
        self.file = open_locked(self.path)
        try:
            self.n_done = self._tensors_done()
            if not self.n_done:
                self.file.truncate(0)
            check_free_disk(self.path.parent, self.size - self._n_present)
            if not self.n_done:
                self._write(self.header)
        except BaseException:
            if self.n_done:
                self.file.close()
            else:
                self._abandon()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, Error):
            self._abandon()  # the input is wrong: there is nothing to go on with
        self.file.close()
        if kind is None:
            remove_written(self.journal)

    def _abandon(self) -> None:
        self.file.close()
        self.path.unlink(missing_ok=True)
        remove_written(self.journal)

    @property
    def _n_present(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def write_tensors(self, produce: Producer, progress: Progress) -> None:
        while self.n_done < len(self.tensors):
            tensor = self.tensors[self.n_done]
            self.file.seek(tensor.offset)
            self._write_tensor(tensor, produce, progress)
            self.n_done += 1
            journal = json.dumps({"plan": self.plan, "n_done": self.n_done}).encode()
            write_atomically(self.journal, lambda file, data=journal: file.write(data))  # type: ignore[misc]

    def _write_tensor(self, tensor: TensorInfo, produce: Producer, progress: Progress) -> None:
        produced = produce(TensorSpec(tensor.name, tensor.type, tensor.shape, tensor.n_bytes))
        written = 0
        for chunk in produced if isinstance(produced, Iterator) else (produced,):
            array = np.ascontiguousarray(chunk) if isinstance(chunk, np.ndarray) else np.frombuffer(chunk, np.uint8)
            view = array.reshape(-1).view(np.uint8).data
            if written + len(view) > tensor.n_bytes:
                break
            for begin in range(0, len(view), CHUNK_BYTES):
                piece = view[begin : begin + CHUNK_BYTES]
                self._write(piece)
                progress.advance(len(piece))
            written += len(view)
        else:
            if written == tensor.n_bytes:
                return
        raise ValueError(f"tensor {tensor.name!r}: expected {tensor.n_bytes} bytes, got {written} or another number")

    def _write(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.file.write(view) :]

    def finish(self, progress: Progress) -> str:
        """Pads the file, writes the fingerprint into the header and brings everything to the disk."""
        self.file.truncate(self.size)
        fingerprint = fingerprint_of(self.tensors, lambda tensor: self._read(tensor, progress))
        self.file.seek(self.header.index(_PLACEHOLDER.encode(), self.header.index(FINGERPRINT_KEY.encode())))
        self._write(fingerprint.encode())
        os.fsync(self.file.fileno())
        return fingerprint

    def _read(self, tensor: TensorInfo, progress: Progress) -> Iterator[bytes]:
        self.file.seek(tensor.offset)
        left = tensor.n_bytes
        while left:
            chunk = self.file.read(min(CHUNK_BYTES, left))
            if not chunk:
                raise OSError(f"{self.path}: the file became shorter while it was written")
            left -= len(chunk)
            progress.advance(len(chunk))
            yield chunk


@contextmanager
def _bar(progress: Progress, title: str, total: int) -> Iterator[None]:
    progress.start(title, total, "B")
    try:
        yield
    finally:
        progress.finish()


def _type_of(key: str, value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.name in _NUMPY_TYPES:
        return _NUMPY_TYPES[value.dtype.name]
    sample = value[0] if isinstance(value, (list, tuple)) and value else value
    for kind, name in ((str, "string"), (bool, "bool"), (int, "u32"), (float, "f32")):
        if isinstance(sample, kind):
            return name if sample is value else f"[{name}]"
    raise TypeError(f"metadata key {key!r}: give the type of {type(value).__name__}")

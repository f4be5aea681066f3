"""Free space, inputs that stay, and files that exist complete or not at all."""

from __future__ import annotations

import errno
import glob
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from powerinfer_py._core import InvalidArgument

_RESERVE = 1 << 20
"""Bytes left alone: journals and directory entries."""


def check_free_disk(folder: Path, n_bytes: int) -> None:
    """Raises OSError (ENOSPC) when `folder` has no room for `n_bytes` more."""
    free = shutil.disk_usage(folder).free
    if free < n_bytes + _RESERVE:
        raise OSError(
            errno.ENOSPC,
            f"needs {n_bytes / 1e9:.3f} GB of disk, {free / 1e9:.3f} GB are free; nothing was written. "
            "Free some space or choose another folder",
            str(folder),
        )


def refuse_input_as_output(output: Path, inputs: Iterable[Path]) -> None:
    """Raises InvalidArgument when `output` exists and is an input, or a file of a folder that is one.

    GGUF files in such a folder were made from it and are no part of it.
    """
    if not output.exists():
        return
    for path in filter(Path.exists, inputs):
        is_part = path.resolve() in output.resolve().parents and output.suffix != ".gguf"
        if output.samefile(path) or is_part:
            raise InvalidArgument(f"{output}: belongs to the input {path}, which is never changed; choose another name")


@contextmanager
def telling_full_disk(path: Path, advice: str) -> Iterator[None]:
    """Gives the OSError (ENOSPC) of a write that found no room the name of the file, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise OSError(errno.ENOSPC, f"the disk is full; {advice}", str(path)) from error


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Lets `write` fill a temporary file beside `path`, then renames it; on any error nothing remains of it.

    What killed runs left of the same file goes too.
    """
    temporary = path.with_name(f"{path.name}.partial-{os.getpid()}")
    advice = "nothing was written under this name. Free some space and run again"
    try:
        with telling_full_disk(path, advice), temporary.open("wb") as file:
            write(file)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _remove_partials(path)


def remove_written(path: Path) -> None:
    """Removes a file of `write_atomically`, if it is there, and what killed runs left of it."""
    path.unlink(missing_ok=True)
    _remove_partials(path)


def _remove_partials(path: Path) -> None:
    for left in path.parent.glob(f"{glob.escape(path.name)}.partial-*"):
        left.unlink(missing_ok=True)

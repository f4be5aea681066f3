"""One writer per file."""

from __future__ import annotations

import os
import sys
from io import FileIO
from pathlib import Path

from powerinfer_py._core import InvalidArgument


def open_locked(path: Path) -> FileIO:
    """Opens (or makes) a file for reading and writing and keeps other processes out of it until it is closed.

    The lock ends with the process, however it ends.

    Raises:
        InvalidArgument: another process has the file. OSError: it cannot be opened.
    """
    while True:
        file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "r+")
        try:
            _lock(file.fileno(), path)
            # Between opening and locking, its last owner may have renamed it.
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            file.close()
            raise
        file.close()


def _lock(handle: int, path: Path) -> None:
    try:
        if sys.platform == "win32":
            import msvcrt  # noqa: PLC0415

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl  # noqa: PLC0415

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InvalidArgument(
            f"{path}: another process is writing this file; wait for it or choose another name"
        ) from None

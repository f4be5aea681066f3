"""Checks of arguments before they reach C++, where a wrong Python type or a huge int would be a long TypeError."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import SupportsIndex

from powerinfer_py._core import InvalidArgument

_INT32_MAX = 2**31 - 1


def count(name: str, value: SupportsIndex | None, *, minimum: int = 1) -> int:
    """`value` as an int from `minimum` to 2**31 - 1; None is 0, which means "default" in C++."""
    if value is None:
        return 0
    number = operator.index(value)
    if not minimum <= number <= _INT32_MAX:
        raise InvalidArgument(f"{name} is {number}; expected {minimum} to {_INT32_MAX}")
    return number


def seed_number(value: SupportsIndex | None) -> int | None:
    """A seed of 32 bits; None and -1 ask for a random one."""
    if value is None:
        return None
    number = operator.index(value)
    if number == -1:
        return None
    if not 0 <= number < 2**32:
        raise InvalidArgument(f"seed is {number}; expected 0 to {2**32 - 1}, or -1 for a random one")
    return number


def file_path(path: str | os.PathLike[str]) -> Path:
    """`path` as a Path that the file system can be asked about."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"path: expected str or os.PathLike[str], got {type(path).__name__}")
    if not text or "\0" in text:
        raise InvalidArgument(f"{text!r} is no file name")
    return Path(text)


def thresholds(value: float | Sequence[float] | None) -> list[float] | None:
    """One threshold or one per layer, as a list."""
    if value is None:
        return None
    if isinstance(value, (int, float)):
        return [float(value)]
    result = [float(item) for item in value]
    if not result:
        raise InvalidArgument("threshold is an empty list; expected one number, or one per layer")
    return result

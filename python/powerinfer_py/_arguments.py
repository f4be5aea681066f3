"""Checks of arguments before they reach C++, where a wrong Python type or a huge int would be a long TypeError."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import SupportsIndex

import numpy as np

from powerinfer_py._core import InvalidArgument

AnyPath = str | os.PathLike[str]

_INT32_MAX = 2**31 - 1


def count(name: str, value: SupportsIndex, *, minimum: int = 1) -> int:
    """`value` as an int from `minimum` to 2**31 - 1."""
    number = operator.index(value)
    if number < minimum:
        raise InvalidArgument(f"{name} is {number}; expected {minimum} or more")
    if number > _INT32_MAX:
        raise InvalidArgument(f"{name} is {number}; expected at most {_INT32_MAX}")
    return number


def optional_count(name: str, value: SupportsIndex | None) -> int:
    """As count(); None is 0, which means "default" in C++."""
    return 0 if value is None else count(name, value)


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


def file_path(path: AnyPath) -> Path:
    """`path` as a Path that the file system can be asked about."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"path: expected str or os.PathLike[str], got {type(path).__name__}")
    if not text or "\0" in text:
        raise InvalidArgument(f"{text!r} is no file name")
    return Path(text)


def file_paths(paths: AnyPath | Sequence[AnyPath]) -> list[Path]:
    """Paths, or a single one, as file_path() gives them."""
    return [file_path(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]


def thresholds(value: float | Sequence[float] | None) -> list[float] | None:
    """One threshold or one per layer, as a list."""
    if value is None:
        return None
    try:
        numbers = None if isinstance(value, (str, bytes)) else np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError):
        numbers = None
    if numbers is None or numbers.ndim != 1 or not len(numbers):
        raise InvalidArgument(f"threshold is {value!r}; expected one number, or one per layer")
    return [float(number) for number in numbers]

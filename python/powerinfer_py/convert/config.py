"""config.json of a checkpoint: values with their types checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from powerinfer_py._core import FormatError

_LARGEST = 2**31 - 1
_LARGEST_FLOAT = 3.4e38  # files hold float32


class Config:
    """The values of a JSON object. Values that are null count as absent.

    Args:
        values: what the object holds.
        where: names it in messages.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.where = where
        self._values = values

    def get(self, name: str) -> Any:
        """A value as it stands; None when absent."""
        return self._values.get(name)

    def integer(self, *names: str, default: int | None = None) -> int:
        """The first of these that is there, at least 1.

        Raises:
            FormatError: none is there and there is no default, or the value is no positive integer.
        """
        name, value = self._first(names, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _LARGEST:
            raise self._wrong(name, "a positive integer", value)
        return value

    def number(self, *names: str, default: float | None = None, above: float | None = None) -> float:
        """The first of these that is there, within float32 and more than `above`.

        Raises:
            FormatError: as `integer`.
        """
        name, value = self._first(names, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST_FLOAT
        if not is_number or (above is not None and value <= above):
            raise self._wrong(name, "a number" if above is None else f"a number above {above:g}", value)
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false.

        Raises:
            FormatError: anything else.
        """
        value = self._first((name,), default)[1]
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def string(self, *names: str, default: str | None = None) -> str:
        """The first of these that is there.

        Raises:
            FormatError: as `integer`.
        """
        name, value = self._first(names, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def object(self, name: str) -> Config | None:
        """An object inside; None when absent.

        Raises:
            FormatError: it is no object.
        """
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return Config(value, f"{self.where}: {name}")

    def _first(self, names: tuple[str, ...], default: Any) -> tuple[str, Any]:
        for name in names:
            if self.get(name) is not None:
                return name, self.get(name)
        if default is None:
            raise FormatError(f"{self.where}: {names[0]!r} is missing")
        return names[0], default

    def _wrong(self, name: str, expected: str, value: Any) -> FormatError:
        return FormatError(f"{self.where}: {name!r}: expected {expected}, got {value!r}")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        FormatError: it holds anything else. OSError: it cannot be read.
    """
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value

"""Where the library's messages go: by default to the standard logger "powerinfer_py", which nobody has to see."""

from __future__ import annotations

import logging
from collections.abc import Callable

from powerinfer_py import _core

logger = logging.getLogger("powerinfer_py")
logger.addHandler(logging.NullHandler())

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


def _to_logging(level: str, message: str) -> None:
    logger.log(_LEVELS[level], "%s", message)


def set_log_callback(callback: Callable[[str, str], None] | None) -> None:
    """Sends the library's messages to `callback(level, message)` instead of to `logging`.

    `level` is "debug", "info" or "warning". None goes back to the logger "powerinfer_py". The callback may be called
    from any thread that uses the library; what it raises is reported as unraisable and otherwise ignored.
    """
    _core.set_log_callback(_to_logging if callback is None else callback)


_core.set_log_callback(_to_logging)

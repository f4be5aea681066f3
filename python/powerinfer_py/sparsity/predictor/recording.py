"""What flows through the FFN of a few layers while the engine reads text, on disk: inputs and results, as float16."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer_py._arguments import AnyPath, file_paths
from powerinfer_py._core import InvalidArgument, RowRecorder
from powerinfer_py.context import Context, TapPoint
from powerinfer_py.files import Progress, check_free_disk, telling_full_disk
from powerinfer_py.model import Model
from powerinfer_py.sparsity.scoring import read_window
from powerinfer_py.sparsity.text import load_windows

_HELD_OUT_SHARE = 10
"""Every text's last tenth is kept for judging what was trained on the rest."""


@dataclass(frozen=True)
class Windows:
    """Tokens to train on and to judge by."""

    train: npt.NDArray[np.int32]
    """[n, n_ctx]"""
    held_out: npt.NDArray[np.int32]
    """[n, n_ctx]"""

    @property
    def n_ctx(self) -> int:
        """Tokens of a window."""
        return int(self.train.shape[1])

    @property
    def n_train(self) -> int:
        """Tokens to train on."""
        return int(self.train.size)

    @property
    def n_held_out(self) -> int:
        """Tokens to judge by."""
        return int(self.held_out.size)


def split_windows(model: Model, texts: AnyPath | Sequence[AnyPath], *, n_ctx: int, max_tokens: int) -> Windows:
    """Windows of the texts, evenly sampled down to `max_tokens`; the last tenth of each text is held out.

    Raises:
        InvalidArgument: a text is not UTF-8, or gives fewer than two windows.
    """
    train, held_out = [], []
    for path in file_paths(texts):
        windows = load_windows(model, [path], n_ctx=n_ctx)
        if len(windows) < 2:
            raise InvalidArgument(
                f"{path}: too short: {len(windows)} window of {n_ctx} tokens, and one to train on and one to judge by "
                "are needed; give more text or a smaller context"
            )
        n_held_out = max(1, len(windows) // _HELD_OUT_SHARE)
        train.append(windows[:-n_held_out])
        held_out.append(windows[-n_held_out:])
    n_held_out = max(1, max_tokens // n_ctx // _HELD_OUT_SHARE)
    n_train = max(1, max_tokens // n_ctx - n_held_out)
    return Windows(_sample(np.concatenate(train), n_train), _sample(np.concatenate(held_out), n_held_out))


def _sample(windows: npt.NDArray[np.int32], limit: int) -> npt.NDArray[np.int32]:
    n = min(limit, len(windows))
    return windows[np.arange(n) * len(windows) // n]


@dataclass(frozen=True)
class Plan:
    """What is recorded of each layer."""

    windows: Windows
    point: TapPoint
    """Where the predictor reads."""
    with_ffn_input: bool
    """The FFN's own input too, where the predictor reads elsewhere."""
    train_h: bool
    """h of the training text too, not only of the held-out one."""

    def bytes_per_layer(self, d_model: int, d_ff: int) -> int:
        """Disk that one layer's recording needs."""
        n_rows = self.windows.n_train + self.windows.n_held_out
        n_h = n_rows if self.train_h else self.windows.n_held_out
        return 2 * (n_rows * d_model * (2 if self.with_ffn_input else 1) + n_h * d_ff)


class Recording:
    """One layer's recorded rows: training text first, then the held-out text."""

    def __init__(self, folder: Path, layer: int, plan: Plan, d_model: int, d_ff: int) -> None:
        self._path = folder / f"layer_{layer}"
        self._plan = plan
        self._d_model, self._d_ff = d_model, d_ff

    def file(self, what: str) -> Path:
        """The file of "z", "x" or "h"."""
        return self._path.with_name(f"{self._path.name}.{what}.f16")

    @property
    def is_complete(self) -> bool:
        """Whether an earlier run has recorded it."""
        return self.file("z").exists()

    def remove(self) -> None:
        """Frees the disk."""
        for what in ("z", "x", "h"):
            self.file(what).unlink(missing_ok=True)

    def _rows(self, what: str, width: int) -> npt.NDArray[np.float16]:
        return np.memmap(self.file(what), dtype=np.float16, mode="r").reshape(-1, width)

    def z(self, *, held_out: bool) -> npt.NDArray[np.float16]:
        """The predictor's inputs [n, d_model]."""
        return self._part(self._rows("z", self._d_model), held_out)

    def x(self, *, held_out: bool) -> npt.NDArray[np.float16]:
        """The FFN's inputs [n, d_model]."""
        return self._part(self._rows("x" if self._plan.with_ffn_input else "z", self._d_model), held_out)

    def h(self, *, held_out: bool) -> npt.NDArray[np.float16]:
        """The neurons' values [n, d_ff]; of the training text only where the plan says so."""
        rows = self._rows("h", self._d_ff)
        return self._part(rows, held_out) if self._plan.train_h else rows

    def _part(self, rows: npt.NDArray[np.float16], held_out: bool) -> npt.NDArray[np.float16]:
        n_train = self._plan.windows.n_train
        return rows[n_train:] if held_out else rows[:n_train]


def record(
    model: Model, plan: Plan, recordings: dict[int, Recording], n_bytes: int, n_threads: int | None, progress: Progress
) -> None:
    """Runs the engine over the plan's text and records the given layers; each is complete or absent afterwards.

    Raises:
        FormatError: the model's weights are not finite. OSError: no room for `n_bytes`, or the disk failed.
    """
    folder = next(iter(recordings.values())).file("z").parent
    for abandoned in folder.glob("layer_*.f16.partial"):
        abandoned.unlink()
    check_free_disk(folder, n_bytes)
    windows = plan.windows
    n_ctx = windows.n_ctx
    names = ("z", "h", "x") if plan.with_ffn_input else ("z", "h")
    advice = "finished layers stay here. Free some space, or give less --cache-gb, and run again: it goes on there"
    with telling_full_disk(folder, advice), ExitStack() as stack:
        files = {
            (what, layer): stack.enter_context(_partial(recording.file(what)).open("wb", buffering=1 << 20))
            for what in names
            for layer, recording in recordings.items()
        }
        context = stack.enter_context(
            Context(model, n_ctx=n_ctx, n_batch=min(512, n_ctx), sparsity="exact", n_threads=n_threads)
        )
        widths = {"z": model.d_model, "x": model.d_model, "h": model.d_ff}
        sinks = {what: RowRecorder(model.n_layers, widths[what], list(recordings)) for what in names}
        context.set_tap(plan.point, sinks["z"])
        if plan.with_ffn_input:
            context.set_tap("ffn_input", sinks["x"])
        progress.start("reading text", windows.n_train + windows.n_held_out, "tokens")
        for part, with_h in ((windows.train, plan.train_h), (windows.held_out, True)):
            context.set_tap("h", sinks["h"] if with_h else None)
            for window in part:
                read_window(model, context, window)
                for (what, layer), file in files.items():
                    file.write(sinks[what].take(layer).data)
                progress.advance(n_ctx)
        progress.finish()
    for recording in recordings.values():
        for what in reversed(names):  # "z" comes last: it says that the layer is complete
            os.replace(_partial(recording.file(what)), recording.file(what))


def recorded_bytes(folder: Path) -> int:
    """Disk that the recordings in a folder hold, finished or not; it is free again when they have been used."""
    return sum(path.stat().st_size for path in folder.glob("layer_*.f16*"))


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")

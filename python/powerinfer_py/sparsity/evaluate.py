"""What skipping neurons costs and brings: perplexity, bytes per token and speed of a model's modes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from powerinfer_py._arguments import AnyPath, file_path, file_paths, optional_count
from powerinfer_py._core import InvalidArgument
from powerinfer_py.context import Context
from powerinfer_py.files import Progress
from powerinfer_py.model import Model, Sparsity
from powerinfer_py.sparsity.plots import new_figure, save_figure
from powerinfer_py.sparsity.scoring import Score, score_window
from powerinfer_py.sparsity.text import load_windows, window_size

OFFSETS = (-1.0, -0.5, 0.0, 0.5, 1.0)
"""Added to the predictor's thresholds, by default."""

_PROMPT_TOKENS = 16
_DECODED_TOKENS = 64
_RUNS = 3


@dataclass(frozen=True)
class Row:
    """One way to run the model."""

    mode: str
    """"dense", "exact" or "predictor"."""
    offset: float | None
    """What was added to every layer's threshold; None without a predictor."""
    perplexity: float
    density: float
    """Share of neurons with h != 0."""
    predicted_density: float | None
    """Share of neurons predicted active, in the layers that have a predictor."""
    bytes_per_token: float
    """Weights touched by a pass of a single token."""
    tokens_per_second: float
    """Of single-token passes."""


@dataclass(frozen=True)
class SparsityTable:
    """All rows, and what they were measured on."""

    path: Path
    n_windows: int
    n_ctx: int
    n_scored: int
    n_threads: int
    rows: list[Row]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"path": str(self.path)}


def perplexity_of(
    model: Model, context: Context, windows: npt.NDArray[np.int32], progress: Progress | None = None
) -> float:
    """Perplexity over windows [n, n_ctx], as `powerinfer perplexity` measures it.

    Raises:
        InvalidArgument: the logits are not finite.
    """
    score = Score()
    for window in windows:
        score_window(model, context, window, score)
        if progress is not None:
            progress.advance()
    return score.perplexity


def decode_speed(contexts: Sequence[Context], tokens: npt.NDArray[np.int32]) -> list[tuple[float, float]]:
    """(tokens per second, bytes of weights per token) of single-token passes over a text.

    The contexts take turns, and each one's middle run counts, so that a disturbance of the machine meets all of them.
    """
    prompt, rest = tokens[:_PROMPT_TOKENS], tokens[_PROMPT_TOKENS : _PROMPT_TOKENS + _DECODED_TOKENS]
    runs: list[list[float]] = [[] for _ in contexts]
    n_bytes = [0.0] * len(contexts)
    for _ in range(_RUNS):
        for index, context in enumerate(contexts):
            context.reset()
            context.eval(prompt)
            context.reset_stats()
            for token in rest:
                context.eval([int(token)])
            stats = context.stats
            runs[index].append(stats["generate_tokens_per_second"] or 0.0)
            n_bytes[index] = stats["weight_bytes_per_token"] or 0.0
    return [(median(speeds), touched) for speeds, touched in zip(runs, n_bytes, strict=True)]


def evaluate_sparsity(
    model_path: AnyPath,
    texts: AnyPath | Sequence[AnyPath],
    *,
    offsets: Sequence[float] = OFFSETS,
    n_ctx: int | None = None,
    max_windows: int | None = None,
    n_threads: int | None = None,
    progress: Progress | None = None,
) -> SparsityTable:
    """Measures every mode that a model has; of a predictor, once per threshold offset.

    Raises:
        InvalidArgument: too little text, no window wanted or too small ones, or an offset that is no number.
    """
    progress = progress or Progress()
    if not all(math.isfinite(offset) for offset in offsets):
        raise InvalidArgument(f"threshold offsets {list(offsets)}: expected numbers")
    optional_count("max_windows (--chunks)", max_windows)
    model_path, texts = file_path(model_path), file_paths(texts)
    with Model(model_path, n_threads=n_threads) as model:
        n_ctx = window_size(model, n_ctx, minimum=_PROMPT_TOKENS + 4)
        windows = load_windows(model, texts, n_ctx=n_ctx, max_windows=max_windows)
        ways = _ways(model, offsets)
        contexts = [_context(model, n_ctx, mode, offset) for mode, offset in ways]
        progress.start("perplexity", len(contexts) * len(windows), "windows")
        measured = []
        for context in contexts:
            perplexity = perplexity_of(model, context, windows, progress)
            measured.append((perplexity, context.stats))
        progress.finish()
        speeds = decode_speed(contexts, windows[0])
        used_threads = contexts[0].stats["n_threads"]
        for context in contexts:
            context.close()
    rows = [
        Row(mode, offset, perplexity, stats["mean_density"] or 0.0, stats["mean_predicted_density"], touched, speed)
        for (mode, offset), (perplexity, stats), (speed, touched) in zip(ways, measured, speeds, strict=True)
    ]
    n_scored = len(windows) * (n_ctx - n_ctx // 2 - 1)
    return SparsityTable(model_path, len(windows), n_ctx, n_scored, used_threads, rows)


def _ways(model: Model, offsets: Sequence[float]) -> list[tuple[Sparsity, float | None]]:
    available = {mode.name for mode in model.modes if mode.available}
    ways: list[tuple[Sparsity, float | None]] = [("dense", None)]
    if "exact" in available:
        ways.append(("exact", None))
    if "predictor" in available:
        ways += [("predictor", float(offset)) for offset in sorted(set(offsets))]
    return ways


def _context(model: Model, n_ctx: int, mode: Sparsity, offset: float | None) -> Context:
    thresholds = None if offset is None else [layer.predictor_threshold + offset for layer in model.layers]
    return Context(model, n_ctx=n_ctx, n_batch=min(512, n_ctx), sparsity=mode, threshold=thresholds)


def plot_sparsity(path: AnyPath, table: SparsityTable) -> None:
    """Perplexity and speed over bytes per token, as PNG or SVG.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    figure = new_figure(9.2, 3.8)
    quality, speed = figure.subplots(1, 2)
    for mode, marker in (("dense", "s"), ("exact", "D"), ("predictor", "o")):
        rows = sorted((row for row in table.rows if row.mode == mode), key=lambda row: row.bytes_per_token)
        if not rows:
            continue
        n_bytes = [row.bytes_per_token / 1e6 for row in rows]
        quality.plot(n_bytes, [row.perplexity for row in rows], marker=marker, label=mode)
        speed.plot(n_bytes, [row.tokens_per_second for row in rows], marker=marker, label=mode)
        for row, x in zip(rows, n_bytes, strict=True):
            if row.offset is not None:
                quality.annotate(f"{row.offset:+g}", (x, row.perplexity), textcoords="offset points", xytext=(4, 4))
    quality.set(xlabel="MB of weights per token", ylabel="perplexity", title="Quality")
    speed.set(xlabel="MB of weights per token", ylabel="tokens/s", title=f"Decoding, {table.n_threads} threads")
    for panel in (quality, speed):
        panel.legend(fontsize="small")
    save_figure(figure, path)

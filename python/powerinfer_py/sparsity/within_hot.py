"""Which hot neurons fire together, seen while the engine reads text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer_py._arguments import optional_count
from powerinfer_py.context import Context
from powerinfer_py.files import Progress
from powerinfer_py.model import Model
from powerinfer_py.sparsity.cluster import BLOCK, Fired, blocks_touched, cluster
from powerinfer_py.sparsity.profile import check_countable
from powerinfer_py.sparsity.scoring import read_window
from powerinfer_py.sparsity.text import load_windows, window_size

_TOKENS = 8192
_BUDGET_BYTES = 256 << 20
"""Memory for what fires; the text is read again for the layers that do not fit."""

Orders = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Grouping:
    """Blocks of 64 neighbouring hot neurons that a token needs, on the text that they were grouped by."""

    n_tokens: int
    n_blocks: list[int]
    """[n_layers] blocks of the hot part."""
    touched_before: list[float]
    """[n_layers] mean of the blocks touched in the order by count."""
    touched_after: list[float]
    """[n_layers] mean of the blocks touched in the new order."""


def group_hot_neurons(
    path: Path,
    orders: Orders,
    n_hot: Sequence[int],
    texts: Sequence[Path],
    *,
    n_ctx: int | None,
    max_tokens: int | None,
    progress: Progress,
) -> tuple[Orders, Grouping]:
    """Orders [n_layers, d_ff] whose first n_hot[layer] entries are grouped by firing together, and what that brought.

    Args:
        path: the model; orders: its rows, hottest first; texts: what it reads, at most `max_tokens` (None: 8192).
    """
    orders = orders.copy()
    before, after = [], []
    with Model(path, sparsity="auto") as model:
        check_countable(model)
        n_window = window_size(model, n_ctx)
        n_windows = max(1, (optional_count("max_tokens", max_tokens) or _TOKENS) // n_window)
        windows = load_windows(model, texts, n_ctx=n_window, max_windows=n_windows)
        for layers in _parts(n_hot, windows.size):
            hot = {layer: orders[layer, : n_hot[layer]] for layer in layers}
            for layer, fired in _record(model, windows, hot, progress):
                order = cluster(fired)
                before.append(blocks_touched(fired))
                after.append(blocks_touched(fired[:, order]))
                orders[layer, : n_hot[layer]] = hot[layer][order]
    n_blocks = [len(range(0, n, BLOCK)) for n in n_hot]
    return orders, Grouping(int(windows.size), n_blocks, before, after)


def _parts(n_hot: Sequence[int], n_tokens: int) -> list[list[int]]:
    """Layers in runs whose bits fit into the budget."""
    parts: list[list[int]] = [[]]
    used = 0
    for layer, n in enumerate(n_hot):
        n_bytes = n_tokens * (n + 7) // 8
        if parts[-1] and used + n_bytes > _BUDGET_BYTES:
            parts.append([])
            used = 0
        parts[-1].append(layer)
        used += n_bytes
    return parts


def _record(
    model: Model, windows: npt.NDArray[np.int32], hot: Mapping[int, npt.NDArray[np.int64]], progress: Progress
) -> Iterator[tuple[int, Fired]]:
    """(layer, bool [n_tokens, n_hot]) of the given neurons of the given layers."""
    bits: dict[int, list[npt.NDArray[np.uint8]]] = {layer: [] for layer in hot}

    def keep(layer: int, unit: int, h: npt.NDArray[np.float32]) -> None:
        if layer in hot:
            bits[layer].append(np.packbits(h[:, hot[layer]] != 0, axis=1))

    n_ctx = windows.shape[1]
    with Context(model, n_ctx=n_ctx, n_batch=min(512, n_ctx), sparsity="exact", kv_type="f32") as context:
        context.set_tap("h", keep)
        progress.start("looking for neurons that fire together", windows.size, "tokens")
        for window in windows:
            read_window(model, context, window)
            progress.advance(n_ctx)
        progress.finish()
    for layer, neurons in hot.items():
        packed = np.concatenate(bits.pop(layer))
        yield layer, np.unpackbits(packed, axis=1, count=len(neurons)).view(np.bool_)

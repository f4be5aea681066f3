"""The best combination of one option per layer: a multiple-choice knapsack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

_CELLS = 8192
"""Steps that the limit is divided into: an option's use is rounded up to whole steps."""


def choose(costs: Sequence[F64], uses: Sequence[F64], limit: float) -> list[int] | None:
    """Picks one option per layer so that the costs sum to the least while the uses sum to at most `limit`.

    Dynamic programming over layers and steps of the limit (Dudzinski and Walukiewicz, 1987), exact but for the
    rounding of uses: by it, at most n_layers / 8192 of what is left above the least possible use stays unused.

    Args:
        costs, uses: per layer, [n_options] each.

    Returns:
        The index of each layer's option, or None if even the least uses exceed the limit.
    """
    least = sum(float(use.min()) for use in uses)
    slack = limit - least
    if slack < -1e-9 * max(1.0, abs(limit)):
        return None
    step = max(slack, 0.0) / _CELLS
    best = np.zeros(_CELLS + 1)  # the least cost of the layers so far within so many steps
    picks = []
    for cost, use in zip(costs, uses, strict=True):
        options = pareto(cost, use)
        extra = use[options] - use.min()
        cells = np.ceil(extra / step - 1e-9) if step > 0 else np.where(extra > 0, np.inf, 0)
        total = np.full((len(options), _CELLS + 1), np.inf)
        for row, (option, n) in enumerate(zip(options, cells, strict=True)):
            if n <= _CELLS:
                total[row, int(n) :] = best[: _CELLS + 1 - int(n)] + cost[option]
        pick = total.argmin(axis=0)
        best = total[pick, np.arange(_CELLS + 1)]
        picks.append((options[pick], cells[pick]))
    chosen, cell = [], _CELLS
    for option, used in reversed(picks):
        chosen.append(int(option[cell]))
        cell -= int(used[cell])
    return chosen[::-1]


def pareto(cost: F64, use: F64) -> npt.NDArray[np.intp]:
    """Indices of the options that no other one beats in both, by ascending use."""
    order = np.lexsort((cost, use))
    best_before = np.concatenate([[np.inf], np.minimum.accumulate(cost[order])[:-1]])
    return order[cost[order] < best_before]

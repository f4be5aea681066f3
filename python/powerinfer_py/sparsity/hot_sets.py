"""What activation counts say: density, how few neurons do most of the work, and whether two texts agree on them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from powerinfer_py.sparsity.activation import Counts

MOST = 0.8
"""The share of all activations that the hot neurons of a layer make together."""
HOT_SHARE = 0.2
"""The share of neurons whose overlap between two texts is looked at."""

Floats = npt.NDArray[np.float64]


def density(counts: Counts, tokens: int) -> Floats:
    """Share of h != 0 in each layer [n_layers]; NaN where the number of tokens is unknown."""
    return counts.mean(axis=1) / tokens if tokens else np.full(len(counts), np.nan)


def cumulative(counts: npt.NDArray[np.integer]) -> Floats:
    """Share of all activations that the hottest 1, 2, ... of the neurons [n] make; all zero where nothing fired."""
    falling = np.sort(counts.reshape(-1))[::-1].astype(np.float64)
    total = falling.sum()
    return np.cumsum(falling) / total if total else np.zeros(falling.size)


def n_neurons_for(counts: npt.NDArray[np.integer], share: float) -> int:
    """How many of the hottest neurons [n] make `share` of all activations; 0 where nothing fired."""
    curve = cumulative(counts)
    reached = int(np.searchsorted(curve, share * (1 - 1e-12))) + 1
    return min(reached, curve.size) if curve.size and curve[-1] else 0


def hot_shares(counts: Counts, share: float = MOST) -> Floats:
    """Share of each layer's neurons that make `share` of its activations [n_layers]."""
    return np.array([n_neurons_for(layer, share) / layer.size for layer in counts])


def hot_order(counts: npt.NDArray[np.integer], ids: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Rows of a layer [d_ff], hottest first; equals by their original number."""
    return np.lexsort((ids, -counts.astype(np.int64)))


def overlaps(first: Counts, second: Counts, hot_share: float = HOT_SHARE) -> Floats:
    """Share of the hottest `hot_share` of neurons that both texts have in common, per layer [n_layers]."""
    d_ff = first.shape[1]
    n_hot = max(1, round(hot_share * d_ff))
    rows = np.arange(d_ff)

    def hot(layer: Counts) -> npt.NDArray[np.int64]:
        return hot_order(layer, rows)[:n_hot]

    shared = [len(np.intersect1d(hot(a), hot(b))) / n_hot for a, b in zip(first, second, strict=True)]
    return np.array(shared, dtype=np.float64)

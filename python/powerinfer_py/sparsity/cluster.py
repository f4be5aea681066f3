"""Groups neurons that fire together, so that a token needs fewer blocks of neighbouring rows.

Every block starts with the hottest neuron that is left and takes, one after the other, the neuron that is most alike
those in the block already: by the mean Jaccard index of the tokens they fire for (average linkage, greedily). The idea
of laying co-active neurons side by side is that of Xue et al., "PowerInfer-2", and Wang et al., "Ripple" (both 2024).
Co-activations are integers and everything else is elementwise, so the same text gives the same order on any machine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BLOCK = 64
"""Neurons of a group."""

Fired = npt.NDArray[np.bool_]
Order = npt.NDArray[np.int64]


def blocks_touched(fired: Fired) -> float:
    """Mean number of blocks of 64 neighbouring neurons that a token needs; `fired` is [n_tokens, n_neurons]."""
    if not fired.size:
        return 0.0
    starts = np.arange(0, fired.shape[1], BLOCK)
    return float(np.logical_or.reduceat(fired, starts, axis=1).sum(axis=1).mean())


def cluster(fired: Fired) -> Order:
    """An order of neurons [n] in which those that fire together are neighbours.

    Args:
        fired: bool [n_tokens, n], the neurons hottest first; fewer than 2**24 tokens.

    Returns:
        Groups, the hottest first; the identity where that does not lower `blocks_touched`.
    """
    n = fired.shape[1]
    as_found = np.arange(n)
    if n <= BLOCK:
        return as_found
    likeness = _jaccard(fired)
    left = np.ones(n, dtype=bool)
    groups = []
    while left.any():
        group = _next_group(likeness, left)
        left[group] = False
        groups.append(np.sort(group))
    counts = fired.sum(axis=0)
    whole = [group for group in groups if len(group) == BLOCK]
    whole.sort(key=lambda group: -int(counts[group].sum()))
    order = np.concatenate(whole + groups[len(whole) :])
    return order if blocks_touched(fired[:, order]) < blocks_touched(fired) else as_found


def _jaccard(fired: Fired) -> npt.NDArray[np.float32]:
    """Tokens that two neurons have in common over those that either has [n, n]."""
    values = fired.astype(np.float32)
    common = values.T @ values
    counts = np.diag(common).copy()
    common /= np.maximum(counts[:, None] + counts - common, 1)
    return common


def _next_group(likeness: npt.NDArray[np.float32], left: Fired) -> list[int]:
    """At most 64 neurons of `left`."""
    free = left.copy()
    group = [int(np.argmax(free))]
    total = likeness[group[0]].copy()  # to the whole group; the mean's divisor is the same for all
    free[group[0]] = False
    while len(group) < BLOCK and free.any():
        chosen = int(np.argmax(np.where(free, total, -1)))
        group.append(chosen)
        free[chosen] = False
        total += likeness[chosen]
    return group

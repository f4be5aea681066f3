"""What a predictor finds and costs at every threshold, counted on held-out text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer_py.sparsity.predictor.candidate import Candidate
from powerinfer_py.sparsity.predictor.layer import F32, FfnLayer
from powerinfer_py.sparsity.predictor.low_rank import F64, chunks_of
from powerinfer_py.sparsity.predictor.recording import Recording

_ROWS_AT_ONCE = 512
_SAMPLE_ROWS = 1024
# Thresholds are those that miss these shares of the active neurons; None at all comes first.
_MISSED = np.concatenate([[0.0], np.geomspace(2e-4, 0.9, 120)])


@dataclass(frozen=True)
class HeldOut:
    """One layer's held-out rows, and what is true of them."""

    ffn: FfnLayer
    z: npt.NDArray[np.float16]
    """[n, d_model]"""
    h: npt.NDArray[np.float16]
    """[n, d_ff]"""
    x: npt.NDArray[np.float16]
    """[n, d_model]"""
    down_norms: F32
    """[d_ff]"""

    @classmethod
    def of(cls, ffn: FfnLayer, recording: Recording) -> HeldOut:
        """The held-out part of a recording."""
        parts = (recording.z(held_out=True), recording.h(held_out=True), recording.x(held_out=True))
        return cls(ffn, *parts, down_norms=ffn.down_norms())


@dataclass(frozen=True)
class Curve:
    """Sums over the held-out rows at each threshold, ascending; all [n_thresholds]."""

    thresholds: F64
    predicted: F64
    """Neurons predicted active."""
    opened: F64
    """Of these, the ones whose gate is open: their up row is read."""
    hit: F64
    """Of these, the ones that fire."""
    hit_weight: F64
    """Sum of |h| * ||down row|| over the hits."""
    bytes: F64
    """Bytes of weights that a token's pass through the layer touches, predictor included."""

    def __len__(self) -> int:
        """Number of thresholds."""
        return len(self.thresholds)


@dataclass(frozen=True)
class Truth:
    """Sums over the held-out rows of one layer without a predictor."""

    n_rows: int
    n_neurons: int
    firing: float
    weight: float
    """Sum of |h| * ||down row||."""
    exact_bytes: float
    """Bytes that a token's pass touches in exact mode."""


def truth_of(held_out: HeldOut) -> Truth:
    """Counts what fires.

    An exact pass computes every first projection and opens what is positive.
    """
    ffn, n_rows = held_out.ffn, len(held_out.h)
    firing = weight = opened = 0.0
    gate = _OpenGates(ffn)
    for _, x, h in _parts(held_out):
        active = h != 0
        firing += float(active.sum())
        weight += float((np.abs(h) * held_out.down_norms).sum(dtype=np.float64))
        opened += float(gate(x, active).sum())
    exact = float(ffn.touched_bytes(ffn.d_ff, opened / n_rows, firing / n_rows))
    return Truth(n_rows, ffn.d_ff, firing, weight, exact)


def curve_of(candidate: Candidate, held_out: HeldOut) -> Curve:
    """Scores every held-out row and counts, for all thresholds at once."""
    ffn = held_out.ffn
    scorer = candidate.scorer()
    thresholds = _thresholds(scorer, held_out)
    gate = _OpenGates(ffn)
    sums = np.zeros((4, len(thresholds) + 1))
    for z, x, h in _parts(held_out):
        reached = np.searchsorted(thresholds, scorer(z), side="right")
        active = h != 0
        weights = np.abs(h) * held_out.down_norms
        for row, (where, weight) in enumerate(
            ((None, None), (gate(x, active), None), (active, None), (active, weights[active]))
        ):
            chosen = reached.ravel() if where is None else reached[where]
            sums[row] += np.bincount(chosen, weight, minlength=len(thresholds) + 1)
    # Those that reach threshold k: all in bins above it.
    predicted, opened, hit, hit_weight = np.cumsum(sums[:, ::-1], axis=1)[:, ::-1][:, 1:]
    n = len(held_out.h)
    touched = ffn.touched_bytes(predicted / n, opened / n, hit / n) + candidate.n_bytes
    return Curve(thresholds.astype(np.float64), predicted, opened, hit, hit_weight, touched)


class _OpenGates:
    """Which gates are open [n, d_ff]: those of firing neurons, and with two conditions others too."""

    def __init__(self, ffn: FfnLayer) -> None:
        self._first = (ffn.first(), ffn.first_bias()) if ffn.activation.both else None

    def __call__(self, x: F32, active: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        if self._first is None:
            return active
        weights, bias = self._first
        return np.asarray(x @ weights.T + bias > 0)


def _parts(held_out: HeldOut) -> zip[tuple[F32, F32, F32]]:
    arrays = (held_out.z, held_out.x, held_out.h)
    return zip(*(chunks_of(each, _ROWS_AT_ONCE) for each in arrays), strict=True)


def _thresholds(scorer: Callable[[F32], F32], held_out: HeldOut) -> F32:
    """Ascending float32 thresholds, from a sample of the rows."""
    step = max(1, len(held_out.h) // _SAMPLE_ROWS)
    scores = scorer(held_out.z[::step].astype(np.float32))
    found = scores[held_out.h[::step] != 0]
    if not found.size:
        return np.array([scores.max()], dtype=np.float32)
    quantiles = np.quantile(found, _MISSED).astype(np.float32)
    quantiles[0] = scores.min()  # predicts everything, so that any recall can be met
    return np.unique(quantiles)

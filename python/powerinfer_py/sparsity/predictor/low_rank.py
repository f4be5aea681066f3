"""The closed-form predictor: the best low-rank approximation of what decides whether a neuron fires.

A neuron fires where its margin m = w . z + b is positive. Of all maps of rank r, the one with the least expected
squared error of the margins, each in units of its own spread, over inputs z of covariance C = L L^T follows from the
eigenvectors V of (R W L)^T (R W L), R scaling rows to unit spread (Eckart-Young, after whitening; the idea of ASVD and
SVD-LLM for weights). A = S V^T L^-1 and B = W L V S^-1, so that B A z is the best linear guess of W z.

The guess's error is then close to normal with a standard deviation sigma_n known in closed form, so that a neuron fires
with probability Phi(score / sigma_n). Rows of B and the bias are therefore divided by sigma_n: one threshold per layer
cuts every neuron at the same probability, and of all cuts with that recall this one predicts the fewest neurons
(Neyman-Pearson). All this accounts for the rounding of A and B to block types: B is fitted again to the rounded A, and
sigma_n is that of the rounded product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer_py._core import FormatError
from powerinfer_py.sparsity.predictor.layer import F32, FfnLayer, Margins
from powerinfer_py.sparsity.predictor.recording import Recording

F64 = npt.NDArray[np.float64]

_ROWS_AT_ONCE = 4096
_RIDGE = 1e-6
"""Of the mean variance: directions that the text hardly shows are known no better than that."""
_SIGMA_FLOOR = 1e-3
"""Of a margin's spread: what the engine's own rounding leaves uncertain anyway."""
_SPREAD_FLOOR = 1e-6
"""Of the layer's largest: neurons whose weights are zero have none."""


@dataclass(frozen=True)
class Moments:
    """Mean [d_model] and covariance [d_model, d_model] of the predictor's input."""

    mean: F64
    covariance: F64


def chunks_of(rows: npt.NDArray[np.float16], n_at_once: int = _ROWS_AT_ONCE) -> Iterator[F32]:
    """Rows as float32, a part at a time."""
    for begin in range(0, len(rows), n_at_once):
        yield rows[begin : begin + n_at_once].astype(np.float32)


def moments_of(rows: npt.NDArray[np.float16], layer: int) -> Moments:
    """Moments of rows [n, d_model], in double precision.

    Raises:
        FormatError: the rows are not finite.
    """
    mean = np.sum([chunk.sum(axis=0, dtype=np.float64) for chunk in chunks_of(rows)], axis=0) / len(rows)
    covariance = np.zeros((rows.shape[1], rows.shape[1]))
    for chunk in chunks_of(rows):
        centred = chunk - mean
        covariance += centred.T @ centred
    covariance /= len(rows)
    if not np.isfinite(covariance).all():
        raise FormatError(f"layer {layer}: the inputs of its FFN are not finite; the model is broken")
    ridge = _RIDGE * np.trace(covariance) / len(covariance) or 1.0
    return Moments(mean, covariance + ridge * np.eye(len(covariance)))


@dataclass(frozen=True)
class LinearTarget:
    """The linear map that guesses the margins best: m ~ weights . (z - mean) + centre."""

    weights: F64
    """[d_ff, d_model]"""
    centre: F64
    """[d_ff], the mean margin"""
    variance: F64
    """[d_ff], of the margin, what no linear map can guess included"""


def exact_target(ffn: FfnLayer, moments: Moments) -> LinearTarget:
    """The margins of a predictor that reads what the FFN reads: they are linear in it."""
    weights = ffn.first().astype(np.float64)
    variance = np.einsum("fd,fd->f", weights @ moments.covariance, weights)
    return LinearTarget(weights, weights @ moments.mean + ffn.first_bias(), variance)


def regressed_target(ffn: FfnLayer, moments: Moments, recording: Recording) -> LinearTarget:
    """Margins that are not linear in the predictor's input, fitted by least squares over the training text."""
    margins = Margins(ffn)
    z, x = recording.z(held_out=False), recording.x(held_out=False)
    cross = np.zeros((ffn.d_ff, ffn.d_model))
    total, squares = np.zeros(ffn.d_ff), np.zeros(ffn.d_ff)
    for z_chunk, x_chunk in zip(chunks_of(z), chunks_of(x), strict=True):
        m = margins(x_chunk)
        cross += m.T @ (z_chunk - moments.mean.astype(np.float32))
        total += m.sum(axis=0, dtype=np.float64)
        squares += np.square(m).sum(axis=0, dtype=np.float64)
    centre = total / len(z)
    weights = np.asarray(np.linalg.solve(moments.covariance, cross.T / len(z)).T, dtype=np.float64)
    return LinearTarget(weights, centre, np.maximum(squares / len(z) - centre**2, 0))


class LowRank:
    """All ranks of the approximation of one layer's target."""

    def __init__(self, target: LinearTarget, moments: Moments) -> None:
        self._moments = moments
        self._target = target
        spread = np.sqrt(target.variance)
        self._spread = np.maximum(spread, _SPREAD_FLOOR * (spread.max() or 1.0))
        root = np.linalg.cholesky(moments.covariance)
        whitened = target.weights @ root
        scaled = whitened / self._spread[:, None]
        eigenvalues, vectors = np.linalg.eigh(scaled.T @ scaled)
        order = np.argsort(eigenvalues, kind="stable")[::-1]
        weight = np.sqrt(np.maximum(eigenvalues[order], 1e-12 * eigenvalues.max()))
        self._down = np.linalg.solve(root.T, vectors[:, order] * weight).T
        self._crossed = target.weights @ moments.covariance

    def down(self, rank: int) -> F64:
        """A [rank, d_model]."""
        return self._down[:rank]

    def up(self, down: F64) -> F64:
        """B [d_ff, rank]: the least-squares fit over a given A."""
        inner = down @ self._moments.covariance @ down.T
        return np.asarray(np.linalg.solve(inner, (self._crossed @ down.T).T).T, dtype=np.float64)

    def sigma(self, down: F64, up: F64) -> F64:
        """[d_ff]: standard deviation of margin - B A z."""
        inner = down @ self._moments.covariance @ down.T
        explained = 2 * np.einsum("fr,fr->f", self._crossed @ down.T, up) - np.einsum("fr,fr->f", up @ inner, up)
        floor = (_SIGMA_FLOOR * self._spread) ** 2
        return np.asarray(np.sqrt(np.maximum(self._target.variance - explained, floor)), dtype=np.float64)

    def bias(self, down: F64, up: F64, sigma: F64) -> F64:
        """[d_ff]: what is added to B A z / sigma, for B already divided by sigma."""
        return self._target.centre / sigma - up @ (down @ self._moments.mean)

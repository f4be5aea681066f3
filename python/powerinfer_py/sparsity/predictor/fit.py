"""One layer's candidates: every kind, rank and type that was asked for, and what each finds and costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np

from powerinfer_py._core import InvalidArgument
from powerinfer_py.context import TapPoint
from powerinfer_py.files import Progress
from powerinfer_py.sparsity.predictor.candidate import (
    Candidate,
    FactoredPredictor,
    Recipe,
    SignPredictor,
    block_length,
    encode,
    signs_of,
)
from powerinfer_py.sparsity.predictor.curve import Curve, HeldOut, Truth, curve_of, truth_of
from powerinfer_py.sparsity.predictor.gradient import Examples, Factors, train
from powerinfer_py.sparsity.predictor.layer import F32, FfnLayer, Margins
from powerinfer_py.sparsity.predictor.low_rank import (
    F64,
    LowRank,
    chunks_of,
    exact_target,
    moments_of,
    regressed_target,
)
from powerinfer_py.sparsity.predictor.recording import Recording

TRAINED_KINDS = ("svd+", "mlp")
KINDS = ("svd", "sign", *TRAINED_KINDS)

_RANK_SHARES = (Fraction(1, 32), Fraction(1, 16), *(Fraction(n, 16) for n in (2, 3, 4, 6, 8, 10)))
"""Of d_model: the ranks that are tried."""
_USUAL_RECALL = 0.97
"""Where ranks are compared, to choose the one that is trained."""
_CALIBRATION_ROWS = 8192


@dataclass(frozen=True)
class FitOptions:
    """What is tried in every layer."""

    kinds: tuple[str, ...]
    ranks: tuple[int, ...] | None
    """None: a range of them, those left out that cost more than they could save."""
    types: tuple[str, ...]
    point: TapPoint
    seed: int
    n_threads: int
    train_all_ranks: bool
    """Kinds that are trained: at every rank, instead of the best one of svd."""

    @property
    def trains(self) -> bool:
        """Whether examples of the training text are needed, not only their moments."""
        return any(kind in TRAINED_KINDS for kind in self.kinds)


@dataclass(frozen=True)
class Tried:
    """A candidate and what came of it."""

    candidate: Candidate
    curve: Curve


@dataclass(frozen=True)
class FittedLayer:
    """All that was tried in a layer."""

    truth: Truth
    tried: list[Tried]


def check_sizes(d_model: int, d_ff: int, options: FitOptions) -> None:
    """Refuses ranks and types that do not go into blocks, and odd ranks of "mlp", which begins with pairs of rows.

    Raises:
        InvalidArgument: names them.
    """
    odd = [rank for rank in options.ranks or () if rank % 2]
    if odd and "mlp" in options.kinds:
        raise InvalidArgument(f"rank {odd[0]}: kind mlp needs an even rank; give {odd[0] + 1}, or another kind")
    for type_name in options.types:
        length = block_length(type_name)
        if d_model % length:
            raise InvalidArgument(f"type {type_name}: its blocks of {length} do not divide rows of {d_model}; use F16")
        for rank in options.ranks or ():
            if rank % length or not 0 < rank <= min(d_model, d_ff):
                raise InvalidArgument(
                    f"rank {rank}: expected a multiple of {length} (the blocks of {type_name}) of at most "
                    f"{min(d_model, d_ff)}"
                )


def fit_layer(ffn: FfnLayer, recording: Recording, options: FitOptions, progress: Progress) -> FittedLayer:
    """Makes and judges the candidates of one layer.

    Raises:
        FormatError: the recording is not finite. UnsupportedError: a kind needs torch, which is not installed.
    """
    held_out = HeldOut.of(ffn, recording)
    truth = truth_of(held_out)
    fitting = _Fitting(ffn, recording, options, held_out, truth, progress)
    tried = list(fitting.closed_form()) if set(options.kinds) - {"sign"} else []
    best = fitting.best_rank(tried)
    for kind in options.kinds:
        if kind in TRAINED_KINDS:
            for rank in fitting.ranks() if options.train_all_ranks else [best]:
                tried += fitting.trained(kind, rank)
    if "svd" not in options.kinds:
        tried = [each for each in tried if each.candidate.recipe.kind != "svd"]
    if "sign" in options.kinds:
        tried.append(fitting.judge(_sign_predictor(ffn, recording)))
    return FittedLayer(truth, tried)


class _Fitting:
    def __init__(
        self,
        ffn: FfnLayer,
        recording: Recording,
        options: FitOptions,
        held_out: HeldOut,
        truth: Truth,
        progress: Progress,
    ) -> None:
        self._ffn, self._recording, self._options = ffn, recording, options
        self._held_out, self._truth, self._progress = held_out, truth, progress
        self._low_rank_made: LowRank | None = None

    @property
    def _low_rank(self) -> LowRank:
        if self._low_rank_made is None:
            moments = moments_of(self._recording.z(held_out=False), self._ffn.layer)
            linear = self._options.point == "ffn_input" and not self._ffn.activation.both
            target = (
                exact_target(self._ffn, moments) if linear else regressed_target(self._ffn, moments, self._recording)
            )
            self._low_rank_made = LowRank(target, moments)
        return self._low_rank_made

    def ranks(self) -> list[int]:
        """The ranks to try."""
        if self._options.ranks is not None:
            return list(self._options.ranks)
        step = max(8, *(block_length(each) for each in self._options.types))
        d_model, d_ff = self._ffn.d_model, self._ffn.d_ff
        ranks = {ceil(share * d_model / step) * step for share in _RANK_SHARES}
        return sorted(rank for rank in ranks if rank <= min(d_model, d_ff)) or [step]

    def closed_form(self) -> Iterator[Tried]:
        """svd at all ranks and types that could pay."""
        for rank in self.ranks():
            for type_name in self._options.types:
                candidate = self._closed_form_of(rank, type_name)
                if self._options.ranks is not None or self._can_pay(candidate):
                    yield self.judge(candidate)

    def _closed_form_of(self, rank: int, type_name: str) -> FactoredPredictor:
        low_rank = self._low_rank
        fc1 = encode(type_name, low_rank.down(rank))
        down = fc1.values().astype(np.float64)
        up = encode(type_name, low_rank.up(down)).values().astype(np.float64)
        sigma = low_rank.sigma(down, up)
        fc2 = encode(type_name, up / sigma[:, None])
        bias = low_rank.bias(down, fc2.values().astype(np.float64), sigma)
        return FactoredPredictor(Recipe("svd", rank, type_name), fc1, fc2, bias)

    def _can_pay(self, candidate: Candidate) -> bool:
        """Even if it predicted nothing but what fires."""
        firing = self._truth.firing / self._truth.n_rows
        least = candidate.n_bytes + float(self._ffn.touched_bytes(firing, firing, firing))
        return least < self._truth.exact_bytes

    def judge(self, candidate: Candidate) -> Tried:
        """Counts on the held-out text."""
        return Tried(candidate, curve_of(candidate, self._held_out))

    def best_rank(self, tried: Sequence[Tried]) -> int:
        """The rank with the fewest bytes at a usual recall; the least one if none was worth trying."""

        def bytes_at_recall(each: Tried) -> float:
            enough = each.curve.hit >= _USUAL_RECALL * self._truth.firing
            return float(each.curve.bytes[enough].min(initial=np.inf))

        if not tried:
            return self.ranks()[0]
        return min(tried, key=bytes_at_recall).candidate.recipe.rank

    def trained(self, kind: str, rank: int) -> Iterator[Tried]:
        """A trained predictor of one rank, in all types."""
        relu = kind == "mlp"
        start = self._start(rank // 2).mirrored() if relu else self._start(rank)
        factors = train(
            start,
            Examples(self._recording.z(held_out=False), self._recording.h(held_out=False)),
            Examples(self._held_out.z, self._held_out.h),
            self._held_out.down_norms,
            relu=relu,
            seed=self._options.seed * 1_000_003 + self._ffn.layer,
            n_threads=self._options.n_threads,
            progress=self._progress,
        )
        for type_name in self._options.types:
            fc1, fc2 = encode(type_name, factors.fc1), encode(type_name, factors.fc2)
            yield self.judge(FactoredPredictor(Recipe(kind, rank, type_name), fc1, fc2, factors.bias))

    def _start(self, rank: int) -> Factors:
        down = self._low_rank.down(rank)
        up = self._low_rank.up(down)
        sigma = self._low_rank.sigma(down, up)
        up = up / sigma[:, None]
        bias = self._low_rank.bias(down, up, sigma)
        return Factors(*(np.asarray(each, dtype=np.float32) for each in (down, up, bias)))


def _sign_predictor(ffn: FfnLayer, recording: Recording) -> SignPredictor:
    """Fits each neuron's margin to its sign score, a line by least squares."""
    signs, margins = signs_of(ffn.first()), Margins(ffn)
    rows = recording.z(held_out=False)
    rows = rows[:: -(-len(rows) // _CALIBRATION_ROWS)]
    sums: F64 = np.zeros((5, ffn.d_ff))
    for z in chunks_of(rows, _CALIBRATION_ROWS // 8):
        score, margin = signs_of(z) @ signs.T, margins(z)
        for row, product in enumerate((score, margin, score * score, margin * margin, score * margin)):
            sums[row] += product.sum(axis=0, dtype=np.float64)
    score, margin, score2, margin2, cross = sums / len(rows)
    variance, covariance = score2 - score**2, cross - score * margin
    spread = np.sqrt(np.maximum(margin2 - margin**2, 0)) + 1e-12
    slope = np.maximum(covariance / np.maximum(variance, 1e-9), 1e-6 * spread)
    error = np.maximum(spread**2 - slope * (2 * covariance - slope * variance), (1e-3 * spread) ** 2)
    centre = margin - slope * score

    def single(values: F64) -> F32:
        return values.astype(np.float32)

    return SignPredictor(ffn, single(slope), single(centre), single(np.sqrt(error)))

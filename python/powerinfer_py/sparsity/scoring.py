"""How well a model predicts windows of text, by llama.cpp's definition: the second half of each window is scored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from powerinfer_py._core import FormatError, InvalidArgument
from powerinfer_py.context import Context
from powerinfer_py.model import Model
from powerinfer_py.sparsity.text import negative_log_likelihoods

LEAST_WINDOW = 4
"""Tokens of the least window that is worth scoring."""

_FLOATS_AT_ONCE = 1 << 24


@dataclass
class Score:
    """Sums over the scored tokens."""

    n_tokens: int = 0
    nll: float = 0.0  # nats
    nll_squared: float = 0.0

    def add(self, nll: npt.NDArray[np.float64]) -> None:
        """Takes in negative log likelihoods [n].

        Raises:
            InvalidArgument: they are not finite.
        """
        if not np.isfinite(nll).all():
            raise InvalidArgument("the logits are not finite; the model or its input is broken")
        self.n_tokens += len(nll)
        self.nll += float(nll.sum())
        self.nll_squared += float((nll * nll).sum())

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log likelihood; inf past what a float holds."""
        try:
            return math.exp(self.nll / self.n_tokens)
        except OverflowError:
            return math.inf

    @property
    def error(self) -> float:
        """Standard error of the perplexity, tokens taken as independent."""
        mean = self.nll / self.n_tokens
        variance = max(0.0, self.nll_squared / self.n_tokens - mean * mean)
        return self.perplexity * math.sqrt(variance / max(1, self.n_tokens - 1))


def rows_at_once(floats_per_token: int) -> int:
    """How many tokens may be looked at together when each leaves so many float32 behind (64 MiB in all)."""
    return max(16, _FLOATS_AT_ONCE // floats_per_token)


def evaluate_window(
    context: Context, window: npt.NDArray[np.int32], n_rows: int
) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]]:
    """Evaluates a window from an empty context, `n_rows` tokens at a time.

    Yields:
        Logits [n, n_vocab] and the tokens [n] that they predict; n is 0 for slices of the first half.
    """
    context.reset()
    middle = len(window) // 2
    for begin, end in pairwise((*range(0, middle, n_rows), *range(middle, len(window), n_rows), len(window))):
        if begin < middle:
            yield context.eval(window[begin:end])[None][:0], window[:0]
        else:
            targets = window[begin + 1 : end + 1]
            yield context.eval(window[begin:end], all_logits=True)[: len(targets)], targets


def read_window(model: Model, context: Context, window: npt.NDArray[np.int32]) -> None:
    """Evaluates a window from an empty context, for what taps see of it.

    Raises:
        FormatError: the logits are not finite, so that what the taps saw means nothing.
    """
    context.reset()
    if not np.isfinite(context.eval(window)).all():
        raise FormatError(
            f"{model.path}: the logits are not finite, because weights are NaN or infinite or the activation "
            f"{model.activation} ({model.activation_source}) is wrong; make the file again from a sound source"
        )


def score_window(model: Model, context: Context, window: npt.NDArray[np.int32], score: Score) -> npt.NDArray[np.int32]:
    """Adds a window to a score and returns the tokens [n] that were scored."""
    scored = []
    for logits, targets in evaluate_window(context, window, rows_at_once(model.n_vocab)):
        score.add(negative_log_likelihoods(logits, targets))
        scored.append(targets)
    return np.concatenate(scored)

"""Training by gradient descent, from the closed form on. The only module here that needs torch.

Each pair (token, neuron) is one binary decision with a cross-entropy loss. Firing neurons are the minority and missing
one costs quality while a false alarm costs only its bytes, so that they weigh more: by the ratio of the silent to the
firing, times a constant, and half of that in proportion to what the miss would lose, |h| * ||down row||.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from powerinfer_py._core import UnsupportedError
from powerinfer_py.files import Progress
from powerinfer_py.sparsity.predictor.layer import F32

_BATCH = 256
_EPOCHS = 12
_LEARNING_RATE = 0.03
"""Of Adam, relative to the mean magnitude of a matrix; falls linearly to zero."""
_MISS_COST = 4.0
_PROBIT_TO_LOGIT = 1.702
"""Logistic(1.702 x) is within 0.01 of Phi(x)."""


@dataclass(frozen=True)
class Factors:
    """fc1 [rank, d_model], fc2 [d_ff, rank] and fc2's bias [d_ff]."""

    fc1: F32
    fc2: F32
    bias: F32

    def mirrored(self) -> Factors:
        """The same function through a ReLU, at twice the rank."""
        return Factors(np.concatenate([self.fc1, -self.fc1]), np.concatenate([self.fc2, -self.fc2], axis=1), self.bias)


@dataclass(frozen=True)
class Examples:
    """Inputs [n, d_model], the neurons' values [n, d_ff] of the same tokens."""

    z: npt.NDArray[np.float16]
    h: npt.NDArray[np.float16]


def import_torch() -> Any:
    """torch.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        import torch  # noqa: PLC0415
    except ImportError:
        raise UnsupportedError(
            "predictors of the kinds mlp and svd+ are trained by torch; pip install 'powerinfer_py[train]', "
            "or choose --kind svd"
        ) from None
    return torch


def train(
    start: Factors,
    train_on: Examples,
    judge_by: Examples,
    down_norms: F32,
    *,
    relu: bool,
    seed: int,
    n_threads: int,
    progress: Progress,
) -> Factors:
    """Trains on, and returns the epoch with the least loss on `judge_by`, the start included.

    Raises:
        UnsupportedError: torch is not installed.
    """
    torch = import_torch()
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(n_threads)  # sums of other numbers of threads would round otherwise
    torch.use_deterministic_algorithms(True)
    try:
        return _Training(torch, start, down_norms, relu=relu, seed=seed).run(train_on, judge_by, progress)
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)


class _Training:
    def __init__(self, torch: Any, start: Factors, down_norms: F32, *, relu: bool, seed: int) -> None:
        self._torch = torch
        self._relu = relu
        self._order = np.random.default_rng(seed)
        self._down_norms = torch.from_numpy(down_norms)
        scaled = (start.fc1, start.fc2 * np.float32(_PROBIT_TO_LOGIT), start.bias * np.float32(_PROBIT_TO_LOGIT))
        self._parameters = [torch.nn.Parameter(torch.from_numpy(np.array(each, np.float32))) for each in scaled]
        self._rates = [_LEARNING_RATE * float(each.detach().abs().mean()) for each in self._parameters]
        self._rates[2] = _LEARNING_RATE
        self._optimizer = torch.optim.Adam([{"params": [each]} for each in self._parameters])
        self._firing_weight = self._mean_weight = 1.0

    def run(self, train_on: Examples, judge_by: Examples, progress: Progress) -> Factors:
        self._balance(judge_by)
        n_steps = len(train_on.z) // _BATCH or 1
        best_loss, best = self._judge(judge_by), self._factors()
        for epoch in range(_EPOCHS):
            order = self._order.permutation(len(train_on.z))
            for step in range(n_steps):
                self._step(train_on, np.sort(order[step * _BATCH : (step + 1) * _BATCH]), epoch + step / n_steps)
                progress.advance(1 / (n_steps * _EPOCHS))
            loss = self._judge(judge_by)
            if loss >= best_loss:
                progress.advance(1 - (epoch + 1) / _EPOCHS)
                break
            best_loss, best = loss, self._factors()
        return best

    def _balance(self, examples: Examples) -> None:
        _, weights, firing = self._batch(examples, np.arange(min(len(examples.z), 16 * _BATCH)))
        density = float(firing.mean())
        if density > 0:
            self._firing_weight = _MISS_COST * max(1.0, (1 - density) / density)
            self._mean_weight = float(weights[firing > 0].mean())

    def _batch(self, examples: Examples, rows: npt.NDArray[np.intp]) -> tuple[Any, Any, Any]:
        z = self._torch.from_numpy(examples.z[rows].astype(np.float32))
        h = self._torch.from_numpy(examples.h[rows].astype(np.float32))
        return z, h.abs() * self._down_norms, (h != 0).float()

    def _loss(self, examples: Examples, rows: npt.NDArray[np.intp]) -> Any:
        z, weights, firing = self._batch(examples, rows)
        fc1, fc2, bias = self._parameters
        hidden = z @ fc1.T
        scores = (self._torch.relu(hidden) if self._relu else hidden) @ fc2.T + bias
        cost = self._firing_weight * (0.5 + 0.5 * weights / self._mean_weight)
        return self._torch.nn.functional.binary_cross_entropy_with_logits(
            scores, firing, weight=self._torch.where(firing > 0, cost, 1.0)
        )

    def _step(self, examples: Examples, rows: npt.NDArray[np.intp], epoch: float) -> None:
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * (1 - epoch / _EPOCHS)
        self._optimizer.zero_grad()
        self._loss(examples, rows).backward()
        self._optimizer.step()

    def _judge(self, examples: Examples) -> float:
        n = len(examples.z)
        with self._torch.no_grad():
            losses = [
                float(self._loss(examples, np.arange(i, min(i + _BATCH, n)))) * (min(i + _BATCH, n) - i)
                for i in range(0, n, _BATCH)
            ]
        return sum(losses) / n

    def _factors(self) -> Factors:
        return Factors(*(each.detach().numpy().copy() for each in self._parameters))

"""Which activation a model was trained with: the perplexity of a built-in text under each plausible one."""

from __future__ import annotations

import importlib.resources
import math
import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer_py._core import InvalidArgument, UnsupportedError
from powerinfer_py.context import Context
from powerinfer_py.files import Progress
from powerinfer_py.model import Model
from powerinfer_py.sparsity.scoring import evaluate_window, rows_at_once
from powerinfer_py.sparsity.text import cut_windows, negative_log_likelihoods

_CANDIDATES = ("relu", "silu", "gelu", "gelu_tanh", "relu2")
_GATED_CANDIDATES = ("drelu",)
_WINDOW = 256
_MAX_WINDOWS = 2
_SMALL_MODEL_WINDOW = 16
"""Windows are no shorter, so that what is scored has a context."""
_ERRORS = 2.0
"""Standard errors by which another activation must be better before it counts."""
_LEAST_NATS = 0.005
"""And by how much at least: gelu and its tanh form hardly differ."""


@dataclass(frozen=True)
class Probe:
    """How well a model predicts the built-in text under several activations."""

    assumed: str
    """What the model is computed with, e.g. "silu"."""
    source: str
    """Why; see `Model.activation_source`."""
    perplexity: dict[str, float]
    """By activation, the best first; inf where the logits are not finite."""
    n_tokens: int
    """Tokens that were scored."""
    warning: str | None
    """One sentence where another activation is clearly better than the assumed one."""

    @property
    def best(self) -> str:
        """The activation of the least perplexity."""
        return next(iter(self.perplexity))


def probe_activation(
    path: str | os.PathLike[str],
    *,
    activation: str | None = None,
    n_threads: int | None = None,
    progress: Progress | None = None,
) -> Probe:
    """Measures the perplexity of the built-in text under each plausible activation.

    Each runs in a mode that loses nothing. The cut of a fatrelu cannot be guessed: it is tried where the file (or
    `activation`) names it.

    Args:
        activation: taken as the assumed one in place of the file's.

    Raises:
        UnsupportedError: the file has no tokenizer. Whatever loading the model raises.
    """
    progress = progress or Progress()
    with Model(path, activation=activation, n_threads=n_threads) as model:
        assumed, source = model.activation, model.activation_source
        windows = _windows(model)
        candidates = dict.fromkeys([assumed, *_plausible(model)])
    progress.start("probing", len(candidates) * windows.size, "tokens")
    losses = {name: _losses(path, name, windows, n_threads, progress) for name in candidates}
    progress.finish()
    means = {name: float(loss.mean()) for name, loss in losses.items()}
    perplexity = {name: math.exp(min(means[name], 700.0)) for name in sorted(means, key=means.__getitem__)}
    perplexity = {name: value if math.isfinite(means[name]) else math.inf for name, value in perplexity.items()}
    n_tokens = len(losses[assumed])
    best = next(iter(perplexity))
    warning = None
    if _is_better(losses[best], losses[assumed]):
        warning = (
            f"the assumed activation {assumed} ({source}) is not the best: the perplexity of a built-in text is "
            f"{perplexity[assumed]:.4g} with it and {perplexity[best]:.4g} with {best}; if the model was trained with "
            f"{best}, run it with --activation {best} (activation={best!r}), or convert it again"
        )
    return Probe(assumed, source, perplexity, n_tokens, warning)


def _plausible(model: Model) -> tuple[str, ...]:
    gated = any(tensor.name == "blk.0.ffn_gate.weight" for tensor in model.tensors)
    return _CANDIDATES + (_GATED_CANDIDATES if gated else ())


def _windows(model: Model) -> npt.NDArray[np.int32]:
    if not model.has_tokenizer:
        raise UnsupportedError(f"{model.path}: probing needs a vocabulary, and the file has none")
    text = importlib.resources.files("powerinfer_py").joinpath("data", "probe.txt").read_text(encoding="utf-8")
    tokens = np.asarray(model.tokenize(text), dtype=np.int32)
    size = min(_WINDOW, model.n_ctx_train, len(tokens))
    if size < _SMALL_MODEL_WINDOW:
        raise InvalidArgument(
            f"{model.path}: probing needs a context of at least {_SMALL_MODEL_WINDOW} tokens, and the model has {size}"
        )
    n_windows = _MAX_WINDOWS * (_WINDOW // size)
    return cut_windows(model, tokens, n_ctx=size, max_windows=n_windows)


def _losses(
    path: str | os.PathLike[str],
    activation: str,
    windows: npt.NDArray[np.int32],
    n_threads: int | None,
    progress: Progress,
) -> npt.NDArray[np.float64]:
    """-log p of every scored token."""
    losses = []
    with Model(path, activation=activation, n_threads=n_threads) as model:
        exact = any(mode.name == "exact" and mode.available for mode in model.modes)
        n_ctx = windows.shape[1]
        with Context(model, n_ctx=n_ctx, n_batch=n_ctx, sparsity="exact" if exact else "dense") as context:
            for window in windows:
                for logits, targets in evaluate_window(context, window, rows_at_once(model.n_vocab)):
                    losses.append(negative_log_likelihoods(logits, targets))
                progress.advance(n_ctx)
    joined = np.concatenate(losses)
    return joined if np.isfinite(joined).all() else np.full(len(joined), np.inf)


def _is_better(losses: npt.NDArray[np.float64], than: npt.NDArray[np.float64]) -> bool:
    """Whether one activation predicts better by more than chance, token by token."""
    if not np.isfinite(than).all():
        return bool(np.isfinite(losses).all())
    gain = than - losses
    error = float(gain.std()) / math.sqrt(len(gain))
    return float(gain.mean()) > max(_LEAST_NATS, _ERRORS * error)

"""Compares a model with the one it was made from: predictions, perplexity, layers, fingerprint.

Both read the same windows in lockstep, a slice of tokens at a time, so that memory depends neither on the length of
the text nor on the size of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from powerinfer_py._arguments import AnyPath, file_path, file_paths, optional_count
from powerinfer_py._core import InvalidArgument, TensorInfo
from powerinfer_py.context import Context, LayerAudit
from powerinfer_py.files import GgufInput, Progress, fingerprint_of
from powerinfer_py.files.fingerprint import FINGERPRINT_KEY
from powerinfer_py.model import Model
from powerinfer_py.sparsity.scoring import LEAST_WINDOW, Score, evaluate_window, rows_at_once
from powerinfer_py.sparsity.text import load_windows, log_probabilities, negative_log_likelihoods, window_size

_FLOATS_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class Bounds:
    """What a model must keep; None: anything goes."""

    max_kl: float | None = None
    """Mean divergence, nats per token."""
    min_top1: float | None = None
    """Share of tokens whose best guess is the same."""
    max_ppl_ratio: float | None = None
    """Perplexity over that of the other model."""
    min_recall: float | None = None
    """Recall of the whole model, `VerifyReport.mean_recall`."""


@dataclass(frozen=True)
class VerifyReport:
    """How two models compare."""

    n_windows: int
    n_ctx: int
    n_scored: int
    mode: str
    against_mode: str
    mean_kl: float
    """KL(against || model), nats per token."""
    largest_kl: float
    """Of a single token."""
    top1: float
    """Share of tokens whose best guess is the same."""
    perplexity: float
    against_perplexity: float
    density: list[float | None]
    """[n_layers] share of h != 0."""
    predicted_density: list[float | None]
    """[n_layers] share predicted active; None where no predictor ran."""
    recall: list[float | None]
    """[n_layers] share of the neurons with h != 0 that the predictor found; None where no predictor ran."""
    mean_recall: float | None
    """Share of all neurons with h != 0, of all layers, that were computed: found by a predictor, or in a layer without
    one. What `train_predictor` promises. None: no layer runs a predictor."""
    layer_errors: list[float] | None
    """[n_layers] ||difference of the FFN outputs|| / ||FFN output||, over all tokens; None: shapes differ."""
    stored_fingerprint: str | None
    """What the file says; None: nothing."""
    fingerprint: str
    """Of the weights as they are."""
    failures: list[str]
    """One sentence for each bound that was passed, and for a wrong fingerprint."""

    @property
    def ppl_ratio(self) -> float:
        """Perplexity over that of the other model."""
        return self.perplexity / self.against_perplexity if math.isfinite(self.perplexity) else math.inf


def verify_model(
    model: Model,
    against: AnyPath,
    texts: AnyPath | Sequence[AnyPath],
    bounds: Bounds | None = None,
    *,
    n_ctx: int | None = None,
    max_tokens: int | None = None,
    n_threads: int | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Compares a model, in its own mode, with another one in a mode that loses nothing.

    Args:
        against: a model file, or a Hugging Face folder, which is converted to F32 in a temporary folder.
        texts: what both read; at most `max_tokens` of it, in windows of `n_ctx` (see `window_size`). The second half of
            each window is scored.

    Raises:
        InvalidArgument: too little text, other vocabularies, logits that are not finite.
        Whatever loading or converting the other model raises.
    """
    progress = progress or Progress()
    against, texts = file_path(against), file_paths(texts)
    optional_count("max_tokens", max_tokens)
    window_size(model, n_ctx, minimum=LEAST_WINDOW)
    with ExitStack() as stack:
        fingerprint, stored = _fingerprints(model.path, progress)
        other = stack.enter_context(_opened(against, n_threads, progress))
        windows = _common_windows(model, other, texts, n_ctx, max_tokens)
        size = windows.shape[1]
        audit = model.sparsity == "predictor"
        ours = stack.enter_context(Context(model, n_ctx=size, n_batch=min(512, size), n_threads=n_threads, audit=audit))
        mode = "exact" if _has_mode(other, "exact") else "dense"
        theirs = stack.enter_context(
            Context(other, n_ctx=size, n_batch=min(512, size), n_threads=n_threads, sparsity=mode)  # type: ignore[arg-type]
        )
        comparison = _Comparison(model, ours, other, theirs)
        progress.start("comparing", windows.size, "tokens")
        for window in windows:
            comparison.add(window, progress)
        progress.finish()
        stats = ours.stats
        audits = ours.audit if audit else [None] * model.n_layers
        report = VerifyReport(
            n_windows=len(windows),
            n_ctx=size,
            n_scored=comparison.ours.n_tokens,
            mode=ours.sparsity,
            against_mode=theirs.sparsity,
            mean_kl=comparison.kl / comparison.ours.n_tokens,
            largest_kl=comparison.largest_kl,
            top1=comparison.n_same / comparison.ours.n_tokens,
            perplexity=comparison.ours.perplexity,
            against_perplexity=comparison.theirs.perplexity,
            density=stats["density"],
            predicted_density=stats["predicted_density"],
            recall=[None if layer is None else layer.recall for layer in audits],
            mean_recall=_mean_recall(audits, stats["density"], windows.size * model.d_ff),
            layer_errors=comparison.layer_errors(),
            stored_fingerprint=stored,
            fingerprint=fingerprint,
            failures=[],
        )
    report.failures.extend(_failures(report, bounds or Bounds()))
    return report


def _mean_recall(
    audits: Sequence[LayerAudit | None], density: Sequence[float | None], pairs_per_layer: int
) -> float | None:
    """Hits over active neurons of all layers; `density` counts those of layers without a predictor, which all are."""
    predicting = [layer for layer in audits if layer is not None]
    if not predicting:
        return None
    exact = sum(pairs_per_layer * (share or 0.0) for layer, share in zip(audits, density, strict=True) if layer is None)
    n_active = exact + sum(layer.n_active for layer in predicting)
    return (exact + sum(layer.n_hit for layer in predicting)) / n_active if n_active else None


def _fingerprints(path: Path, progress: Progress) -> tuple[str, str | None]:
    """(of the weights as they are, what the file says)."""
    with GgufInput(path) as file:
        stored = file.get(FINGERPRINT_KEY)

        def chunks(tensor: TensorInfo) -> Iterator[memoryview]:
            for chunk in file.chunks(tensor):
                progress.advance(len(chunk))
                yield chunk

        progress.start("fingerprint", sum(tensor.n_bytes for tensor in file.tensors.values()), "B")
        computed = fingerprint_of(file.tensors.values(), chunks)
        progress.finish()
    return computed, None if stored is None else str(stored)


@contextmanager
def _opened(path: Path, n_threads: int | None, progress: Progress) -> Iterator[Model]:
    if not path.is_dir():
        with Model(path, n_threads=n_threads) as model:
            yield model
        return
    from powerinfer_py.convert import convert  # noqa: PLC0415

    with TemporaryDirectory(prefix="powerinfer-verify-") as folder:
        progress.note(f"{path} is converted to F32 in {folder} for the comparison")
        converted = Path(folder) / "against.gguf"
        convert(path, converted, outtype="f32", progress=progress)
        with Model(converted, n_threads=n_threads) as model:
            yield model


def _has_mode(model: Model, name: str) -> bool:
    return any(mode.name == name and mode.available for mode in model.modes)


def _common_windows(
    model: Model, other: Model, texts: Sequence[Path], n_ctx: int | None, max_tokens: int | None
) -> npt.NDArray[np.int32]:
    """Windows of the texts that both tokenizers agree on."""
    if model.n_vocab != other.n_vocab:
        raise InvalidArgument(
            f"{model.path} has {model.n_vocab} tokens, {other.path} {other.n_vocab}; "
            "models with other vocabularies cannot be compared"
        )
    size = window_size(model, n_ctx, minimum=LEAST_WINDOW)
    limit = None if max_tokens is None else max(1, max_tokens // size)
    windows = load_windows(model, texts, n_ctx=size, max_windows=limit)
    if other.has_tokenizer and not np.array_equal(windows, load_windows(other, texts, n_ctx=size, max_windows=limit)):
        raise InvalidArgument(
            f"{model.path} and {other.path} read the same text as other tokens; one of their tokenizers is wrong"
        )
    return windows


class _Comparison:
    """Sums over the tokens that both models have read."""

    def __init__(self, model: Model, ours: Context, other: Model, theirs: Context) -> None:
        self.ours, self.theirs = Score(), Score()
        self.kl = 0.0
        self.largest_kl = 0.0
        self.n_same = 0
        self._contexts = (ours, theirs)
        self._layers: _LayerErrors | None = None
        floats_per_token = model.n_vocab
        if (model.n_layers, model.d_model) == (other.n_layers, other.d_model):
            self._layers = _LayerErrors(model.n_layers, ours, theirs)
            floats_per_token += model.n_layers * model.d_model
        self._n_rows = rows_at_once(floats_per_token)

    def add(self, window: npt.NDArray[np.int32], progress: Progress) -> None:
        """Lets both read a window [n_ctx]."""
        ours, theirs = (evaluate_window(context, window, self._n_rows) for context in self._contexts)
        for (logits, targets), (witness, _) in zip(ours, theirs, strict=True):
            self.ours.add(negative_log_likelihoods(logits, targets))
            self.theirs.add(negative_log_likelihoods(witness, targets))
            self.n_same += int(np.count_nonzero(logits.argmax(axis=1) == witness.argmax(axis=1)))
            step = max(1, _FLOATS_AT_ONCE // logits.shape[1])
            for begin in range(0, len(targets), step):
                self._add_divergence(logits[begin : begin + step], witness[begin : begin + step])
            if self._layers is not None:
                self._layers.take()
        progress.advance(len(window))

    def _add_divergence(self, logits: npt.NDArray[np.float32], witness: npt.NDArray[np.float32]) -> None:
        log_p, log_q = log_probabilities(witness), log_probabilities(logits)
        divergence = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
        self.kl += float(divergence.sum())
        self.largest_kl = max(self.largest_kl, float(divergence.max()))

    def layer_errors(self) -> list[float] | None:
        """Relative error of every layer's FFN; None where the models' shapes differ."""
        return None if self._layers is None else self._layers.relative()


class _LayerErrors:
    """Squared differences of two models' FFN outputs, by layer."""

    def __init__(self, n_layers: int, ours: Context, theirs: Context) -> None:
        self._sums = np.zeros((2, n_layers))  # squared difference, squared witness
        self._rows: tuple[list[list[npt.NDArray[np.float32]]], ...] = ([], [])
        for rows, context in zip(self._rows, (ours, theirs), strict=True):
            rows.extend([] for _ in range(n_layers))
            context.set_tap("ffn_output", lambda layer, unit, values, rows=rows: rows[layer].append(values))  # type: ignore[misc]

    def take(self) -> None:
        """Takes in what both have computed since the last call."""
        for layer, pair in enumerate(zip(*self._rows, strict=True)):
            ours, theirs = (np.concatenate(parts).astype(np.float64) for parts in pair)
            self._sums[:, layer] += np.square(ours - theirs).sum(), np.square(theirs).sum()
            for parts in pair:
                parts.clear()

    def relative(self) -> list[float]:
        """||difference|| / ||witness|| of every layer."""
        difference, witness = np.sqrt(self._sums)
        return [float(d / w) if w else (math.inf if d else 0.0) for d, w in zip(difference, witness, strict=True)]


def _failures(report: VerifyReport, bounds: Bounds) -> list[str]:
    failures = []
    if report.stored_fingerprint not in (None, report.fingerprint):
        failures.append(
            f"the weights are not those that the file was written with: fingerprint {report.fingerprint}, "
            f"stored {report.stored_fingerprint}; make the file again"
        )
    for value, limit, what, flag in (
        (report.mean_kl, bounds.max_kl, "the mean divergence", "--max-kl"),
        (report.ppl_ratio, bounds.max_ppl_ratio, "the ratio of perplexities", "--max-ppl-ratio"),
    ):
        if limit is not None and not value <= limit:
            failures.append(f"{what} is {value:.6g}, more than {limit:g} ({flag})")
    if bounds.min_top1 is not None and not report.top1 >= bounds.min_top1:
        failures.append(
            f"{100 * report.top1:.3f} % of the best guesses agree, less than {100 * bounds.min_top1:g} % (--min-top1)"
        )
    if bounds.min_recall is not None:
        recall = report.mean_recall
        if recall is None:
            failures.append("no layer runs a predictor, so that there is no recall to be bounded (--min-recall)")
        elif not recall >= bounds.min_recall:
            failures.append(f"the recall is {recall:.4f}, less than {bounds.min_recall:g} (--min-recall)")
    return failures

"""`powerinfer perplexity`: how well a model predicts a text, by llama.cpp's definition.

The text is cut into windows of n_ctx tokens; the first token of each is replaced by BOS where the vocabulary adds
one; the second half of each window is scored.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer
from tqdm import tqdm

from powerinfer_py import Context, InvalidArgument, Model
from powerinfer_py.cli.common import (
    ActivationOption,
    BatchOption,
    CtxOption,
    KvTypeName,
    KvTypeOption,
    ModelOption,
    SparsityName,
    SparsityOption,
    ThreadsOption,
    ThresholdOption,
    UsageProblem,
    WeightsName,
    WeightsOption,
    context_size,
    describe,
    load_model,
    read_text_file,
    thread_count,
    warn,
)

_DEFAULT_CTX = 512
_ROWS_AT_ONCE = 64


@dataclass
class Score:
    """Sums over the scored tokens."""

    n_tokens: int = 0
    n_bytes: int = 0
    nll: float = 0.0  # nats
    nll_squared: float = 0.0

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

    @property
    def bits_per_byte(self) -> float:
        """Negative log likelihood over the bytes of the scored tokens."""
        return self.nll / math.log(2) / self.n_bytes


def perplexity(
    file: Annotated[Path, typer.Option("-f", "--file", metavar="FILE", help="The text, UTF-8; - is stdin.")],
    model: ModelOption = None,
    n_ctx: CtxOption = None,
    n_batch: BatchOption = 512,
    n_threads: ThreadsOption = None,
    n_chunks: Annotated[int, typer.Option("--chunks", metavar="N", help="Windows to score; -1: all.")] = -1,
    activation: ActivationOption = None,
    sparsity: SparsityOption = SparsityName.auto,
    threshold: ThresholdOption = None,
    kv_type: KvTypeOption = KvTypeName.f16,
    weights: WeightsOption = WeightsName.auto,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Measure how well a model predicts a text."""
    if n_ctx is not None and 0 < n_ctx < 4:
        raise UsageProblem(f"-c {n_ctx}: a window needs at least 4 tokens")
    if n_chunks < 1 and n_chunks != -1:
        raise UsageProblem(f"--chunks {n_chunks}: expected a number of windows, or -1")
    text = read_text_file(file)
    with load_model(model, sparsity=sparsity, threshold=threshold, activation=activation, weights=weights) as loaded:
        window = context_size(loaded, n_ctx) or min(_DEFAULT_CTX, loaded.n_ctx_train)
        tokens = np.array(loaded.tokenize(text), dtype=np.int32)
        if len(tokens) < 2 * window:
            raise InvalidArgument(
                f"{file}: {len(tokens)} tokens are too few for windows of {window}; "
                f"give at least {2 * window} tokens or a smaller -c"
            )
        n_windows = len(tokens) // window
        if n_chunks > 0:
            n_windows = min(n_windows, n_chunks)
        with Context(
            loaded, n_ctx=window, n_batch=n_batch, kv_type=kv_type.value, n_threads=thread_count(n_threads)
        ) as context:
            warn(describe(loaded, context))
            windows = [tokens[i * window : (i + 1) * window] for i in range(n_windows)]
            score = Score()
            bar = tqdm(windows, unit="window", file=sys.stderr, disable=None)
            for nll, n_bytes in (score_window(loaded, context, each) for each in bar):
                if not np.isfinite(nll).all():
                    raise InvalidArgument("the logits are not finite; the model or its input is broken")
                score.n_tokens += len(nll)
                score.n_bytes += n_bytes
                score.nll += float(nll.sum())
                score.nll_squared += float((nll * nll).sum())
                bar.set_postfix_str(f"perplexity {score.perplexity:.3f}")
            _report(score, n_windows, window, context, as_json=as_json)


def score_window(model: Model, context: Context, window: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.float64], int]:
    """Negative log likelihoods [n_scored] of a window's second half, and the bytes of those tokens."""
    fed = window.copy()
    if model.tokenizer.add_bos:
        fed[0] = model.tokenizer.bos
    first = len(window) // 2
    context.reset()
    context.eval(fed[:first])
    logits = context.eval(fed[first:], all_logits=True)[:-1]
    scored = window[first + 1 :]
    nll = np.concatenate(list(_negative_log_likelihoods(logits, scored)))
    return nll, sum(len(model.tokenizer.piece(int(token), special=True)) for token in scored)


def _negative_log_likelihoods(
    logits: npt.NDArray[np.float32], tokens: npt.NDArray[np.int32]
) -> Iterator[npt.NDArray[np.float64]]:
    # In slices: double precision of a whole window times a large vocabulary would be gigabytes.
    for begin in range(0, len(tokens), _ROWS_AT_ONCE):
        rows = logits[begin : begin + _ROWS_AT_ONCE].astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        chosen = rows[np.arange(len(rows)), tokens[begin : begin + _ROWS_AT_ONCE]]
        yield np.log(np.exp(rows).sum(axis=1)) - chosen


def _report(score: Score, n_windows: int, window: int, context: Context, *, as_json: bool) -> None:
    stats = context.stats
    density, predicted = stats["mean_density"], stats["mean_predicted_density"]
    if as_json:
        result = {
            "perplexity": score.perplexity if math.isfinite(score.perplexity) else None,
            "error": score.error if math.isfinite(score.error) else None,
            "bits_per_byte": score.bits_per_byte,
            "n_tokens": score.n_tokens,
            "n_bytes": score.n_bytes,
            "n_windows": n_windows,
            "n_ctx": window,
            "sparsity": context.sparsity,
            "density": density,
            "density_by_layer": stats["density"],
            "predicted_density": predicted,
            "prompt_tokens_per_second": stats["prompt_tokens_per_second"],
        }
        print(json.dumps(result, allow_nan=False))
        return
    print(f"perplexity     {score.perplexity:.4f} +/- {score.error:.4f}")
    print(f"bits per byte  {score.bits_per_byte:.4f}")
    if density is not None:
        print(f"density        {100 * density:.2f} %")
    if predicted is not None:
        print(f"predicted      {100 * predicted:.2f} %")
    print(f"scored         {score.n_tokens} tokens in {n_windows} windows of {window}")

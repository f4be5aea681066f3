"""`powerinfer perplexity`: how well a model predicts a text, by llama.cpp's definition.

The text is cut into windows of n_ctx tokens; the first token of each is replaced by BOS where the vocabulary adds
one; the second half of each window is scored.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from tqdm import tqdm

from powerinfer_py import Context, InvalidArgument
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
    describe,
    load_model,
    read_text_file,
    thread_count,
    warn,
)
from powerinfer_py.sparsity.scoring import Score, score_window
from powerinfer_py.sparsity.text import cut_windows, window_size


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
        window = window_size(loaded, n_ctx)
        tokens = np.array(loaded.tokenize(text), dtype=np.int32)
        if len(tokens) < 2 * window:
            raise InvalidArgument(
                f"{file}: {len(tokens)} tokens are too few for windows of {window}; "
                f"give at least {2 * window} tokens or a smaller -c"
            )
        windows = cut_windows(loaded, tokens, n_ctx=window, max_windows=n_chunks if n_chunks > 0 else None)
        with Context(
            loaded, n_ctx=window, n_batch=n_batch, kv_type=kv_type.value, n_threads=thread_count(n_threads)
        ) as context:
            warn(describe(loaded, context))
            score, n_bytes = Score(), 0
            bar = tqdm(windows, unit="window", file=sys.stderr, disable=None)
            for each in bar:
                scored = score_window(loaded, context, each, score)
                n_bytes += sum(len(loaded.tokenizer.piece(int(token), special=True)) for token in scored)
                bar.set_postfix_str(f"perplexity {score.perplexity:.3f}")
            _report(score, n_bytes, windows.shape, context, as_json=as_json)


def _report(score: Score, n_bytes: int, shape: tuple[int, ...], context: Context, *, as_json: bool) -> None:
    n_windows, n_ctx = shape
    bits_per_byte = score.nll / math.log(2) / n_bytes
    stats = context.stats
    density, predicted = stats["mean_density"], stats["mean_predicted_density"]
    if as_json:
        result = {
            "perplexity": score.perplexity if math.isfinite(score.perplexity) else None,
            "error": score.error if math.isfinite(score.error) else None,
            "bits_per_byte": bits_per_byte,
            "n_tokens": score.n_tokens,
            "n_bytes": n_bytes,
            "n_windows": n_windows,
            "n_ctx": n_ctx,
            "sparsity": context.sparsity,
            "density": density,
            "density_by_layer": stats["density"],
            "predicted_density": predicted,
            "prompt_tokens_per_second": stats["prompt_tokens_per_second"],
        }
        print(json.dumps(result, allow_nan=False))
        return
    print(f"perplexity     {score.perplexity:.4f} +/- {score.error:.4f}")
    print(f"bits per byte  {bits_per_byte:.4f}")
    if density is not None:
        print(f"density        {100 * density:.2f} %")
    if predicted is not None:
        print(f"predicted      {100 * predicted:.2f} %")
    print(f"scored         {score.n_tokens} tokens in {n_windows} windows of {n_ctx}")

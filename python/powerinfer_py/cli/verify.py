"""`powerinfer verify`: whether a model still is what it was made from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from powerinfer_py.cli.common import (
    CtxOption,
    JsonOption,
    SparsityName,
    SparsityOption,
    TextOption,
    ThreadsOption,
    load_model,
    print_summary,
    terminal_progress,
    thread_count,
    warn,
)
from powerinfer_py.sparsity.verify import Bounds, VerifyReport, verify_model

_N_WORST = 5


def verify(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The model to be judged.")],
    against: Annotated[
        Path, typer.Option("--against", metavar="SRC", help="What it should be: a model file or a Hugging Face folder.")
    ],
    text: TextOption,
    max_kl: Annotated[
        float | None, typer.Option("--max-kl", metavar="X", help="Largest mean divergence, nats per token.")
    ] = None,
    min_top1: Annotated[
        float | None, typer.Option("--min-top1", metavar="X", help="Least share of equal best guesses, 0 to 1.")
    ] = None,
    max_ppl_ratio: Annotated[
        float | None, typer.Option("--max-ppl-ratio", metavar="X", help="Largest perplexity, as a multiple of SRC's.")
    ] = None,
    min_recall: Annotated[
        float | None, typer.Option("--min-recall", metavar="X", help="Least share of all firing neurons found, 0 to 1.")
    ] = None,
    n_ctx: CtxOption = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="N", help="Read at most so many tokens; default: all.")
    ] = None,
    sparsity: SparsityOption = SparsityName.auto,
    n_threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a model with its source on a text; exit code 1 when a bound is passed or the weights have changed."""
    with load_model(model, sparsity=sparsity, threshold=None, activation=None) as loaded:
        report = verify_model(
            loaded,
            against,
            text,
            Bounds(max_kl=max_kl, min_top1=min_top1, max_ppl_ratio=max_ppl_ratio, min_recall=min_recall),
            n_ctx=n_ctx,
            max_tokens=max_tokens,
            n_threads=thread_count(n_threads),
            progress=terminal_progress(),
        )
    print_summary(_facts(report) if as_json else _lines(report), as_json=as_json)
    for failure in report.failures:
        warn(f"{model}: {failure}")
    if report.failures:
        raise typer.Exit(1)


def _facts(report: VerifyReport) -> dict[str, Any]:
    return asdict(report) | {"ppl_ratio": report.ppl_ratio}


def _lines(report: VerifyReport) -> dict[str, str]:
    lines = {
        "read": f"{report.n_windows} windows of {report.n_ctx} tokens, {report.n_scored} of them scored",
        "modes": f"{report.mode}, against {report.against_mode}",
        "divergence": f"{report.mean_kl:.6g} nats per token on average, {report.largest_kl:.4g} at most",
        "top-1": f"{100 * report.top1:.2f} % of the best guesses agree",
        "perplexity": (
            f"{report.perplexity:.4f} against {report.against_perplexity:.4f}, ratio {report.ppl_ratio:.5f}"
        ),
    }
    for name, values in (("density", report.density), ("predicted", report.predicted_density)):
        mean = _mean(values)
        if mean is not None:
            lines[name] = f"{100 * mean:.2f} % of the neurons"
    if report.mean_recall is not None:
        worst = _worst(report.recall, largest=False)
        lines["recall"] = f"{report.mean_recall:.4f} of all firing neurons, worst {worst}"
    if report.layer_errors is None:
        lines["layers"] = "not compared: the models have other shapes"
    else:
        lines["layers"] = f"largest errors of the FFN output: {_worst(report.layer_errors, largest=True)}"
    stored = {None: "the file stores none", report.fingerprint: "as stored"}
    known = stored.get(report.stored_fingerprint, f"but the file says {report.stored_fingerprint}")
    return lines | {"fingerprint": f"{report.fingerprint}, {known}"}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _worst(values: list[float] | list[float | None], *, largest: bool) -> str:
    known = [(value, layer) for layer, value in enumerate(values) if value is not None]
    known.sort(key=lambda pair: (-pair[0] if largest else pair[0], pair[1]))
    return ", ".join(f"{value:.4g} (layer {layer})" for value, layer in known[:_N_WORST])

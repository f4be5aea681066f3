"""`powerinfer evaluate-sparsity`: what each way of skipping neurons costs and brings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from powerinfer_py.cli.common import (
    CtxOption,
    ForceOption,
    JsonOption,
    TextOption,
    ThreadsOption,
    UsageProblem,
    print_summary,
    terminal_progress,
    thread_count,
)
from powerinfer_py.cli.train_predictor import percent, print_columns
from powerinfer_py.sparsity.evaluate import OFFSETS, SparsityTable, evaluate_sparsity, plot_sparsity
from powerinfer_py.sparsity.plots import check_plot

_USUAL_OFFSETS = ",".join(f"{offset:g}" for offset in OFFSETS)


def evaluate_sparsity_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A GGUF file.")],
    text: TextOption,
    thresholds: Annotated[
        str,
        typer.Option("--thresholds", metavar="X[,X...]", help="Offsets that are added to the predictor's thresholds."),
    ] = _USUAL_OFFSETS,
    plot: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Draw the result as PNG or SVG ([plot] extra)."),
    ] = None,
    n_ctx: CtxOption = None,
    max_windows: Annotated[
        int | None, typer.Option("--chunks", metavar="N", help="Windows to score; default: all.")
    ] = None,
    n_threads: ThreadsOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure perplexity, bytes per token and speed of dense, exact and predictor mode over thresholds."""
    if plot is not None:
        check_plot(plot, force=force)
    table = evaluate_sparsity(
        model,
        text,
        offsets=_numbers(thresholds),
        n_ctx=n_ctx,
        max_windows=max_windows,
        n_threads=thread_count(n_threads),
        progress=terminal_progress(),
    )
    if as_json:
        print_summary(table.as_dict(), as_json=True)
    else:
        _print_table(table)
    if plot is not None:
        plot_sparsity(plot, table)


def _numbers(text: str) -> list[float]:
    try:
        return [float(item) for item in text.split(",")]
    except ValueError:
        raise UsageProblem(f"--thresholds {text!r}: expected numbers separated by commas") from None


def _print_table(table: SparsityTable) -> None:
    columns = ("mode", "perplexity", "active", "predicted", "bytes/token", "tokens/s")
    rows = []
    for row in table.rows:
        name = row.mode if row.offset is None else f"{row.mode} {row.offset:+g}"
        predicted = "" if row.predicted_density is None else percent(row.predicted_density)
        rows.append((
            name, f"{row.perplexity:.4f}", percent(row.density), predicted,
            f"{row.bytes_per_token:.0f}", f"{row.tokens_per_second:.1f}",
        ))  # fmt: skip
    print_columns(columns, rows)
    print(
        f"{table.n_scored} tokens scored in {table.n_windows} windows of {table.n_ctx}; "
        f"decoding with {table.n_threads} threads"
    )

"""`powerinfer train-predictor`: predictors for a model, sized layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from powerinfer_py.cli.common import (
    CtxOption,
    ForceOption,
    JsonOption,
    OutputOption,
    TextOption,
    ThreadsOption,
    print_summary,
    size_text,
    terminal_progress,
    thread_count,
)
from powerinfer_py.sparsity.predictor import TrainReport, train_predictor
from powerinfer_py.sparsity.predictor.train import USUAL_CACHE_BYTES, USUAL_RECALL, USUAL_TOKENS


def train_predictor_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A GGUF file of the ReLU family.")],
    text: TextOption,
    output: OutputOption,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="svd (closed form), sign, svd+ (svd, trained on; needs torch), mlp (the published form; needs torch); "
            "may be given repeatedly; default: auto, all that can be had.",
        ),
    ] = None,
    rank: Annotated[
        list[int] | None,
        typer.Option("--rank", metavar="N", help="Size, in every layer; repeatedly: a choice. Default: the best one."),
    ] = None,
    predictor_type: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Type of its matrices, e.g. q8_0; repeatedly: a choice."),
    ] = None,
    target_recall: Annotated[
        float | None,
        typer.Option("--target-recall", metavar="X", help=f"Share of firing neurons found; default {USUAL_RECALL}."),
    ] = None,
    max_perplexity_loss: Annotated[
        float | None,
        typer.Option("--max-perplexity-loss", metavar="X", help="Instead: largest relative loss, e.g. 0.01."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget-bytes-per-token", metavar="N", help="Instead: most bytes of weights a token may touch."),
    ] = None,
    predictor_input: Annotated[
        str, typer.Option("--input", metavar="NAME", help="What it reads: ffn_input, residual or layer_input.")
    ] = "ffn_input",
    n_ctx: CtxOption = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", help="Longer texts are sampled evenly down to this.")
    ] = USUAL_TOKENS,
    seed: Annotated[int, typer.Option("-s", "--seed", metavar="N", help="Of the training.")] = 0,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            "--cache-dir",
            metavar="DIR",
            help="Keep finished layers here, for another goal later; default: OUTPUT.train, removed at success.",
        ),
    ] = None,
    cache_gb: Annotated[
        float, typer.Option("--cache-gb", metavar="GB", help="Disk for recordings.")
    ] = USUAL_CACHE_BYTES / 1e9,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the time per token of every row of the table too.")
    ] = False,
    n_threads: ThreadsOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train predictors, choose kind, rank and threshold per layer, and write the model with them."""
    report = train_predictor(
        model,
        text,
        output,
        kind=kind or "auto",
        rank=rank,
        type=predictor_type,
        target_recall=target_recall,
        max_perplexity_loss=max_perplexity_loss,
        budget_bytes_per_token=budget,
        input=predictor_input,  # type: ignore[arg-type]  # checked there
        n_ctx=n_ctx,
        max_tokens=max_tokens,
        seed=seed,
        n_threads=thread_count(n_threads),
        cache_dir=cache_dir,
        max_cache_bytes=cache_gb * 1e9,
        measure=measure,
        force=force,
        progress=terminal_progress(),
    )
    if as_json:
        print_summary(report.as_dict(), as_json=True)
        return
    _print_layers(report)
    _print_table(report)
    print_summary(_facts(report), as_json=False)


def print_columns(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: the first column to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        cells = [
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    print()


def percent(share: float) -> str:
    """ "97.0 %"."""
    return f"{100 * share:.1f} %"


_SHARES = ("recall", "weighted", "precision", "predicted")


def _print_layers(report: TrainReport) -> None:
    columns = ("layer", "predictor", "threshold", *_SHARES, "active", "bytes/token", "exact")
    rows = []
    for layer in report.layers:
        predictor = " ".join(str(part) for part in (layer.kind, layer.rank or "", layer.type) if part)
        shares = (layer.recall, layer.weighted_recall, layer.precision, layer.predicted_density, layer.density)
        n_bytes = (f"{layer.bytes_per_token:.0f}", f"{layer.exact_bytes_per_token:.0f}")
        rows.append((str(layer.layer), predictor, f"{layer.threshold:.3f}", *map(percent, shares), *n_bytes))
    print_columns(columns, rows)


def _print_table(report: TrainReport) -> None:
    timed = any(row.milliseconds_per_token is not None for row in report.table)
    columns = ("all layers", *_SHARES, "bytes/token", *(["ms/token"] if timed else []))
    rows = []
    for row in report.table:
        shares = (row.recall, row.weighted_recall, row.precision, row.predicted_density)
        times = [f"{row.milliseconds_per_token:.3f}"] if row.milliseconds_per_token is not None else []
        rows.append((row.name, *map(percent, shares), f"{row.bytes_per_token:.0f}", *times))
    print_columns(columns, rows)


def _facts(report: TrainReport) -> dict[str, Any]:
    exact, chosen = report.table[0], report.chosen
    return {
        "written": f"{report.path} ({size_text(report.n_bytes)})",
        "goal": report.goal,
        "text": f"{report.n_train_tokens} tokens to train on, {report.n_held_out_tokens} held out to judge by",
        "recall": f"{percent(chosen.recall)}, weighted by contribution {percent(chosen.weighted_recall)}",
        "bytes_per_token": f"{size_text(chosen.bytes_per_token)} (exact mode: {size_text(exact.bytes_per_token)})",
    }

"""`powerinfer profile`: how often each neuron of a model is non-zero."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from powerinfer_py.cli.common import (
    CtxOption,
    ForceOption,
    JsonOption,
    ThreadsOption,
    UsageProblem,
    print_summary,
    terminal_progress,
    thread_count,
)
from powerinfer_py.sparsity.activation import ActivationCounts
from powerinfer_py.sparsity.hot_sets import HOT_SHARE, MOST, density, hot_shares, n_neurons_for, overlaps
from powerinfer_py.sparsity.plots import check_plot, plot_profile
from powerinfer_py.sparsity.profile import ProfileReport, profile_model


def profile(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A GGUF file of the ReLU family.")],
    text: Annotated[
        list[Path] | None, typer.Option("--text", metavar="FILE", help="UTF-8 text to read; may be given repeatedly.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="A copy of the model that holds the counts (may be MODEL, with --force); "
            "default: the side file MODEL.activation.npz.",
        ),
    ] = None,
    force: ForceOption = False,
    n_ctx: CtxOption = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="N", help="Read at most so many tokens of each text.")
    ] = None,
    compare_text: Annotated[
        list[Path] | None,
        typer.Option(
            "--compare-text", metavar="FILE", help="Another text, to see whether its hot neurons are the same."
        ),
    ] = None,
    activation: Annotated[
        Path | None,
        typer.Option(
            "--activation", metavar="PATH", help="Import an activation/ folder or a side file instead of reading text."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the result as PNG or SVG ([plot] extra).")
    ] = None,
    n_threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count how often each neuron is non-zero, and say how few of them do most of the work."""
    if not text and activation is None:
        raise UsageProblem("nothing to read: give --text FILE or --activation PATH")
    if plot is not None:
        check_plot(plot, force=force)
    report = profile_model(
        model,
        text or [],
        output=output,
        force=force,
        n_ctx=n_ctx,
        max_tokens=max_tokens,
        compare_texts=compare_text or [],
        activation=activation,
        n_threads=thread_count(n_threads),
        progress=terminal_progress(),
    )
    print_summary(_facts(report) if as_json else _lines(report, plot), as_json=as_json)
    if not as_json:
        _print_layers(report)
    if plot is not None:
        plot_profile(plot, [report.counts] + ([report.compared] if report.compared else []))


def _facts(report: ProfileReport) -> dict[str, Any]:
    facts = {"path": str(report.path), "n_resumed_windows": report.n_resumed} | _facts_of(report.counts)
    if report.compared is not None:
        facts["compared"] = _facts_of(report.compared)
        facts["hot_overlap_by_layer"] = _rounded(overlaps(report.counts.counts, report.compared.counts))
    return facts


def _facts_of(counts: ActivationCounts) -> dict[str, Any]:
    shares = density(counts.counts, counts.tokens)
    known = bool(counts.tokens)
    return {
        "source": counts.source,
        "n_tokens": counts.tokens or None,
        "density": float(shares.mean()) if known else None,
        "density_by_layer": _rounded(shares) if known else None,
        "hot_share": n_neurons_for(counts.counts, MOST) / counts.counts.size,
        "hot_share_by_layer": _rounded(hot_shares(counts.counts)),
    }


def _rounded(values: npt.NDArray[np.float64]) -> list[float]:
    return [round(float(value), 6) for value in values]


def _lines(report: ProfileReport, plot: Path | None) -> dict[str, str]:
    lines = {"written": str(report.path)}
    if plot is not None:
        lines["figure"] = str(plot)
    for prefix, counts in (("", report.counts), ("compared_", report.compared)):
        if counts is None:
            continue
        facts = _facts_of(counts)
        tokens = f"{counts.tokens} tokens" if counts.tokens else "unknown number of tokens"
        lines[f"{prefix}text"] = f"{counts.source}, {tokens}"
        if facts["density"] is not None:
            lines[f"{prefix}density"] = f"{100 * facts['density']:.2f} %"
        lines[f"{prefix}hot"] = (
            f"{100 * facts['hot_share']:.1f} % of all neurons make {100 * MOST:.0f} % of the activations"
        )
    if report.compared is not None:
        shared = overlaps(report.counts.counts, report.compared.counts).mean()
        lines["overlap"] = f"{100 * shared:.1f} % of the hottest {100 * HOT_SHARE:.0f} % are hot in both texts"
    return lines


def _print_layers(report: ProfileReport) -> None:
    columns = {"layer": [f"{layer}" for layer in range(len(report.counts.counts))]}
    for suffix, counts in (("", report.counts), (" (2)", report.compared)):
        if counts is not None:
            if counts.tokens:
                columns[f"density{suffix}"] = _percent(density(counts.counts, counts.tokens))
            columns[f"neurons for {100 * MOST:.0f} %{suffix}"] = _percent(hot_shares(counts.counts))
    if report.compared is not None:
        columns["overlap"] = _percent(overlaps(report.counts.counts, report.compared.counts))
    print("\n" + "  ".join(columns))
    for row in zip(*columns.values(), strict=True):
        print("  ".join(cell.rjust(len(name)) for name, cell in zip(columns, row, strict=True)))


def _percent(values: npt.NDArray[np.float64]) -> list[str]:
    return [f"{100 * value:.1f} %" for value in values]

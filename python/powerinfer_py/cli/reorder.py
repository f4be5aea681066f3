"""`powerinfer reorder`: the hottest neurons first."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from powerinfer_py.cli.common import (
    CtxOption,
    ForceOption,
    JsonOption,
    UsageProblem,
    print_summary,
    size_text,
    terminal_progress,
)
from powerinfer_py.sparsity.hot_sets import MOST
from powerinfer_py.sparsity.reorder import ReorderReport, reorder_model


class WithinHot(str, Enum):
    """Choices of --within-hot."""

    by_count = "count"
    cluster = "cluster"


def reorder(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A model with activation counts (powerinfer profile).")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    force: ForceOption = False,
    within_hot: Annotated[
        WithinHot, typer.Option("--within-hot", help="Order of the hot neurons: by count, or by firing together.")
    ] = WithinHot.by_count,
    text: Annotated[
        list[Path] | None,
        typer.Option("--text", metavar="FILE", help="For --within-hot cluster: UTF-8 text to see what fires together."),
    ] = None,
    n_ctx: CtxOption = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="N", help="Read at most so many tokens; default: 8192.")
    ] = None,
    activation: Annotated[
        Path | None,
        typer.Option("--activation", metavar="PATH", help="Sort by an activation/ folder or side file instead."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Sort the neurons of every layer by activation, hottest first; rows stay the same, byte for byte."""
    if within_hot is WithinHot.cluster and not text:
        raise UsageProblem("--within-hot cluster needs --text FILE to see which neurons fire together")
    if within_hot is WithinHot.by_count and text:
        raise UsageProblem("--text is for --within-hot cluster; counts come from `powerinfer profile`")
    report = reorder_model(
        source,
        target,
        force=force,
        activation=activation,
        cluster_texts=text or [],
        n_ctx=n_ctx,
        max_tokens=max_tokens,
        progress=terminal_progress(),
    )
    print_summary(_facts(report) if as_json else _lines(report), as_json=as_json)


def _facts(report: ReorderReport) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "path": str(report.path),
        "n_bytes": report.n_bytes,
        "n_moved": report.n_moved,
        "n_hot_by_layer": report.n_hot,
    }
    if report.grouping is not None:
        facts["grouping"] = vars(report.grouping)
    return facts


def _lines(report: ReorderReport) -> dict[str, str]:
    hot = ", ".join(str(n) for n in report.n_hot)
    lines = {
        "written": f"{report.path}, {size_text(report.n_bytes)}",
        "moved": f"{report.n_moved} neurons",
        "hot": f"{hot} neurons per layer make {100 * MOST:.0f} % of the activations",
    }
    if report.grouping is not None:
        before, after = sum(report.grouping.touched_before), sum(report.grouping.touched_after)
        lines["blocks"] = (
            f"a token needs {after:.1f} of {sum(report.grouping.n_blocks)} blocks of 64 hot neurons, {before:.1f} "
            f"in the order by count ({report.grouping.n_tokens} tokens, all layers)"
        )
    return lines

"""`powerinfer imatrix`: which columns of the matrices matter, for quantize."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from powerinfer_py.cli.common import (
    CtxOption,
    ForceOption,
    JsonOption,
    OutputOption,
    TextOption,
    ThreadsOption,
    print_summary,
    terminal_progress,
    thread_count,
)
from powerinfer_py.sparsity.imatrix import collect_imatrix


def imatrix(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A GGUF file, best one that is not quantized.")],
    text: TextOption,
    output: OutputOption,
    n_ctx: CtxOption = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="N", help="Read at most so many tokens.")
    ] = None,
    n_threads: ThreadsOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Record how large the inputs of a model's matrices are on a text, for `powerinfer quantize --imatrix`."""
    report = collect_imatrix(
        model,
        text,
        output,
        n_ctx=n_ctx,
        max_tokens=max_tokens,
        n_threads=thread_count(n_threads),
        force=force,
        progress=terminal_progress(),
    )
    if as_json:
        print_summary(vars(report), as_json=True)
        return
    lines = {
        "written": report.path,
        "read": f"{report.n_tokens} tokens in {report.n_windows} windows",
        "matrices": f"{len(report.tensors)}",
    }
    print_summary(lines, as_json=False)

"""`powerinfer quantize`: matrices in smaller types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from powerinfer_py.cli.common import (
    ForceOption,
    JsonOption,
    ThreadsOption,
    UsageProblem,
    print_summary,
    size_text,
    terminal_progress,
    thread_count,
)
from powerinfer_py.sparsity.quantize import TYPES, QuantizeReport, quantize


def quantize_command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The model to quantize.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help=f"Type of the matrices: {', '.join(TYPES)}.")],
    imatrix: Annotated[
        Path | None,
        typer.Option("--imatrix", metavar="FILE", help="Importance of columns, of `powerinfer imatrix` or llama.cpp."),
    ] = None,
    tensor_types: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor-type",
            metavar="REGEX=TYPE",
            help="Another type for matrices in whose name REGEX is found; may be given repeatedly, the first fits.",
        ),
    ] = None,
    output_tensor_type: Annotated[
        str | None, typer.Option("--output-tensor-type", metavar="TYPE", help="Type of the output matrix.")
    ] = None,
    predictor_type: Annotated[
        str | None, typer.Option("--predictor-type", metavar="TYPE", help="Type of the predictors' matrices.")
    ] = None,
    cold_type: Annotated[
        str | None, typer.Option("--cold-type", metavar="TYPE", help="Type of the neurons that are not hot.")
    ] = None,
    hot_share: Annotated[
        float | None, typer.Option("--hot-share", metavar="X", help="With --cold-type: share of hot neurons, 0 to 1.")
    ] = None,
    allow_requantize: Annotated[
        bool,
        typer.Option("--allow-requantize", help="Also matrices that are quantized already; reports the error added."),
    ] = False,
    n_threads: ThreadsOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Store the matrices of a model in another type."""
    report = quantize(
        source,
        target,
        type_name,
        imatrix=imatrix,
        tensor_types=[_pair(text) for text in tensor_types or []],
        output_tensor_type=output_tensor_type,
        predictor_type=predictor_type,
        cold_type=cold_type,
        hot_share=hot_share,
        allow_requantize=allow_requantize,
        n_threads=thread_count(n_threads),
        force=force,
        progress=terminal_progress(),
    )
    print_summary(_facts(report) if as_json else _lines(report), as_json=as_json)


def _pair(text: str) -> tuple[str, str]:
    pattern, separator, type_name = text.rpartition("=")
    if not separator or not pattern:
        raise UsageProblem(f"--tensor-type {text!r}: expected REGEX=TYPE, e.g. ffn_down=q6_k")
    return pattern, type_name


def _facts(report: QuantizeReport) -> dict[str, Any]:
    return vars(report)


def _lines(report: QuantizeReport) -> dict[str, str]:
    types = ", ".join(f"{n} {name}" for name, n in sorted(report.n_tensors.items()))
    lines = {
        "written": f"{report.path}, {size_text(report.n_bytes)} of {size_text(report.n_bytes_before)}",
        "tensors": types,
    }
    if report.n_weighted:
        lines["importance"] = f"weighed the errors of {report.n_weighted} matrices"
    if report.requantize_error is not None:
        lines["requantized"] = (
            f"{report.n_requantized} matrices that were quantized already; this added a relative error of "
            f"{100 * report.requantize_error:.2f} %"
        )
    return lines

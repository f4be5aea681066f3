"""`powerinfer convert`: a checkpoint, or a GGUF file, to a PowerInfer GGUF."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from powerinfer_py.cli.common import (
    ForceOption,
    JsonOption,
    OutputOption,
    ThreadsOption,
    print_summary,
    size_text,
    terminal_progress,
    thread_count,
)
from powerinfer_py.convert import OUTTYPES, SUPPORTED_CLASSES, ConvertReport, convert

_HELP = (
    "Convert a Hugging Face folder or a GGUF file to a PowerInfer GGUF: weights, tokenizer, true activation.\n\n"
    f"Classes of checkpoints: {', '.join(SUPPORTED_CLASSES)}."
)


class LayoutName(str, Enum):
    """Choices of --layout."""

    auto = "auto"
    plain = "plain"
    transposed = "transposed"


def convert_command(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Folder with config.json and weights, or a GGUF file.")],
    output: OutputOption,
    outtype: Annotated[
        str,
        typer.Option(
            "--outtype", metavar="TYPE", help=f"{', '.join(OUTTYPES)}; auto: the checkpoint's 16-bit type, else f16."
        ),
    ] = "auto",
    layout: Annotated[
        LayoutName, typer.Option("--layout", help="Down matrix by neurons, or as others read it; auto: by activation.")
    ] = LayoutName.auto,
    force_plain: Annotated[
        bool, typer.Option("--force-plain", help="Plain even with a ReLU, which other engines compute wrongly.")
    ] = False,
    compatible: Annotated[
        bool, typer.Option("--compatible", help="A file that the reference engine reads; f16 or q4_0.")
    ] = False,
    predictors: Annotated[
        Path | None, typer.Option("--predictors", metavar="DIR", help="The reference's predictors, model_0.pt and on.")
    ] = None,
    activation: Annotated[
        Path | None, typer.Option("--activation", metavar="DIR", help="The reference's counts, activation_0.pt and on.")
    ] = None,
    hidden_activation: Annotated[
        str | None,
        typer.Option(
            "--hidden-activation", metavar="NAME", help="True activation of a GGUF file that is silent on it."
        ),
    ] = None,
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Make blocks of blocks; the error added is reported.")
    ] = False,
    threads: ThreadsOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Convert a checkpoint or a GGUF file."""
    report = convert(
        source,
        output,
        outtype=outtype,
        layout=layout.value,
        force_plain=force_plain,
        compatible=compatible,
        predictors=predictors,
        activation=activation,
        hidden_activation=hidden_activation,
        allow_requantize=allow_requantize,
        n_threads=thread_count(threads),
        force=force,
        progress=terminal_progress(),
    )
    print_summary(vars(report) if as_json else _lines(report), as_json=as_json)


convert_command.__doc__ = _HELP


def _lines(report: ConvertReport) -> dict[str, Any]:
    lines = {
        "written": f"{report.path}, {size_text(report.n_bytes)}, {report.n_tensors} tensors",
        "architecture": f"{report.architecture}, activation {report.activation}, layout {report.layout}",
        "fingerprint": report.fingerprint,
        "time": f"{report.seconds:.1f} s, {report.n_bytes / 1e6 / max(report.seconds, 1e-3):.0f} MB/s",
    }
    if report.n_resumed:
        lines["resumed"] = f"{report.n_resumed} tensors were finished by an earlier run"
    if report.side_file is not None:
        lines["side file"] = str(report.side_file)
    if report.requantization_error is not None:
        lines["error added"] = f"{100 * report.requantization_error:.2f} % (relative RMS) by quantizing again"
    return lines

"""Options and small things that several commands share."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

import powerinfer_py
from powerinfer_py.files import Progress
from powerinfer_py.sparsity.text import decode_utf8, read_utf8


class UsageProblem(Exception):
    """The command line makes no sense; exit code 2."""


class SparsityName(str, Enum):
    """Choices of --sparsity."""

    auto = "auto"
    dense = "dense"
    exact = "exact"
    predictor = "predictor"
    threshold = "threshold"


class WeightsName(str, Enum):
    """Choices of --weights."""

    auto = "auto"
    mmap = "mmap"
    read = "read"


class KvTypeName(str, Enum):
    """Choices of --kv-type."""

    f16 = "f16"
    f32 = "f32"


ModelOption = Annotated[
    Path | None,
    typer.Option("-m", "--model", metavar="FILE", help="GGUF file; default: the bundled model."),
]
CtxOption = Annotated[
    int | None,
    typer.Option("-c", "--ctx-size", metavar="N", help="Positions; 0: as many as the model was trained with."),
]
BatchOption = Annotated[int, typer.Option("-b", "--batch-size", metavar="N", help="Tokens computed per pass.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option("-t", "--threads", metavar="N", help="Threads; default: physical cores this process may use."),
]
ThreadsBatchOption = Annotated[
    int | None,
    typer.Option("-tb", "--threads-batch", metavar="N", help="Threads for prompts; default: as --threads."),
]
SparsityOption = Annotated[
    SparsityName, typer.Option("--sparsity", help="What decides that a neuron is skipped; see `powerinfer inspect`.")
]
ThresholdOption = Annotated[
    str | None,
    typer.Option("--threshold", metavar="X[,X...]", help="Cut of the predictor: one number, or one per layer."),
]
ActivationOption = Annotated[
    str | None,
    typer.Option("--activation", metavar="NAME", help="Override the FFN activation, e.g. relu or fatrelu:0.01."),
]
WeightsOption = Annotated[WeightsName, typer.Option("--weights", help="Map the file, or read it into memory.")]
KvTypeOption = Annotated[KvTypeName, typer.Option("--kv-type", help="Type of the KV cache.")]
OutputOption = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The file to write.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an output that exists.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The result as JSON.")]
TextOption = Annotated[list[Path], typer.Option("--text", metavar="FILE", help="UTF-8 text; may be given repeatedly.")]


class TerminalProgress(Progress):
    """Bars with the time left on stderr, where that is a terminal; notes as lines."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def start(self, title: str, total: float, unit: str = "") -> None:
        """Opens a bar."""
        self.finish()
        self._bar = tqdm(
            desc=title, total=total, unit=unit, unit_scale=unit == "B", file=sys.stderr, disable=None, leave=False
        )

    def advance(self, n: float = 1) -> None:
        """Moves the bar."""
        if self._bar is not None:
            self._bar.update(n)

    def finish(self) -> None:
        """Closes the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def note(self, text: str) -> None:
        """A line above the bar."""
        with tqdm.external_write_mode(file=sys.stderr):
            warn(text)


def terminal_progress() -> Progress:
    """What commands pass to long work."""
    return TerminalProgress()


def size_text(n_bytes: float) -> str:
    """ "1.23 GB" or "4.56 MB"."""
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.2f} MB"


def print_summary(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Facts as one JSON object, in which numbers that are not finite are null, or as lines of name and value."""
    if as_json:
        print(json.dumps(_finite(facts), ensure_ascii=False, indent=2, default=str, allow_nan=False))
        return
    width = max((len(name) for name in facts), default=0) + 2
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<{width}}{printable(str(value))}")


def _finite(value: Any) -> Any:
    """`value` as JSON can hold it: None for numbers that are not finite, in all it contains."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def printable(text: str, limit: int = 1000) -> str:
    """Text from a file, fit for a terminal: control characters as escapes, cut at `limit` characters."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text[:limit])
    return shown + ("..." if len(text) > limit else "")


def warn(text: str) -> None:
    """One line on stderr."""
    sys.stdout.flush()
    print(f"powerinfer: {printable(text)}", file=sys.stderr, flush=True)


def parse_thresholds(text: str | None) -> list[float] | None:
    """Numbers separated by commas."""
    if text is None:
        return None
    try:
        return [float(item) for item in text.split(",")]
    except ValueError:
        raise UsageProblem(f"--threshold {text!r}: expected a number, or one per layer separated by commas") from None


def thread_count(value: int | None) -> int | None:
    """-1 is "choose", as in llama.cpp."""
    return None if value == -1 else value


def read_text_file(path: Path) -> str:
    """A UTF-8 file, or stdin for "-"."""
    return decode_utf8(sys.stdin.buffer.read(), "stdin") if str(path) == "-" else read_utf8(path)


def load_model(
    path: Path | None,
    *,
    sparsity: SparsityName,
    threshold: str | None,
    activation: str | None,
    weights: WeightsName = WeightsName.auto,
) -> powerinfer_py.Model:
    """The model that the options ask for."""
    return powerinfer_py.Model(
        path,
        sparsity=sparsity.value,
        threshold=parse_thresholds(threshold),
        activation=activation,
        weights=weights.value,
    )


def describe(model: powerinfer_py.Model, context: powerinfer_py.Context) -> str:
    """The one line about what runs, and whether it can lose anything."""
    return (
        f"{printable(model.name, 100)} ({model.architecture}, {model.n_params / 1e6:.1f} M parameters, "
        f"{model.activation}), context {context.n_ctx}, sparsity {context.sparsity}: "
        f"{model.mode_summary(context.sparsity)}"
    )


def context_size(model: powerinfer_py.Model, wanted: int | None) -> int | None:
    """0 is the trained length, as in llama.cpp."""
    return model.n_ctx_train if wanted == 0 else wanted

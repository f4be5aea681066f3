"""The command `powerinfer`: one file per subcommand, and here what they share: dispatch, errors, exit codes.

Exit codes: 0 done, 1 an error (one sentence on stderr), 2 wrong usage, 130 Ctrl-C.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import powerinfer_py
from powerinfer_py.cli import foreign_flags
from powerinfer_py.cli.common import UsageProblem, warn
from powerinfer_py.cli.convert import convert_command
from powerinfer_py.cli.evaluate_sparsity import evaluate_sparsity_command
from powerinfer_py.cli.imatrix import imatrix
from powerinfer_py.cli.inspect import inspect
from powerinfer_py.cli.perplexity import perplexity
from powerinfer_py.cli.profile import profile
from powerinfer_py.cli.quantize import quantize_command
from powerinfer_py.cli.reorder import reorder
from powerinfer_py.cli.run import run
from powerinfer_py.cli.train_predictor import train_predictor_command
from powerinfer_py.cli.verify import verify

app = typer.Typer(
    name="powerinfer",
    help="Runs GGUF language models, skipping the FFN neurons that a token does not need.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run)
app.command("inspect")(inspect)
app.command("perplexity")(perplexity)
app.command("evaluate-sparsity")(evaluate_sparsity_command)
app.command("train-predictor")(train_predictor_command)
app.command("convert")(convert_command)
app.command("profile")(profile)
app.command("imatrix")(imatrix)
app.command("quantize")(quantize_command)
app.command("reorder")(reorder)
app.command("verify")(verify)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"powerinfer {powerinfer_py.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script; never returns."""
    # A closed stream is None; writing into nothing is what its owner asked for.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        arguments = foreign_flags.filter_arguments(command, arguments)
        code = command.main(args=arguments, prog_name="powerinfer", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # The reader has left; what is still buffered must not fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UsageProblem as problem:
        warn(f"{problem}; see --help")
        return 2
    except (powerinfer_py.Error, OSError, MemoryError) as error:
        warn(_sentence(error))
        return 1
    except Exception as error:
        # typer's own usage errors know how to show themselves; anything else is a defect, told without a traceback.
        show, exit_code = getattr(error, "show", None), getattr(error, "exit_code", None)
        if callable(show) and isinstance(exit_code, int):
            show()
            return exit_code
        if sys.flags.dev_mode:
            raise
        warn(f"internal error, please report it: {type(error).__name__}: {error}")
        return 1


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__

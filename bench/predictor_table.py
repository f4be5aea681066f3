"""Kinds and ranks of predictors on one model: how well each predicts, and what perplexity and speed it then has.

    python bench/predictor_table.py MODEL.gguf --text train.txt --held-out held.txt --kind svd --kind sign --rank 32 ...

Trains each kind at each rank, and the automatic choice among all of them, to the same recall; runs every result over
the held-out text in predictor mode. Prints a Markdown table: recall, recall weighted by contribution, precision and
predicted density on the last tenth of the training text; perplexity, bytes and tokens per second on the held-out one.
The speeds are measured in turns.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from powerinfer_py import Context, Model
from powerinfer_py.sparsity.evaluate import decode_speed, perplexity_of
from powerinfer_py.sparsity.predictor.selection import Totals
from powerinfer_py.sparsity.predictor.train import train_predictor
from powerinfer_py.sparsity.text import load_windows

HEADER = "| predictor | recall | weighted | precision | predicted | perplexity | MB/token | tokens/s |"


def percent(value: float | None) -> str:
    """A share, or nothing."""
    return "" if value is None else f"{100 * value:.1f} %"


def main(
    model: Path,
    text: Annotated[list[Path], typer.Option(help="to train on")],
    held_out: Annotated[Path, typer.Option(help="to measure on")],
    kind: Annotated[list[str], typer.Option(help="svd, sign, svd+, mlp")] = ["svd", "sign"],  # noqa: B006
    rank: Annotated[list[int], typer.Option()] = [32, 64, 96],  # noqa: B006
    recall: float = 0.97,
    ctx_size: int = 256,
    max_tokens: Annotated[int, typer.Option(help="to train on")] = 12000,
    windows: Annotated[int, typer.Option(help="to measure on")] = 32,
    threads: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Trains, measures, prints."""
    with tempfile.TemporaryDirectory() as folder:
        rows: list[tuple[str, Path, str, Totals]] = []
        wanted: list[tuple[str, dict[str, object]]] = [
            (f"{name} {size}" if size else name, {"kind": name, "rank": size})
            for name in kind
            for size in ([None] if name == "sign" else rank)
        ]
        for label, options in [*wanted, ("automatic choice", {"kind": kind})]:
            path = Path(folder) / f"{len(rows)}.gguf"
            report = train_predictor(
                model, text, path, target_recall=recall, max_tokens=max_tokens, n_ctx=ctx_size, n_threads=threads,
                **options,
            )  # type: ignore[arg-type] # fmt: skip
            if not rows:
                rows = [(mode, model, mode, report.table[0]) for mode in ("dense", "exact")]
            rows.append((label, path, "predictor", report.chosen))
        models = [Model(path, n_threads=threads) for _, path, _, _ in rows]
        contexts = [
            Context(loaded, n_ctx=ctx_size, sparsity=mode)  # type: ignore[arg-type]
            for loaded, (_, _, mode, _) in zip(models, rows, strict=True)
        ]
        texts = load_windows(models[0], [held_out], n_ctx=ctx_size, max_windows=windows)
        perplexities = [perplexity_of(m, c, texts) for m, c in zip(models, contexts, strict=True)]
        speeds = decode_speed(contexts, texts[0])
        print(f"{texts.size} held-out tokens, {threads} threads\n\n{HEADER}\n|---|---|---|---|---|---|---|---|")
        for (label, _, mode, totals), perplexity, (speed, touched) in zip(rows, perplexities, speeds, strict=True):
            shares = (totals.recall, totals.weighted_recall, totals.precision, totals.predicted_density)
            predicted = " | ".join(percent(share if mode == "predictor" else None) for share in shares)
            print(f"| {label} | {predicted} | {perplexity:.3f} | {touched / 1e6:.2f} | {speed:.0f} |")


if __name__ == "__main__":
    typer.run(main)

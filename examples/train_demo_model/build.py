"""Makes the bundled model from the corpus, with the project's own tools alone.

    python build.py --corpus CORPUS --work work [--minutes 85 | --weights FILE.gguf]

Steps, each skipped when its result is in --work: train (train.py), publish as a Hugging Face folder (save_hf.py),
`powerinfer convert` to Q8_0, `profile`, `reorder` (hottest neurons first), `train-predictor` (kind, rank and threshold
per layer), `verify` against the trained weights. With --weights, a model that exists is the start and nothing is
trained. Then copy work/demo.powerinfer.gguf into the package and run model_card.py.
"""

from __future__ import annotations

import lzma
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from corpus import BOOKS_PART, HELDOUT, PART_WEIGHTS

HERE = Path(__file__).parent
CTX = "256"
RECALL = "0.97"


def run(*command: str | Path) -> None:
    """One step; ends the program when it fails."""
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True)


def powerinfer(*arguments: str | Path) -> None:
    """A step by the installed command."""
    run(sys.executable, "-m", "powerinfer_py", *arguments)


def write_texts(corpus: Path, folder: Path) -> None:
    """The corpus as plain text files."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in (*PART_WEIGHTS, BOOKS_PART, HELDOUT):
        target = folder / f"{part}.txt"
        if not target.exists():
            target.write_bytes(lzma.decompress((corpus / f"{part}.txt.xz").read_bytes()))


def main(
    corpus: Annotated[Path, typer.Option(help="folder with the *.txt.xz parts")],
    work: Annotated[Path, typer.Option(help="folder for everything written")],
    minutes: Annotated[float, typer.Option(help="training time")] = 85,
    weights: Annotated[Path | None, typer.Option(help="a GGUF file to start from, instead of training")] = None,
) -> None:
    """Runs all steps."""
    texts = work / "texts"
    write_texts(corpus, texts)
    source = weights or work / "hf"
    if weights is None:
        run(sys.executable, HERE / "train.py", "--corpus", corpus, "--out", work, "--minutes", str(minutes))
        run(sys.executable, HERE / "save_hf.py", "--work", work, "--out", source)
    # Profile and predictors see what the model is meant to write, not the older books.
    training = [option for part in PART_WEIGHTS for option in ("--text", texts / f"{part}.txt")]
    stages = {
        "converted": ("convert", source, "-o", work / "converted.gguf", "--outtype", "q8_0"),
        "counted": ("profile", work / "converted.gguf", *training, "-o", work / "counted.gguf", "--ctx-size", CTX),
        "ordered": ("reorder", work / "counted.gguf", work / "ordered.gguf"),
        "demo.powerinfer": (
            "train-predictor", work / "ordered.gguf", *training, "-o", work / "demo.powerinfer.gguf",
            "--target-recall", RECALL, "--ctx-size", CTX,
        ),
    }  # fmt: skip
    for name, command in stages.items():
        if not (work / f"{name}.gguf").exists():
            powerinfer(*command)
    heldout = texts / f"{HELDOUT}.txt"
    powerinfer("verify", work / "demo.powerinfer.gguf", "--against", source, "--text", heldout, "--ctx-size", CTX)


if __name__ == "__main__":
    typer.run(main)

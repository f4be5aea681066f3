"""Measures the bundled model with the installed `powerinfer` command and writes its model card.

    python model_card.py --heldout heldout.txt --training figures.json

Figures and stories come from the command line a user has: `powerinfer perplexity -c 256`, `powerinfer inspect` and
`powerinfer run -p "Once upon a time" -n 256 -s 1` to `-s 10`. `figures.json` holds what only training knows.
"""

from __future__ import annotations

import collections
import json
import re
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer

PROMPT = "Once upon a time"
CARD = Path(__file__).parents[2] / "python" / "powerinfer_py" / "data" / "MODEL_CARD.md"


def powerinfer(*arguments: str) -> str:
    """Standard output of the command."""
    return subprocess.run(["powerinfer", *arguments], check=True, capture_output=True, text=True).stdout


def words(text: str) -> list[str]:
    """Lower-case words without punctuation."""
    return re.findall(r"[a-z']+", text.lower())


def most_repeated_4gram(text: str) -> tuple[int, str]:
    """How often the most frequent run of four words occurs, and which it is."""
    parts = words(text)
    counts = collections.Counter(zip(*(parts[i:] for i in range(4)), strict=False))
    gram, count = counts.most_common(1)[0]
    return count, " ".join(gram)


def card(figures: dict[str, Any], quality: dict[str, Any], facts: dict[str, Any], stories: list[str]) -> str:
    """The model card as Markdown."""
    lengths = [len(words(story)) for story in stories]
    repeats = [most_repeated_4gram(story)[0] for story in stories]
    lines = [
        "# Model card: the bundled story model",
        "",
        "A small ReLU-gated llama that writes children's stories in English. It is part of the package so that the",
        "engine can be tried and tested without a download; it knows nothing and must not be relied on for anything.",
        "",
        "## Figures",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in {**facts, **quality, **figures["training"]}.items()),
        "",
        "Perplexity and density are those of `powerinfer perplexity -f heldout.txt -c 256 --sparsity exact` (and",
        "`predictor`; second half of each window scored) on held-out documents, no part of the training text.",
        "",
        "## Data and licences",
        "",
        "| part | source | licence |",
        "|---|---|---|",
        *(f"| {part['part']} | {part['source']} | {part['licence']} |" for part in figures["data"]),
        "",
        f"The weights are published under {figures['licence']}.",
        "",
        "How it was made: `examples/train_demo_model/`.",
        "",
        "## Ten stories",
        "",
        f'`powerinfer run -p "{PROMPT}" -n 256 -s SEED`, default sampler, unedited. Mean length '
        f"{sum(lengths) / len(lengths):.0f} words (from {min(lengths)} to {max(lengths)}); no run of four words occurs "
        f"more than {max(repeats)} times in one.",
    ]
    for seed, story in enumerate(stories, 1):
        lines += ["", f"### Seed {seed}", "", *(f"> {line}".rstrip() for line in story.strip().splitlines())]
    return "\n".join(lines) + "\n"


def main(
    heldout: Annotated[Path, typer.Option(help="held-out text")],
    training: Annotated[Path, typer.Option(help="JSON with what training knows: training, data, licence")],
    out: Annotated[Path, typer.Option(help="where the card goes")] = CARD,
) -> None:
    """Writes the card and prints the figures that must hold."""
    measured, predicted = (
        json.loads(powerinfer("perplexity", "-f", str(heldout), "-c", "256", "--sparsity", mode, "--json"))
        for mode in ("exact", "predictor")
    )
    facts = json.loads(powerinfer("inspect", "--json"))["model"]
    stories = [powerinfer("run", "-p", PROMPT, "-n", "256", "-s", str(seed)) for seed in range(1, 11)]
    quality = {
        "bits per byte": f"{measured['bits_per_byte']:.3f}",
        "perplexity": f"{measured['perplexity']:.2f} +/- {measured['error']:.2f}",
        "FFN density, exact mode": f"{measured['density']:.1%}",
        "perplexity with the predictor": f"{predicted['perplexity']:.2f}",
        "share of neurons predicted active": f"{predicted['predicted_density']:.1%}",
    }
    sizes = {
        "parameters": f"{facts['n_params'] / 1e6:.2f} M",
        "shape": f"{facts['n_layers']} layers, width {facts['d_model']}, FFN {facts['d_ff']}, {facts['n_heads']} "
        f"heads, {facts['n_kv_heads']} key/value heads, vocabulary {facts['n_vocab']}",
    }
    out.write_text(card(json.loads(training.read_text(encoding="utf-8")), quality, sizes, stories), encoding="utf-8")
    lengths = [len(words(story)) for story in stories]
    print(json.dumps(quality | sizes))
    print(f"stories: mean {sum(lengths) / len(lengths):.0f} words; repeats {[most_repeated_4gram(s) for s in stories]}")


if __name__ == "__main__":
    typer.run(main)

"""Writes a story with the bundled model, then says what it cost."""

from __future__ import annotations

import powerinfer_py as pi


def main() -> None:
    """Streams the text as it is written."""
    with pi.Model() as model, pi.Context(model) as context:
        prompt = "Once upon a time"
        print(prompt, end="")
        for piece in context.generate(prompt, max_tokens=200, temperature=0.8, seed=1):
            print(piece, end="", flush=True)
        stats = context.stats
        print(f"\n\n{stats['generate_tokens_per_second']:.0f} tokens/s, sparsity {stats['mode']}")
        print(f"{100 * (stats['mean_density'] or 1):.1f} % of the FFN neurons were active")


if __name__ == "__main__":
    main()

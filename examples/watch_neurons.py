"""Shows which neurons a text needs: a tap on `h`, the FFN activations of every layer."""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

import powerinfer_py as pi


def main() -> None:
    """Counts, per layer, how often each neuron fires over a text (the first argument)."""
    text = sys.argv[1] if len(sys.argv) > 1 else "The little girl went to the park and saw a big dog."
    with pi.Model(sparsity="exact") as model, pi.Context(model) as context:
        counts = np.zeros((model.n_layers, model.d_ff), np.int64)

        def count(layer: int, _unit: int, h: npt.NDArray[np.float32]) -> None:
            counts[layer] += np.count_nonzero(h, axis=0)

        context.set_tap("h", count)
        tokens = model.tokenize(text)
        context.eval(tokens)
        for layer, fired in enumerate(counts):
            density = fired.sum() / (len(tokens) * model.d_ff)
            hottest = ", ".join(f"{neuron} ({fired[neuron]}x)" for neuron in np.argsort(-fired)[:4])
            print(f"layer {layer}: {100 * density:4.1f} % active, {np.mean(fired == 0):.0%} never; hottest {hottest}")


if __name__ == "__main__":
    main()

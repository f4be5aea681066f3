"""What an architecture's file says about a checkpoint: keys, and where each tensor comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from powerinfer_py.convert.activation import Activation
from powerinfer_py.files import Value


@dataclass(frozen=True)
class Planned:
    """A tensor of the file and its origin."""

    name: str
    """In the file; `ffn_down` in the plain layout."""
    source: str
    """In the checkpoint."""
    shape: tuple[int, ...]
    """That the configuration demands of the source, torch order."""
    rows: npt.NDArray[np.int64] | None = None
    """The source's rows in the order of the file."""
    scale: float = 1.0
    """Factor that is folded in."""


@dataclass(frozen=True)
class ModelPlan:
    """A checkpoint as a GGUF file."""

    architecture: str
    """Of the file: llama, bamboo, falcon, opt."""
    activation: Activation
    n_layers: int
    d_model: int
    d_ff: int
    n_vocab: int
    keys: dict[str, Value]
    """Hyperparameters; full names."""
    tensors: list[Planned]
    constants: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    """Tensors that follow from the configuration."""
    ignored: tuple[str, ...] = ()
    """Regular expressions of tensors of the checkpoint that say nothing new."""
    notes: tuple[str, ...] = ()
    """What the user should know."""

    @property
    def has_rope_scaling(self) -> bool:
        """Whether positions are scaled in any way."""
        return "rope_freqs.weight" in self.constants or f"{self.architecture}.rope.scaling.type" in self.keys


def interleaved_rows(n_heads: int, head_dim: int) -> npt.NDArray[np.int64]:
    """Rows of q or k from rotary halves to adjacent pairs [n_heads * head_dim]: the order of GGUF's llama family."""
    halves = np.arange(n_heads * head_dim, dtype=np.int64).reshape(n_heads, 2, head_dim // 2)
    return halves.swapaxes(1, 2).reshape(-1)


def both(name: str, source: str, n_rows: int, n_cols: int, *, bias: bool) -> Iterator[Planned]:
    """A linear's weight [n_rows, n_cols], and its bias."""
    yield Planned(f"{name}.weight", f"{source}.weight", (n_rows, n_cols))
    if bias:
        yield Planned(f"{name}.bias", f"{source}.bias", (n_rows,))


def norm(name: str, source: str, width: int, *, bias: bool) -> Iterator[Planned]:
    """A norm's weight [width], and its bias."""
    yield Planned(f"{name}.weight", f"{source}.weight", (width,))
    if bias:
        yield Planned(f"{name}.bias", f"{source}.bias", (width,))


def size_keys(
    architecture: str, *, n_ctx: int, d_model: int, d_ff: int, n_layers: int, n_heads: int, n_kv_heads: int
) -> dict[str, Value]:
    """The sizes that every architecture has."""
    sizes = {
        "context_length": n_ctx,
        "embedding_length": d_model,
        "block_count": n_layers,
        "feed_forward_length": d_ff,
        "attention.head_count": n_heads,
        "attention.head_count_kv": n_kv_heads,
    }
    return {f"{architecture}.{name}": Value("u32", size) for name, size in sizes.items()}

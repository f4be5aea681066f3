"""The tensors of a file to be written, before they are: where each comes from, its type, and the FFN's layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from powerinfer_py import _core
from powerinfer_py.convert.matrix import Matrix, Transposed

Layout = Literal["auto", "plain", "transposed"]
LAYOUTS = ("auto", "plain", "transposed")

_KEPT_F32 = ("rope_freqs.weight",)
_GATHERED = ("position_embd.weight",)  # rows are looked up, never multiplied


@dataclass(frozen=True)
class OutTensor:
    """A tensor of the file."""

    name: str
    matrix: Matrix
    is_vector: bool
    type: str
    """As it will be stored."""
    wanted: str = ""
    """What was asked for; `type` differs where that does not fit."""
    source_type: str = ""
    """In the source; another than the matrix' where its columns are taken out of blocks."""

    @property
    def is_requantized(self) -> bool:
        """Whether blocks are made of blocks again, which adds an error."""
        if any(_core.block_length(type_name) == 1 for type_name in (self.source_type, self.type)):
            return False
        return self.source_type != self.type or isinstance(self.matrix, Transposed)

    @property
    def shape(self) -> tuple[int, ...]:
        """GGUF order."""
        return (self.matrix.n_cols,) if self.is_vector else (self.matrix.n_cols, self.matrix.n_rows)


def typed(name: str, matrix: Matrix, *, is_vector: bool, type_name: str) -> OutTensor:
    """A tensor in the type that is wanted, or in the nearest one that can hold it.

    Vectors are F32, numbers of neurons stay integers; rows that blocks do not divide become Q8_0, else F16.
    """
    if matrix.type == "I32":
        return OutTensor(name, matrix, is_vector, "I32", source_type="I32")
    if is_vector or name in _KEPT_F32:
        return OutTensor(name, matrix, is_vector, "F32", source_type=matrix.type)
    if name in _GATHERED and _core.block_length(type_name) > 1:
        return OutTensor(name, matrix, is_vector, "F16", source_type=matrix.type)
    candidates = (type_name, "Q8_0", "F16")
    fitting = next(each for each in candidates if matrix.n_cols % _core.block_length(each) == 0)
    return OutTensor(name, matrix, is_vector, fitting, wanted=type_name, source_type=matrix.type)


def lay_out(tensors: list[OutTensor], *, transposed: bool, n_threads: int) -> list[OutTensor]:
    """The down matrices as `ffn_down_t`, one row per neuron, or as the plain layout's `ffn_down`."""
    ours, theirs = (".ffn_down_t.", ".ffn_down.") if transposed else (".ffn_down.", ".ffn_down_t.")
    return [_turned(each, theirs, ours, n_threads) if theirs in each.name else each for each in tensors]


def _turned(tensor: OutTensor, old: str, new: str, n_threads: int) -> OutTensor:
    name = tensor.name.replace(old, new)
    if tensor.is_vector:
        return replace(tensor, name=name)
    turned = Transposed(tensor.matrix, n_threads)
    typed_again = typed(name, turned, is_vector=False, type_name=tensor.wanted or tensor.type)
    return replace(typed_again, source_type=tensor.source_type)


def fallbacks(tensors: list[OutTensor]) -> list[str]:
    """Sentences about tensors that could not get the type that was asked for."""
    changed: dict[tuple[str, str, int], list[str]] = {}
    for each in tensors:
        if each.wanted and each.wanted != each.type:
            changed.setdefault((each.wanted, each.type, each.matrix.n_cols), []).append(each.name)
    return [
        f"{len(names)} tensors with rows of {n_cols} values, such as {names[0]}, are {got}: "
        f"{wanted} needs multiples of {_core.block_length(wanted)}"
        for (wanted, got, n_cols), names in changed.items()
    ]

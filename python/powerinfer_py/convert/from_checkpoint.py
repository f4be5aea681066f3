"""A Hugging Face folder as the contents of a file."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from powerinfer_py._core import FormatError, UnsupportedError
from powerinfer_py.convert.card import general_keys
from powerinfer_py.convert.checkpoint import Checkpoint, StoredTensor
from powerinfer_py.convert.contents import Contents
from powerinfer_py.convert.layout import OutTensor, typed
from powerinfer_py.convert.matrix import Bytes, Held, Matrix, Reordered, Scaled
from powerinfer_py.convert.models import ModelPlan, Planned, plan_model
from powerinfer_py.convert.tokenizers import read_tokenizer

_FLOATS = ("F32", "F16", "BF16", "F64")


def read_checkpoint(checkpoint: Checkpoint, outtype: str) -> Contents:
    """Everything that goes into the file, in the plain layout.

    Args:
        checkpoint: opened.
        outtype: GGUF type of the matrices, or "auto": the 16-bit type that they have, else F16.

    Raises:
        FormatError: a tensor is missing, superfluous or of another shape, or the tokenizer belongs to another model.
        UnsupportedError: a class, activation, option or tokenizer that is not known.
    """
    plan = plan_model(checkpoint.config, checkpoint.tensors.keys())
    sources = {planned.name: _source(checkpoint, planned) for planned in plan.tensors}
    _refuse_unknown(checkpoint, plan)
    type_name = _auto_type(sources.values()) if outtype == "auto" else outtype
    tokenizer = read_tokenizer(checkpoint.folder, n_vocab=plan.n_vocab)
    tensors = [_out(planned, sources[planned.name], type_name) for planned in plan.tensors]
    for name, values in plan.constants.items():
        tensors.append(typed(name, Held(values), is_vector=values.ndim == 1, type_name="F32"))
    keys = general_keys(checkpoint.folder, checkpoint.config, plan.architecture) | plan.keys
    keys |= plan.activation.keys(plan.architecture)
    return Contents(
        where=str(checkpoint.folder),
        identity=checkpoint.identity,
        architecture=plan.architecture,
        activation=plan.activation,
        n_layers=plan.n_layers,
        d_model=plan.d_model,
        d_ff=plan.d_ff,
        type_name=type_name,
        keys=keys | tokenizer.metadata,
        tensors=tensors,
        notes=[*plan.notes, *tokenizer.notes],
    )


def _source(checkpoint: Checkpoint, planned: Planned) -> StoredTensor:
    tensor = checkpoint.tensors.get(planned.source)
    if tensor is None:
        raise FormatError(
            f"{checkpoint.folder}: tensor {planned.source!r} is missing; is this the whole checkpoint of the class "
            "that config.json names?"
        )
    if tensor.shape != planned.shape:
        raise FormatError(
            f"{tensor.source.path}: tensor {planned.source!r}: config.json demands {list(planned.shape)}, "
            f"got {list(tensor.shape)}"
        )
    if tensor.stored not in _FLOATS:
        raise UnsupportedError(
            f"{tensor.source.path}: tensor {planned.source!r} is stored as {tensor.stored}; "
            f"supported: {', '.join(_FLOATS)}"
        )
    return tensor


def _refuse_unknown(checkpoint: Checkpoint, plan: ModelPlan) -> None:
    used = {planned.source for planned in plan.tensors}
    for name in checkpoint.tensors:
        if name not in used and not any(re.fullmatch(pattern, name) for pattern in plan.ignored):
            raise UnsupportedError(
                f"{checkpoint.folder}: tensor {name!r} is not part of the class that config.json names; "
                "leaving it out would change what the model computes"
            )


def _auto_type(tensors: Iterable[StoredTensor]) -> str:
    types = {tensor.stored for tensor in tensors if len(tensor.shape) > 1}
    return "BF16" if "BF16" in types and "F16" not in types else "F16"


def _out(planned: Planned, source: StoredTensor, type_name: str) -> OutTensor:
    matrix: Matrix = source
    is_vector = len(source.shape) == 1
    if planned.rows is not None:
        matrix = _Elements(source, planned.rows) if is_vector else Reordered(source, planned.rows)
    if planned.scale != 1.0:
        matrix = Scaled(matrix, planned.scale)
    return typed(planned.name, matrix, is_vector=is_vector, type_name=type_name)


class _Elements:
    """A vector in another order."""

    def __init__(self, source: StoredTensor, order: npt.NDArray[np.int64]) -> None:
        self.type, self.n_rows, self.n_cols = source.type, 1, source.n_cols
        self._source, self._order = source, order

    def read(self, first_row: int, n_rows: int) -> Bytes:
        """As Matrix.read."""
        data = self._source.read(first_row, n_rows)
        return data.reshape(self.n_cols, -1)[self._order].reshape(n_rows, -1)

"""The reference engine's own parts, put into the contents of a file: predictors and activation counts."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer_py._core import InvalidArgument
from powerinfer_py.convert import reference_parts
from powerinfer_py.convert.contents import THRESHOLD_KEY, Contents
from powerinfer_py.convert.layout import typed
from powerinfer_py.convert.matrix import Held, Matrix, Reordered
from powerinfer_py.files import Value

_LAYER_INPUT = ("falcon",)
_SIXTEEN_BIT = ("F16", "BF16")


def add_predictors(contents: Contents, folder: Path) -> None:
    """`model_{i}.pt` of every layer, in place of predictors that the contents have.

    Raises:
        InvalidArgument, FormatError, UnsupportedError: as `reference_parts.read_predictors`, or the model has no ReLU.
    """
    if not contents.activation.is_sparse:
        raise InvalidArgument(
            f"{folder}: predictors say which neurons are zero; {contents.where} has activation "
            f"{contents.activation.name}, whose neurons never are"
        )
    found = reference_parts.read_predictors(folder, contents.n_layers, contents.d_model, contents.d_ff)
    drop_predictors(contents)
    for layer, (fc1, fc2) in enumerate(found.layers):
        ids = None if contents.ids is None else contents.ids[layer].astype(np.int64)
        rows: Matrix = Held(fc2)
        for name, matrix in (("fc1", Held(fc1)), ("fc2", rows if ids is None else Reordered(rows, ids))):
            type_name = contents.type_name
            if type_name == "auto":
                type_name = matrix.type if matrix.type in _SIXTEEN_BIT else "F16"
            full_name = f"blk.{layer}.{name}.weight"
            contents.tensors.append(typed(full_name, matrix, is_vector=False, type_name=type_name))
    threshold = found.threshold
    if threshold is None:
        threshold = 0.0
        contents.notes.append(f"{folder}: no config.json with sparse_threshold; the threshold is 0")
    point = "layer_input" if contents.architecture in _LAYER_INPUT else "residual"
    contents.keys |= {
        THRESHOLD_KEY: Value("f32", threshold),
        "powerinfer.predictor.kind": Value("string", "mlp"),
        "powerinfer.predictor.input": Value("string", point),
    }
    contents.identity += f"\npredictors:{found.identity}"


def drop_predictors(contents: Contents) -> None:
    """Takes the predictors out."""
    contents.tensors = [tensor for tensor in contents.tensors if not is_predictor(tensor.name)]
    for key in [key for key in contents.keys if key.startswith("powerinfer.predictor.") or key == THRESHOLD_KEY]:
        del contents.keys[key]


def is_predictor(name: str) -> bool:
    """Whether a tensor is part of a predictor."""
    return name.endswith((".fc1.weight", ".fc2.weight", ".fc2.bias", ".ffn_gate_sign.weight", ".ffn_up_sign.weight"))


def add_activation(contents: Contents, folder: Path) -> None:
    """`activation_{i}.pt` of every layer, in place of counts that the contents have; errors as of `reference_parts`."""
    counts, tokens = reference_parts.read_activation_folder(folder, contents.n_layers, contents.d_ff)
    if contents.ids is not None:
        counts = np.take_along_axis(counts, contents.ids.astype(np.int64), axis=1)
        contents.notes.append(
            f"{contents.where}: its neurons stand in the order of older counts; `powerinfer reorder` sorts them again"
        )
    contents.counts, contents.tokens = counts.astype(np.int32), tokens
    contents.identity += f"\nactivation:{digest(contents.counts)}"


def digest(array: npt.NDArray[np.int32]) -> str:
    """Names numbers."""
    return blake2b(array.tobytes(), digest_size=16).hexdigest()

"""Files that the reference engine reads: what it knows, and nothing else.

It feeds predictors the residual un-normalised, knows one threshold, two types, and refuses tensors it does not expect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from powerinfer_py import _core
from powerinfer_py._core import UnsupportedError
from powerinfer_py.convert.contents import THRESHOLD_KEY, Contents
from powerinfer_py.convert.layout import OutTensor
from powerinfer_py.convert.matrix import Bytes, Matrix, values_of
from powerinfer_py.files import Value

_TYPES = ("F16", "Q4_0")
_BIASES = {
    "opt": r"(blk\.\d+\.(attn_(norm|q|k|v|output)|ffn_(norm|up|down|down_t))|output_norm)\.bias",
    "falcon": r"blk\.\d+\.(attn_norm|attn_norm_2)\.bias|output_norm\.bias",
}
_POSITIONS = "position_embd.weight"  # of opt, where the context length counts its rows
_SVD_ARCHITECTURES = ("llama", "bamboo")  # theirs is an RMS norm, whose scale can be folded in


def make_compatible(contents: Contents) -> None:
    """Brings the contents into the form of the reference's own converter.

    Raises:
        UnsupportedError: something that the reference cannot read or would compute in another way; says what.
    """
    _check_model(contents)
    _check_types(contents)
    _check_predictors(contents)
    _write_out_output(contents)
    contents.keys.setdefault("general.name", Value("string", Path(contents.where).resolve().name))
    if contents.counts is not None:
        contents.notes.append("written for the reference engine: counts and original numbers lie beside the file")


def _refused(contents: Contents, reason: str) -> UnsupportedError:
    return UnsupportedError(f"{contents.where}: the reference engine cannot read this model: {reason}")


def _check_model(contents: Contents) -> None:
    expected = "drelu" if contents.architecture == "bamboo" else "relu"
    if contents.activation.name != expected:
        raise _refused(
            contents, f"it computes {expected} for {contents.architecture}, the model has {contents.activation.name}"
        )
    known = _BIASES.get(contents.architecture, "(?!)")
    for tensor in contents.tensors:
        if (
            tensor.name.endswith(".bias")
            and not tensor.name.endswith(".fc2.bias")
            and not re.fullmatch(known, tensor.name)
        ):
            raise _refused(contents, f"it does not know the tensor {tensor.name!r}")
    scaling = contents.keys.get(f"{contents.architecture}.rope.scaling.type")
    if "rope_freqs.weight" in contents.names or (scaling is not None and scaling.value != "none"):
        raise _refused(contents, "it does not know RoPE scaling")
    n_heads = contents.keys[f"{contents.architecture}.attention.head_count"].value
    for key in ("key_length", "value_length"):
        width = contents.keys.get(f"{contents.architecture}.attention.{key}")
        if width is not None and width.value * n_heads != contents.d_model:
            raise _refused(contents, f"heads of {width.value} values; it divides {contents.d_model} by {n_heads} heads")


def _check_types(contents: Contents) -> None:
    if contents.type_name not in _TYPES and contents.type_name != "auto":
        raise _refused(contents, f"it reads F16 and Q4_0 files, not {contents.type_name}; give --outtype f16 or q4_0")
    matrices = [tensor for tensor in contents.tensors if not tensor.is_vector]
    wanted = matrices[0].type if contents.type_name == "auto" else contents.type_name
    for index, tensor in enumerate(contents.tensors):
        if tensor.name == _POSITIONS:
            contents.tensors[index] = _again(tensor, tensor.matrix, wanted)
            contents.keys["opt.context_length"] = Value("u32", tensor.matrix.n_rows)
    for tensor in (each for each in contents.tensors if not each.is_vector):
        if tensor.type != wanted or wanted not in _TYPES:
            raise _refused(contents, f"all matrices must be F16, or all Q4_0; {tensor.name!r} would be {tensor.type}")


def _check_predictors(contents: Contents) -> None:
    kinds = contents.keys.get("powerinfer.predictor.kind")
    names = contents.names
    for layer in range(contents.n_layers):
        if f"blk.{layer}.fc1.weight" not in names or f"blk.{layer}.fc2.weight" not in names:
            raise _refused(contents, f"layer {layer} has no predictor; give --predictors DIR, or train them")
        if f"blk.{layer}.fc2.bias" in names:
            raise _refused(contents, f"the predictor of layer {layer} has a bias")
    kind = _one_of(contents, _each(kinds.value if kinds else "mlp"), "kinds of predictors")
    per_layer = contents.keys.get("powerinfer.predictor.threshold")
    common = contents.keys.get(THRESHOLD_KEY)
    thresholds = _each(per_layer.value if per_layer else common.value if common else 0.0)
    threshold = float(_one_of(contents, thresholds, "thresholds of predictors"))
    point = contents.keys.get("powerinfer.predictor.input")
    default = "layer_input" if contents.architecture == "falcon" else "residual"
    if kind == "svd":
        _fold_svd(contents, threshold, point.value if point else "ffn_input")
    elif kind != "mlp":
        raise _refused(contents, f"predictors of kind {kind}")
    elif point is not None and point.value != default:
        raise _refused(contents, f"predictors that read {point.value}; it feeds them {default}")
    for key in [key for key in contents.keys if key.startswith("powerinfer.predictor.")]:
        del contents.keys[key]
    contents.keys[THRESHOLD_KEY] = Value("f32", threshold)


def _each(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, np.ndarray)) else [value]


def _one_of(contents: Contents, values: Iterable[Any], what: str) -> Any:
    """The value that all layers share."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) != 1:
        raise _refused(contents, f"its layers have different {what}: {', '.join(map(str, distinct[:4]))}")
    return distinct[0]


def _fold_svd(contents: Contents, threshold: float, point: str) -> None:
    """B A x as [B, -B] relu([A; -A] diag(norm) r): r is x before the norm, whose positive factor keeps the sign."""
    if contents.architecture not in _SVD_ARCHITECTURES:
        raise _refused(contents, f"predictors of kind svd cannot be folded through the norm of {contents.architecture}")
    if threshold != 0:
        raise _refused(contents, f"predictors of kind svd with threshold {threshold:g}; only 0 keeps its meaning")
    if point != "ffn_input":
        raise _refused(contents, f"predictors of kind svd that read {point}")
    by_name = {tensor.name: tensor for tensor in contents.tensors}
    for layer in range(contents.n_layers):
        norm = by_name[f"blk.{layer}.ffn_norm.weight"].matrix
        fc1, fc2 = by_name[f"blk.{layer}.fc1.weight"], by_name[f"blk.{layer}.fc2.weight"]
        scale = values_of(norm, 0, 1)[0]
        by_name[fc1.name] = _again(fc1, _MirroredRows(fc1.matrix, scale), fc1.type)
        by_name[fc2.name] = _again(fc2, _MirroredColumns(fc2.matrix), fc2.type)
    contents.tensors = list(by_name.values())


def _again(tensor: OutTensor, matrix: Matrix, type_name: str) -> OutTensor:
    fits = matrix.n_cols % _core.block_length(type_name) == 0
    return replace(tensor, matrix=matrix, type=type_name if fits else "F16", wanted=type_name, source_type=matrix.type)


@dataclass(frozen=True)
class _MirroredRows:
    """The rows times a vector, then the same negated; F32."""

    matrix: Matrix
    scale: npt.NDArray[np.float32]
    type = "F32"

    @property
    def n_cols(self) -> int:
        """As Matrix.n_cols."""
        return self.matrix.n_cols

    @property
    def n_rows(self) -> int:
        """As Matrix.n_rows."""
        return 2 * self.matrix.n_rows

    def read(self, first_row: int, n_rows: int) -> Bytes:
        """As Matrix.read."""
        whole = values_of(self.matrix, 0, self.matrix.n_rows) * self.scale
        rows = np.concatenate([whole, -whole])[first_row : first_row + n_rows]
        return np.ascontiguousarray(rows).view(np.uint8).reshape(n_rows, -1)


@dataclass(frozen=True)
class _MirroredColumns:
    """The columns, then the same negated; F32."""

    matrix: Matrix
    type = "F32"

    @property
    def n_cols(self) -> int:
        """As Matrix.n_cols."""
        return 2 * self.matrix.n_cols

    @property
    def n_rows(self) -> int:
        """As Matrix.n_rows."""
        return self.matrix.n_rows

    def read(self, first_row: int, n_rows: int) -> Bytes:
        """As Matrix.read."""
        rows = values_of(self.matrix, first_row, n_rows)
        return np.concatenate([rows, -rows], axis=1).view(np.uint8).reshape(n_rows, -1)


def _write_out_output(contents: Contents) -> None:
    """The reference has no tied output but opt's."""
    if contents.architecture == "opt":
        if "output.weight" in contents.names:
            raise _refused(contents, "an opt with an output matrix of its own; it uses the token embedding")
    elif "output.weight" not in contents.names:
        contents.tensors = list(_with_output(contents.tensors))


def _with_output(tensors: list[OutTensor]) -> Iterator[OutTensor]:
    for tensor in tensors:
        yield tensor
        if tensor.name == "token_embd.weight":
            yield replace(tensor, name="output.weight")

"""A GGUF file, plain or PowerInfer's, as the contents of another file."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from powerinfer_py._core import FormatError, TensorInfo, UnsupportedError
from powerinfer_py.convert.activation import RELU_FAMILY, Activation, activation_by_name
from powerinfer_py.convert.contents import Contents
from powerinfer_py.convert.layout import OutTensor, typed
from powerinfer_py.convert.matrix import Bytes
from powerinfer_py.files import GgufInput
from powerinfer_py.files.fingerprint import FINGERPRINT_KEY
from powerinfer_py.sparsity.activation import (
    COUNT_TENSOR,
    ID_TENSOR,
    ORDER_KEY,
    TOKENS_KEY,
    ffn_sizes,
    load_counts,
    read_ids,
    side_file_of,
)

_ASSUMED_PLAIN = {"llama": "silu", "falcon": "gelu", "opt": "relu", "bamboo": "drelu"}
_ASSUMED_POWERINFER = {"llama": "relu", "falcon": "relu", "opt": "relu", "bamboo": "drelu"}
_REPLACED_KEYS = (
    "general.alignment",
    "general.file_type",
    "general.quantization_version",
    FINGERPRINT_KEY,
    TOKENS_KEY,
)
_PARAMETERIZED = ("fatrelu",)


@dataclass(frozen=True)
class _FileMatrix:
    """A tensor of the file as a Matrix."""

    file: GgufInput
    tensor: TensorInfo

    @property
    def type(self) -> str:
        """As Matrix.type."""
        return self.tensor.type

    @property
    def n_cols(self) -> int:
        """As Matrix.n_cols."""
        return int(self.tensor.shape[0])

    @property
    def n_rows(self) -> int:
        """As Matrix.n_rows."""
        return int(np.prod(self.tensor.shape[1:], dtype=np.int64))

    def read(self, first_row: int, n_rows: int) -> Bytes:
        """As Matrix.read."""
        return self.file.read(self.tensor.name, first_row, n_rows)


def read_gguf(file: GgufInput, outtype: str, hidden_activation: str | None) -> Contents:
    """Everything that goes into the new file, in the layout that the source has.

    Args:
        file: opened.
        outtype: GGUF type of the matrices, or "auto": each keeps its own.
        hidden_activation: the true activation, where the file is known to be wrong or silent: "relu", "fatrelu:0.01".

    Raises:
        FormatError: the file is no model. UnsupportedError: an architecture or activation that is not known.
    """
    architecture = file.architecture
    if architecture not in _ASSUMED_PLAIN:
        raise UnsupportedError(
            f"{file.path}: architecture {architecture!r} is not supported; supported: {', '.join(_ASSUMED_PLAIN)}"
        )
    if "powerinfer.hot_neurons" in file.metadata:
        raise UnsupportedError(
            f"{file.path}: hot and cold neurons are stored in two types; convert the model that it was made from"
        )
    n_layers, d_ff = ffn_sizes(file)
    d_model = file.get(f"{architecture}.embedding_length")
    if not isinstance(d_model, int) or d_model <= 0:
        raise FormatError(
            f"{file.path}: key '{architecture}.embedding_length': expected a positive number, got {d_model!r}"
        )
    notes: list[str] = []
    activation = _activation(file, hidden_activation, notes)
    keys = {
        key: value
        for key, value in file.metadata.items()
        if key not in _REPLACED_KEYS and not key.startswith(f"{architecture}.hidden_activation")
    }
    contents = Contents(
        where=str(file.path),
        identity=file.identity,
        architecture=architecture,
        activation=activation,
        n_layers=n_layers,
        d_model=d_model,
        d_ff=d_ff,
        type_name=outtype,
        keys=keys | activation.keys(architecture),
        tensors=[_out(file, tensor, outtype) for tensor in file.tensors.values() if not _is_record(tensor.name)],
        notes=notes,
    )
    _add_records(contents, file)
    return contents


def _is_record(name: str) -> bool:
    return name.endswith((f".{COUNT_TENSOR}", f".{ID_TENSOR}"))


def _add_records(contents: Contents, file: GgufInput) -> None:
    """Counts and original numbers, from the file or from its side file."""
    ids = read_ids(file)
    if ids is not None:
        contents.ids = ids.astype(np.int32)
    if any(name.endswith(f".{COUNT_TENSOR}") for name in file.tensors) or side_file_of(file.path).exists():
        counts = load_counts(file)
        contents.counts, contents.tokens = counts.counts.astype(np.int32), counts.tokens
    if ids is None:
        contents.keys.pop(ORDER_KEY, None)


def _out(file: GgufInput, tensor: TensorInfo, outtype: str) -> OutTensor:
    if len(tensor.shape) > 2:
        raise UnsupportedError(
            f"{file.path}: tensor {tensor.name!r} has {len(tensor.shape)} dimensions; supported: 1 and 2"
        )
    matrix, is_vector = _FileMatrix(file, tensor), len(tensor.shape) == 1
    if outtype == "auto":
        return OutTensor(tensor.name, matrix, is_vector, tensor.type, source_type=tensor.type)
    return typed(tensor.name, matrix, is_vector=is_vector, type_name=outtype)


def _activation(file: GgufInput, override: str | None, notes: list[str]) -> Activation:
    architecture = file.architecture
    if override is not None:
        return parse_activation(override)
    key = f"{architecture}.hidden_activation"
    stored = file.get(key)
    if stored is not None:
        if stored in RELU_FAMILY or stored in ("silu", "gelu", "gelu_tanh"):
            return Activation(stored, file.get(f"{key}_param"))
        raise UnsupportedError(f"{file.path}: key {key!r}: activation {stored!r} is unknown")
    if file.is_powerinfer:
        return Activation(_ASSUMED_POWERINFER[architecture])
    assumed = Activation(_ASSUMED_PLAIN[architecture])
    notes.append(
        f"{file.path}: does not say its activation; {assumed.name} is assumed, as other engines do for {architecture}. "
        "`powerinfer inspect --probe` measures it, --hidden-activation overrides it"
    )
    return assumed


def parse_activation(text: str) -> Activation:
    """ "relu", or "fatrelu:0.01".

    Raises:
        UnsupportedError: unknown, or without the number that it needs.
    """
    name, _, number = text.partition(":")
    if name in _PARAMETERIZED:
        try:
            cut = float(number)
        except ValueError:
            cut = math.nan
        if not 0 <= cut < math.inf:
            raise UnsupportedError(f"--hidden-activation {text}: expected {name} with its cut, e.g. {name}:0.01")
        return Activation(name, cut)
    if name == "drelu" and not number:
        return Activation(name)
    return activation_by_name(text, "--hidden-activation")

"""The contents of a file to be written, whatever they were read from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from powerinfer_py.convert.activation import Activation
from powerinfer_py.convert.layout import OutTensor
from powerinfer_py.files import Value

THRESHOLD_KEY = "powerinfer.sparse_threshold"


@dataclass
class Contents:
    """Keys and tensors, and what is to be known about them."""

    where: str
    """The source, for messages."""
    identity: str
    """Names the source's bytes."""
    architecture: str
    activation: Activation
    n_layers: int
    d_model: int
    d_ff: int
    type_name: str
    """Of the matrices; "auto": as each is in the source."""
    keys: dict[str, Value]
    tensors: list[OutTensor]
    notes: list[str] = field(default_factory=list)
    counts: npt.NDArray[np.int32] | None = None
    """How often each neuron was non-zero [n_layers, d_ff], in the file's order."""
    tokens: int = 0
    """Tokens of the counts; 0: unknown."""
    ids: npt.NDArray[np.int32] | None = None
    """The original number of each neuron [n_layers, d_ff]; None: the order is the original one."""

    @property
    def names(self) -> set[str]:
        """Of the tensors."""
        return {tensor.name for tensor in self.tensors}

    @property
    def transposed(self) -> bool:
        """Whether the down matrices lie as one row per neuron."""
        return any(".ffn_down_t." in name for name in self.names)

    @property
    def has_predictors(self) -> bool:
        """Whether any layer has one."""
        return any(name.endswith((".fc1.weight", ".ffn_gate_sign.weight")) for name in self.names)

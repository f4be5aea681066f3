"""Activation functions by the names that configurations give them. Files say which one is theirs."""

from __future__ import annotations

from dataclasses import dataclass

from powerinfer_py._core import UnsupportedError
from powerinfer_py.files import Value

RELU_FAMILY = ("relu", "relu2", "drelu", "fatrelu")
"""Those whose neurons are exactly zero for most tokens."""

_NAMES = {
    "relu": "relu",
    "relu2": "relu2",
    "relu_squared": "relu2",
    "squared_relu": "relu2",
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
}


@dataclass(frozen=True)
class Activation:
    """An activation function."""

    name: str
    """As in `{arch}.hidden_activation`."""
    param: float | None = None
    """The cut of fatrelu."""

    @property
    def is_sparse(self) -> bool:
        """Whether it has true zeros."""
        return self.name in RELU_FAMILY

    def keys(self, architecture: str) -> dict[str, Value]:
        """What a file says about it."""
        keys = {f"{architecture}.hidden_activation": Value("string", self.name)}
        if self.param is not None:
            keys[f"{architecture}.hidden_activation_param"] = Value("f32", self.param)
        return keys


def activation_by_name(name: str, where: str) -> Activation:
    """What a configuration means by a name.

    Raises:
        UnsupportedError: unknown; the message lists the known ones.
    """
    known = _NAMES.get(name)
    if known is None:
        raise UnsupportedError(f"{where}: activation {name!r} is unknown; known: {', '.join(sorted(_NAMES))}")
    return Activation(known)

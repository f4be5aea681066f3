"""What a predictor has to know about one layer's FFN: its weights, its shape and what its rows cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from powerinfer_py._core import UnsupportedError
from powerinfer_py.files import GgufInput
from powerinfer_py.model import Model

F32 = npt.NDArray[np.float32]

_ROWS_AT_ONCE = 1024
_SPARSE = ("relu", "relu2", "drelu", "fatrelu")


@dataclass(frozen=True)
class Activation:
    """When a neuron fires: its first projection is above `cut` and, with `both`, the up projection above zero."""

    cut: float
    both: bool


def activation_of(model: Model) -> Activation:
    """The model's firing rule.

    Raises:
        UnsupportedError: its activation has no zeros to predict.
    """
    name, _, parameter = model.activation.partition(":")
    if name not in _SPARSE:
        raise UnsupportedError(
            f"{model.path}: the activation {name} has no zeros that a predictor could foretell; "
            f"expected one of {', '.join(_SPARSE)}"
        )
    return Activation(cut=float(parameter or 0), both=name == "drelu")


class FfnLayer:
    """One layer's FFN in a file. "first" is the matrix that decides: the gate, or without one the up matrix."""

    def __init__(self, source: GgufInput, activation: Activation, layer: int) -> None:
        self._source = source
        self._prefix = f"blk.{layer}."
        self.layer = layer
        self.activation = activation
        self.gated = bool(self._parts("ffn_gate"))
        self.transposed_down = bool(self._parts("ffn_down_t"))
        shapes = [source.tensor(name).shape for name in self._parts(self._first_name)]
        self.d_model = int(shapes[0][0])
        self.d_ff = sum(int(shape[1]) for shape in shapes)

    @property
    def _first_name(self) -> str:
        return "ffn_gate" if self.gated else "ffn_up"

    def _parts(self, name: str) -> list[str]:
        """The tensors that hold a matrix: hot neurons, then cold ones of another type."""
        names = (f"{self._prefix}{name}{part}.weight" for part in ("", "_cold"))
        return [each for each in names if each in self._source.tensors]

    def _matrix(self, name: str) -> F32:
        return np.concatenate([self._source.read_f32(part) for part in self._parts(name)])

    def _bias(self, name: str) -> F32:
        tensor = f"{self._prefix}{name}.bias"
        if tensor not in self._source.tensors:
            return np.zeros(self.d_ff, np.float32)
        return self._source.read_f32(tensor).ravel()

    def _n_bytes(self, name: str) -> int:
        return sum(self._source.tensor(part).n_bytes for part in self._parts(name))

    # Weights, in the file's neuron order.

    def first(self) -> F32:
        """[d_ff, d_model]."""
        return self._matrix(self._first_name)

    def first_bias(self) -> F32:
        """[d_ff], with the activation's cut taken off: a neuron's first projection is positive where it fires."""
        return self._bias(self._first_name) - np.float32(self.activation.cut)

    def up(self) -> F32:
        """[d_ff, d_model]."""
        return self._matrix("ffn_up")

    def up_bias(self) -> F32:
        """[d_ff]."""
        return self._bias("ffn_up")

    def down_norms(self) -> F32:
        """[d_ff]: the length of each neuron's output weights."""
        if self.transposed_down:
            return np.concatenate([self._norms(name, axis=1) for name in self._parts("ffn_down_t")])
        return self._norms(self._prefix + "ffn_down.weight", axis=0)

    def _norms(self, name: str, *, axis: int) -> F32:
        parts = [np.square(rows).sum(axis=axis) for rows in self._rows(name)]
        return np.asarray(np.sqrt(np.concatenate(parts) if axis == 1 else np.sum(parts, axis=0)), dtype=np.float32)

    def _rows(self, name: str) -> Iterator[F32]:
        total = int(self._source.tensor(name).shape[1])
        for begin in range(0, total, _ROWS_AT_ONCE):
            yield self._source.read_f32(name, begin, min(_ROWS_AT_ONCE, total - begin))

    # Bytes that one token's pass touches; see the engine's sparse FFN.

    @cached_property
    def first_row_bytes(self) -> float:
        """Of a neuron whose first projection is computed (the mean, where hot and cold types differ)."""
        return self._n_bytes(self._first_name) / self.d_ff

    @cached_property
    def up_row_bytes(self) -> float:
        """Of a neuron whose gate is open; 0 without a gate."""
        return self._n_bytes("ffn_up") / self.d_ff if self.gated else 0.0

    @cached_property
    def down_row_bytes(self) -> float:
        """Of a neuron that fires; 0 in the plain layout, whose columns are not skipped one by one."""
        return self._n_bytes("ffn_down_t") / self.d_ff if self.transposed_down else 0.0

    @cached_property
    def fixed_bytes(self) -> float:
        """Touched whatever fires: the plain layout's down matrix."""
        return 0.0 if self.transposed_down else float(self._n_bytes("ffn_down"))

    @property
    def dense_bytes(self) -> int:
        """Of all FFN weights."""
        down = "ffn_down_t" if self.transposed_down else "ffn_down"
        return sum(self._n_bytes(name) for name in ("ffn_gate", "ffn_up", down))

    def touched_bytes(
        self, n_first: npt.ArrayLike, n_open: npt.ArrayLike, n_firing: npt.ArrayLike
    ) -> npt.NDArray[np.float64]:
        """Bytes of weights for mean numbers of neurons: computed first, opened gates among them, firing."""
        return np.asarray(
            self.fixed_bytes
            + np.multiply(n_first, self.first_row_bytes)
            + np.multiply(n_open, self.up_row_bytes)
            + np.multiply(n_firing, self.down_row_bytes)
        )


class Margins:
    """How far neurons are from not firing: positive where they fire; of two conditions the one nearer to failing.

    Called with the FFN's inputs [n, d_model], gives [n, d_ff].
    """

    def __init__(self, ffn: FfnLayer) -> None:
        self._first, self._first_bias = ffn.first(), ffn.first_bias()
        self._both = ffn.activation.both
        if self._both:
            self._up, self._up_bias = ffn.up(), ffn.up_bias()
        self._spreads: tuple[F32, F32] | None = None

    def __call__(self, x: F32) -> F32:
        """The margins; where there are two conditions, in units of each one's spread."""
        first: F32 = np.asarray(x @ self._first.T + self._first_bias)
        if not self._both:
            return first
        up = x @ self._up.T + self._up_bias
        if self._spreads is None:  # those of the first rows are good enough to compare the two
            self._spreads = (first.std(axis=0) + 1e-12, up.std(axis=0) + 1e-12)
        return np.asarray(np.minimum(first / self._spreads[0], up / self._spreads[1]))

"""Predictors as the engine computes them: scores of neurons, and the tensors that hold them in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import gguf
import numpy as np
import numpy.typing as npt

from powerinfer_py import _core
from powerinfer_py.sparsity.predictor.layer import F32, FfnLayer

_INT8_BLOCK = 32


@dataclass(frozen=True)
class EncodedTensor:
    """A tensor as it stands in a file."""

    type: str
    shape: tuple[int, ...]
    """GGUF order."""
    data: npt.NDArray[np.uint8]
    """[rows, row_bytes]"""

    def values(self) -> F32:
        """What it stands for, [rows, cols]; of matrices."""
        n_cols, n_rows = self.shape
        return _core.dequantize(self.type, self.data, n_rows * n_cols).reshape(n_rows, n_cols)


@dataclass(frozen=True)
class Recipe:
    """How a predictor was made."""

    kind: str
    """"svd" in closed form, "svd+" trained on from there, "mlp" or "sign"."""
    rank: int
    """0 for sign."""
    type: str
    """Block type of its matrices; "" for sign."""

    def __str__(self) -> str:
        """ "svd 64 Q4_0"."""
        return f"{self.kind} {self.rank} {self.type}" if self.rank else self.kind


class Candidate(Protocol):
    """A predictor that a layer may get. A neuron is predicted active where its score reaches a threshold."""

    recipe: Recipe

    @property
    def n_bytes(self) -> int:
        """Bytes touched for every token."""

    def scorer(self) -> Callable[[F32], F32]:
        """Makes scores [n, d_ff] of inputs [n, d_model], rounded as in the engine."""

    def in_file(self, threshold: float) -> tuple[dict[str, EncodedTensor], float]:
        """Tensors by their names without "blk.{i}.", and the threshold that means `threshold` for the engine."""

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays that `restore` makes it of again."""


def block_length(type: str) -> int:
    """Values of one block."""
    return int(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]][0])


def encode(type: str, values: npt.NDArray[np.floating]) -> EncodedTensor:
    """Rows [n_rows, n_cols] in a block type."""
    rows = _core.quantize(type, np.ascontiguousarray(values, dtype=np.float32))
    return EncodedTensor(type, (values.shape[1], values.shape[0]), rows)


def round_to_int8(x: F32) -> F32:
    """What rows of block types meet: inputs rounded to int8 in blocks of 32."""
    blocks = x.reshape(len(x), -1, _INT8_BLOCK)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    return np.asarray(np.rint(blocks * inverse) * (largest / np.float32(127)), dtype=np.float32).reshape(x.shape)


class FactoredPredictor:
    """score = fc2 . p + bias with p = fc1 . z, for "mlp" through a ReLU."""

    def __init__(self, recipe: Recipe, fc1: EncodedTensor, fc2: EncodedTensor, bias: npt.NDArray[np.floating]) -> None:
        self.recipe = recipe
        self._fc1, self._fc2 = fc1, fc2
        self._bias = np.ascontiguousarray(bias, dtype=np.float32)

    @property
    def n_bytes(self) -> int:
        """Bytes of both matrices and the bias."""
        return self._fc1.data.nbytes + self._fc2.data.nbytes + self._bias.nbytes

    def scorer(self) -> Callable[[F32], F32]:
        """fc2 . (relu of) fc1 . z + bias."""
        down, up = self._fc1.values(), self._fc2.values()
        rounds = block_length(self._fc1.type) > 1

        def scores(z: F32) -> F32:
            hidden = (round_to_int8(z) if rounds else z) @ down.T
            if self.recipe.kind == "mlp":
                np.maximum(hidden, 0, out=hidden)
            return np.asarray((round_to_int8(hidden) if rounds else hidden) @ up.T + self._bias)

        return scores

    def in_file(self, threshold: float) -> tuple[dict[str, EncodedTensor], float]:
        """fc1, fc2 and the bias; the threshold is the file's."""
        bias = EncodedTensor("F32", self._bias.shape, self._bias.view(np.uint8).reshape(1, -1))
        return {"fc1.weight": self._fc1, "fc2.weight": self._fc2, "fc2.bias": bias}, threshold

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Encoded matrices and the bias."""
        return {"fc1": self._fc1.data, "fc2": self._fc2.data, "bias": self._bias}


def signs_of(values: F32) -> F32:
    """-1 where negative, else 1."""
    return np.where(values < 0, np.float32(-1), np.float32(1))


class SignPredictor:
    """How many signs of a neuron's first weights agree with its input's, calibrated per neuron.

    The margin is guessed as slope * score + centre with an error of sigma; in a file, slope and sigma fold into the
    bias for one chosen threshold, and the file's threshold is 0.
    """

    def __init__(self, ffn: FfnLayer, slope: F32, centre: F32, sigma: F32) -> None:
        self.recipe = Recipe("sign", 0, "")
        self._ffn = ffn
        self._slope, self._centre, self._sigma = slope, centre, sigma

    @property
    def n_bytes(self) -> int:
        """Bytes of the signs and the bias."""
        return self._ffn.d_ff * 4 * (-(-self._ffn.d_model // 32) + 1)

    def scorer(self) -> Callable[[F32], F32]:
        """Margins over their uncertainty."""
        signs = signs_of(self._ffn.first())
        return lambda z: np.asarray((self._slope * (signs_of(z) @ signs.T) + self._centre) / self._sigma)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The calibration; the signs are the weights'."""
        return {"slope": self._slope, "centre": self._centre, "sigma": self._sigma}

    def in_file(self, threshold: float) -> tuple[dict[str, EncodedTensor], float]:
        """Sign bits, and the bias that puts every neuron's threshold at zero."""
        d_ff, d_model = self._ffn.d_ff, self._ffn.d_model
        bits = np.zeros((d_ff, -(-d_model // 32) * 32), dtype=np.uint8)
        bits[:, :d_model] = self._ffn.first() < 0
        words = np.packbits(bits, axis=1, bitorder="little")
        # No score is beyond d_model: a larger bias only says "always" or "never".
        bias = np.clip((self._centre - threshold * self._sigma) / self._slope, -2 * d_model, 2 * d_model)
        bias = np.ascontiguousarray(bias, dtype=np.float32)
        return {
            "ffn_gate_sign.weight": EncodedTensor("I32", (bits.shape[1] // 32, d_ff), words),
            "fc2.bias": EncodedTensor("F32", bias.shape, bias.view(np.uint8).reshape(1, -1)),
        }, 0.0


def restore(recipe: Recipe, state: Mapping[str, npt.NDArray[Any]], ffn: FfnLayer) -> Candidate:
    """A candidate of an earlier run."""
    if recipe.kind == "sign":
        return SignPredictor(ffn, state["slope"], state["centre"], state["sigma"])
    fc1 = EncodedTensor(recipe.type, (ffn.d_model, recipe.rank), state["fc1"])
    fc2 = EncodedTensor(recipe.type, (recipe.rank, ffn.d_ff), state["fc2"])
    return FactoredPredictor(recipe, fc1, fc2, state["bias"])

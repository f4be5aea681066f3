"""Rotary positions: what a configuration says about them, in the terms of the file.

Every scaling that is a fixed factor per frequency becomes `rope_freqs.weight` (or the linear scaling's keys), so that
the engine needs to know none of them by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer_py._core import FormatError, UnsupportedError
from powerinfer_py.convert.config import Config
from powerinfer_py.files import Value

_KNOWN = ("default", "linear", "llama3", "yarn", "dynamic")


@dataclass(frozen=True)
class Rope:
    """Rotary positions of a model."""

    keys: dict[str, Value]
    factors: npt.NDArray[np.float32] | None = None
    """Divisors of the frequencies [rope_dim / 2]."""
    attention_scale: float = 1.0
    """Factor of all attention logits, to be folded into q."""
    notes: tuple[str, ...] = ()


def read_rope(config: Config, architecture: str, rope_dim: int, n_ctx: int) -> Rope:
    """Base and scaling, from `rope_theta` and `rope_scaling`, which counts first, or from the newer `rope_parameters`.

    Args:
        config: of the checkpoint.
        architecture: of the file.
        rope_dim: values of a head that are rotated.
        n_ctx: positions that the checkpoint was trained for, where its configuration does not say.

    Raises:
        UnsupportedError: a scaling that depends on the length of the text, or is unknown.
    """
    scaling = config.object("rope_scaling") or config.object("rope_parameters")
    usual = config.number("rope_theta", default=10000.0, above=1)
    base = usual if scaling is None else scaling.number("rope_theta", default=usual, above=1)
    keys = {f"{architecture}.rope.freq_base": Value("f32", base)}
    if rope_dim % 2:
        raise FormatError(f"{config.where}: heads of {rope_dim} values; rotary positions need an even number")
    kind = "default" if scaling is None else scaling.string("rope_type", "type", default="default")
    if scaling is None:
        return Rope(keys)
    if scaling.number("partial_rotary_factor", default=1.0) != 1.0:
        raise UnsupportedError(f"{scaling.where}: partial_rotary_factor: only 1.0 is supported")
    if kind == "default":
        return Rope(keys)
    n_trained = config.integer("max_position_embeddings", default=n_ctx)
    if kind == "dynamic":
        note = f"dynamic RoPE scaling only acts beyond {n_trained} positions, which the file has no more of; left out"
        return Rope(keys, notes=(note,))
    if kind not in _KNOWN:
        raise UnsupportedError(f"{scaling.where}: RoPE scaling {kind!r} is not supported; known: {', '.join(_KNOWN)}")
    factor = scaling.number("factor")
    if factor < 1:
        raise FormatError(f"{scaling.where}: 'factor': expected a number of at least 1, got {factor}")
    if kind == "linear":
        keys[f"{architecture}.rope.scaling.type"] = Value("string", "linear")
        keys[f"{architecture}.rope.scaling.factor"] = Value("f32", factor)
        return Rope(keys)
    inner = scaling.integer("original_max_position_embeddings", default=n_trained)
    n_original = config.integer("original_max_position_embeddings", default=inner)
    if kind == "llama3":
        return Rope(keys, _llama3(scaling, base, rope_dim, factor, n_original))
    factors, scale = _yarn(scaling, base, rope_dim, factor, n_original)
    return Rope(keys, factors, scale)


def _frequencies(base: float, rope_dim: int) -> npt.NDArray[np.float64]:
    return np.asarray(base ** (-np.arange(0, rope_dim, 2, dtype=np.float64) / rope_dim))


def _llama3(scaling: Config, base: float, rope_dim: int, factor: float, n_original: int) -> npt.NDArray[np.float32]:
    """Long waves are stretched by the factor, short ones kept, those between blended (Llama 3.1)."""
    wavelength = 2 * np.pi / _frequencies(base, rope_dim)
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if not 0 < low < high:
        raise FormatError(f"{scaling.where}: expected 0 < low_freq_factor < high_freq_factor, got {low} and {high}")
    smooth = np.clip((n_original / wavelength - low) / (high - low), 0.0, 1.0)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def _yarn(
    scaling: Config, base: float, rope_dim: int, factor: float, n_original: int
) -> tuple[npt.NDArray[np.float32], float]:
    """Factors, and the temperature of attention (YaRN, section 3; arXiv 2309.00071)."""

    def dimension_of(rotations: float) -> float:
        return rope_dim * math.log(n_original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    first = dimension_of(scaling.number("beta_fast", default=32.0, above=0))
    last = dimension_of(scaling.number("beta_slow", default=1.0, above=0))
    if scaling.flag("truncate", default=True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope_dim - 1)
    last += 0.001 if first == last else 0.0
    stretched = np.clip((np.arange(rope_dim // 2) - first) / (last - first), 0.0, 1.0)
    factors = 1 / (stretched / factor + (1 - stretched))
    return factors.astype(np.float32), _yarn_temperature(scaling, factor) ** 2


def _yarn_temperature(scaling: Config, factor: float) -> float:
    if scaling.get("attention_factor") is not None:
        return scaling.number("attention_factor")

    def temperature(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return temperature(scaling.number("mscale")) / temperature(scaling.number("mscale_all_dim"))
    return temperature(1.0)

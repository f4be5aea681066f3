"""Choosing the next token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from powerinfer_py import _core
from powerinfer_py._arguments import count, seed_number


class Sampled(NamedTuple):
    """A chosen token and the log of its probability under the unmodified logits."""

    token: int
    logprob: float


class Sampler:
    """A chain of steps, in llama.cpp's order, with its own random state; used by one thread at a time.

    logit bias, penalties, top-k, top-p, min-p, temperature, then a draw. The same seed gives the same tokens from the
    same logits on every platform.

    Args:
        seed: 32 bits; None or -1: a random one (see the property `seed`).
        temperature: <= 0 takes the best token (greedy).
        top_k: keeps the k best tokens; <= 0 is off.
        top_p: keeps the smallest set of best tokens that has this probability; 1 is off.
        min_p: keeps tokens at least this many times as likely as the best; 0 is off.
        repeat_penalty: divides positive logits of recent tokens, multiplies negative ones; 1 is off.
        frequency_penalty: taken off a recent token's logit per occurrence.
        presence_penalty: taken off a recent token's logit once.
        repeat_last_n: how many tokens count as recent; 0 is off, -1 all.
        logit_bias: token id -> number added to its logit; -inf forbids the token.

    Raises:
        InvalidArgument: an option is NaN or out of range.
    """

    def __init__(
        self,
        *,
        seed: SupportsIndex | None = None,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_last_n: int = 64,
        logit_bias: Mapping[int, float] | None = None,
    ) -> None:
        biases = [(count("logit_bias token", token, minimum=0), float(b)) for token, b in (logit_bias or {}).items()]
        self._handle = _core.Sampler(
            seed=seed_number(seed),
            temperature=temperature,
            top_k=count("top_k", top_k, minimum=-(2**31)),
            top_p=top_p,
            min_p=min_p,
            repeat_penalty=repeat_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            repeat_last_n=count("repeat_last_n", repeat_last_n, minimum=-1),
            logit_bias=biases,
        )

    @property
    def seed(self) -> int:
        """The seed in use, also when a random one was asked for."""
        return self._handle.seed

    def apply(self, logits: npt.ArrayLike, mask: npt.ArrayLike | None = None) -> Sampled:
        """Picks a token from logits [n_vocab]; `mask` [n_vocab] forbids the tokens where it is false.

        Does not `accept` the token. Raises InvalidArgument when nothing is left to choose from.
        """
        values = np.ascontiguousarray(logits, dtype=np.float32)
        allowed = None if mask is None else np.ascontiguousarray(mask, dtype=np.bool_)
        return Sampled(*self._handle.apply(values, allowed))

    def accept(self, token: SupportsIndex) -> None:
        """Tells that `token` has become part of the text; the penalties look at it."""
        self._handle.accept(count("token", token, minimum=0))

    def clone(self) -> Sampler:
        """A sampler that continues independently from the same state."""
        copy = object.__new__(Sampler)
        copy._handle = self._handle.clone()
        return copy

"""What a tokenizer becomes in a file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from powerinfer_py.files import Value


class TokenType(IntEnum):
    """Kinds of tokens, numbered as in `tokenizer.ggml.token_type` (and in SentencePiece's own files)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass
class Vocabulary:
    """Tokens by id; those that no list names are unused ones."""

    texts: dict[int, str] = field(default_factory=dict)
    types: dict[int, TokenType] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)

    def add(self, token: int, text: str, kind: TokenType, score: float = 0.0) -> None:
        """A token, in place of what had its id."""
        self.texts[token], self.types[token], self.scores[token] = text, kind, score

    def id_of(self, text: str) -> int | None:
        """The id of a token; None: there is none."""
        return next((token for token, own in self.texts.items() if own == text), None)

    @property
    def n_tokens(self) -> int:
        """One more than the largest id."""
        return max(self.texts, default=-1) + 1

    def keys(self, n_vocab: int, *, with_scores: bool) -> dict[str, Value]:
        """tokens, token_type and scores of `n_vocab` tokens."""
        ids = range(n_vocab)
        keys = {
            "tokenizer.ggml.tokens": Value("[string]", [self.texts.get(token, f"[PAD{token}]") for token in ids]),
            "tokenizer.ggml.token_type": Value("[i32]", _i32(self.types.get(token, TokenType.UNUSED) for token in ids)),
        }
        if with_scores:
            scores = np.array([self.scores.get(token, 0.0) for token in ids], dtype=np.float32)
            keys["tokenizer.ggml.scores"] = Value("[f32]", scores)
        return keys


def _i32(values: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.fromiter((int(value) for value in values), dtype=np.int32)


@dataclass(frozen=True)
class TokenizerReport:
    """A tokenizer in the terms of the file."""

    metadata: dict[str, Value]
    """`tokenizer.*` keys."""
    n_vocab: int
    kind: str
    """Where it was read from, for people."""
    notes: list[str]
    """What the user should know."""

"""Text as windows of tokens, and how well a model predicts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer_py._core import InvalidArgument
from powerinfer_py.model import Model

_ROWS_AT_ONCE = 64


def read_utf8(path: Path) -> str:
    """A text file.

    Raises:
        InvalidArgument: not UTF-8. OSError: cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = f"{path}: not UTF-8 at byte {error.start}"
        raise InvalidArgument(f"{place}; convert it, e.g. with iconv -t utf-8") from None


def load_windows(
    model: Model, paths: Sequence[Path], *, n_ctx: int, max_windows: int | None = None
) -> npt.NDArray[np.int32]:
    """The texts' tokens, joined and cut into windows of `n_ctx`; a shorter rest is dropped.

    The first token of each window is replaced by BOS where the vocabulary adds one.

    Returns:
        int32 [n_windows, n_ctx], at least one window.

    Raises:
        InvalidArgument: too little text, or not UTF-8. UnsupportedError: the model has no tokenizer.
    """
    wanted = None if max_windows is None else max_windows * n_ctx
    tokens = np.zeros(0, dtype=np.int32)
    for path in paths:
        if wanted is not None and len(tokens) >= wanted:
            break
        tokens = np.concatenate([tokens, np.asarray(model.tokenize(read_utf8(path)), dtype=np.int32)])
    n_windows = len(tokens) // n_ctx
    if n_windows == 0:
        names = ", ".join(str(path) for path in paths) or "no text"
        raise InvalidArgument(
            f"{names}: {len(tokens)} tokens are too few for a window of {n_ctx}; give more text or a smaller context"
        )
    n_windows = n_windows if max_windows is None else min(n_windows, max_windows)
    windows = tokens[: n_windows * n_ctx].reshape(n_windows, n_ctx).copy()
    if model.tokenizer.add_bos:
        windows[:, 0] = model.tokenizer.bos
    return windows


def negative_log_likelihoods(logits: npt.NDArray[np.float32], tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """-log p of each token, float64 [n], from logits [n, n_vocab]."""
    return np.concatenate(list(_in_slices(logits, tokens)))


def _in_slices(logits: npt.NDArray[np.float32], tokens: npt.NDArray[np.int32]) -> Iterator[npt.NDArray[np.float64]]:
    # Double precision of a whole window times a large vocabulary would be gigabytes.
    for begin in range(0, len(tokens), _ROWS_AT_ONCE):
        rows = logits[begin : begin + _ROWS_AT_ONCE].astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        chosen = rows[np.arange(len(rows)), tokens[begin : begin + _ROWS_AT_ONCE]]
        yield np.log(np.exp(rows).sum(axis=1)) - chosen

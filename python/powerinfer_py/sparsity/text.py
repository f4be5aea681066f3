"""Text as windows of tokens, and how well a model predicts it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from powerinfer_py._arguments import AnyPath, file_path, file_paths
from powerinfer_py._core import InvalidArgument
from powerinfer_py.model import Model

_ROWS_AT_ONCE = 64
_USUAL_WINDOW = 512


def window_size(model: Model, n_ctx: int | None, *, minimum: int = 1) -> int:
    """Tokens of a window: `n_ctx`; 0: as many as the model was trained with; None: 512, or that if it is less.

    Raises:
        InvalidArgument: it is negative, or less than `minimum`.
    """
    if n_ctx is None:
        n_ctx = min(_USUAL_WINDOW, model.n_ctx_train)
    if n_ctx < 0:
        raise InvalidArgument(f"-c {n_ctx}: expected the number of tokens of a window, or 0 for the trained length")
    size = n_ctx or model.n_ctx_train
    if size < minimum:
        raise InvalidArgument(f"-c {size}: windows of {size} tokens are too small; give at least {minimum}")
    return size


def read_utf8(path: AnyPath) -> str:
    """A text file.

    Raises:
        InvalidArgument: not UTF-8. OSError: cannot be read.
    """
    return decode_utf8(file_path(path).read_bytes(), str(path))


def decode_utf8(data: bytes, name: str) -> str:
    """Text without a byte order mark; `name` is where it comes from, for the InvalidArgument."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = f"{name}: not UTF-8 at byte {error.start}"
        raise InvalidArgument(f"{place}; convert it, e.g. with iconv -t utf-8") from None


def load_windows(
    model: Model, paths: AnyPath | Sequence[AnyPath], *, n_ctx: int, max_windows: int | None = None
) -> npt.NDArray[np.int32]:
    """The texts' tokens, joined and cut into windows of `n_ctx`; a shorter rest is dropped.

    The first token of each window is replaced by BOS where the vocabulary adds one.

    Returns:
        int32 [n_windows, n_ctx], at least one window.

    Raises:
        InvalidArgument: too little text, or not UTF-8. UnsupportedError: the model has no tokenizer.
    """
    paths = file_paths(paths)
    wanted = None if max_windows is None else max_windows * n_ctx
    tokens = np.zeros(0, dtype=np.int32)
    for path in paths:
        if wanted is not None and len(tokens) >= wanted:
            break
        tokens = np.concatenate([tokens, np.asarray(model.tokenize(read_utf8(path)), dtype=np.int32)])
    if len(tokens) < n_ctx:
        names = ", ".join(str(path) for path in paths) or "no text"
        raise InvalidArgument(
            f"{names}: {len(tokens)} tokens are too few for a window of {n_ctx}; give more text or a smaller context"
        )
    return cut_windows(model, tokens, n_ctx=n_ctx, max_windows=max_windows)


def cut_windows(
    model: Model, tokens: npt.NDArray[np.int32], *, n_ctx: int, max_windows: int | None = None
) -> npt.NDArray[np.int32]:
    """Tokens [n] as windows [n_windows, n_ctx]; see `load_windows`. Too few tokens give no window."""
    n_windows = len(tokens) // n_ctx
    n_windows = n_windows if max_windows is None else min(n_windows, max_windows)
    windows = tokens[: n_windows * n_ctx].reshape(n_windows, n_ctx).copy()
    if model.tokenizer.add_bos:
        windows[:, 0] = model.tokenizer.bos
    return windows


def log_probabilities(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Natural logarithms of the probabilities that logits [n, n_vocab] stand for, float64 [n, n_vocab]."""
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return rows


def negative_log_likelihoods(logits: npt.NDArray[np.float32], tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """-log p of each token, float64 [n], from logits [n, n_vocab]."""
    result = np.empty(len(tokens))
    # In slices: double precision of a whole window times a large vocabulary would be gigabytes.
    for begin in range(0, len(tokens), _ROWS_AT_ONCE):
        chosen = tokens[begin : begin + _ROWS_AT_ONCE]
        rows = log_probabilities(logits[begin : begin + _ROWS_AT_ONCE])
        result[begin : begin + len(chosen)] = -rows[np.arange(len(chosen)), chosen]
    return result

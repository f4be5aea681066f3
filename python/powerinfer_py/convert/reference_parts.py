"""What the reference engine publishes beside a checkpoint: a folder of predictors, a folder of activation counts.

Both are pickles from the internet, one per layer, numbered; only tensors are ever loaded from them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from powerinfer_py._core import FormatError, InvalidArgument
from powerinfer_py.convert.config import Config, read_json
from powerinfer_py.files import load_torch_state
from powerinfer_py.files.torch_state import BFLOAT16

_FREQUENCY_TOKENS = 1_000_000
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class ReferencePredictors:
    """Predictors in the published form: relu(fc1 z), then fc2."""

    threshold: float | None
    """`sparse_threshold` of the folder's config.json."""
    layers: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]
    """fc1 [rank, d_model] and fc2 [d_ff, rank] of each layer, mapped."""
    identity: str
    """Names the files as they are now."""


def read_predictors(folder: Path, n_layers: int, d_model: int, d_ff: int) -> ReferencePredictors:
    """`model_{i}.pt` of every layer.

    Raises:
        InvalidArgument: gaps in the numbers, or another model's. FormatError: a file is damaged or holds code.
        UnsupportedError: torch is not installed.
    """
    files = _numbered(folder, "model", n_layers)
    config = Config(read_json(folder / "config.json") if (folder / "config.json").exists() else {}, f"{folder}")
    threshold = None if config.get("sparse_threshold") is None else config.number("sparse_threshold")
    return ReferencePredictors(threshold, [_predictor(path, d_model, d_ff) for path in files], _identity(files))


def _predictor(path: Path, d_model: int, d_ff: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    state = load_torch_state(path)
    if set(state) != {"fc1.weight", "fc2.weight"}:
        raise FormatError(f"{path}: expected fc1.weight and fc2.weight, got {', '.join(sorted(state)) or 'nothing'}")
    fc1, fc2 = state["fc1.weight"], state["fc2.weight"]
    for name, matrix in (("fc1.weight", fc1), ("fc2.weight", fc2)):
        if matrix.ndim != 2 or not (matrix.dtype == BFLOAT16 or np.issubdtype(matrix.dtype, np.floating)):
            raise FormatError(f"{path}: {name}: expected a matrix of floats, got {matrix.dtype} {list(matrix.shape)}")
    if fc1.shape[1] != d_model or fc2.shape[0] != d_ff or fc1.shape[0] != fc2.shape[1]:
        raise InvalidArgument(
            f"{path}: expected fc1 [rank, {d_model}] and fc2 [{d_ff}, rank], got {list(fc1.shape)} and "
            f"{list(fc2.shape)}; are these predictors of another model?"
        )
    return fc1, fc2


def read_activation_folder(folder: Path, n_layers: int, d_ff: int) -> tuple[npt.NDArray[np.int64], int]:
    """`activation_{i}.pt` of every layer: counts [n_layers, d_ff] in the checkpoint's neuron order, and tokens.

    Frequencies become counts per million tokens (otherwise the number of tokens is unknown: 0); counts that are too
    large for a file's 32 bits are scaled down together.

    Raises:
        InvalidArgument: gaps in the numbers, or another model's. FormatError: a file is damaged, holds code, or
            anything but numbers >= 0. UnsupportedError: torch is not installed.
    """
    rows = [_activation(path, d_ff) for path in _numbered(folder, "activation", n_layers)]
    values = np.stack(rows)
    if not np.all(np.isfinite(values)) or np.any(values < 0):
        raise FormatError(f"{folder}: expected counts or frequencies >= 0, got negative or infinite ones")
    tokens = 0
    if values.max() <= 1 and np.any(values != np.rint(values)):
        values, tokens = values * _FREQUENCY_TOKENS, _FREQUENCY_TOKENS
    values = values / max(1.0, np.ceil(values.max() / _INT32_MAX))
    return np.rint(values).astype(np.int64), tokens


def _activation(path: Path, d_ff: int) -> npt.NDArray[np.float64]:
    state = load_torch_state(path)
    values = next(iter(state.values())) if len(state) == 1 else None
    if values is None or values.ndim != 1:
        raise FormatError(f"{path}: expected one tensor of one dimension")
    if len(values) != d_ff:
        raise InvalidArgument(
            f"{path}: expected {d_ff} numbers, one per neuron, got {len(values)}; is this the folder of another model?"
        )
    if values.dtype == BFLOAT16:
        values = (values["bfloat16"].astype(np.uint32) << 16).view(np.float32)
    return np.asarray(values, dtype=np.float64)


def _numbered(folder: Path, stem: str, n_layers: int) -> list[Path]:
    """`{stem}_{i}.pt` in the order of the numbers; other files do not matter."""
    if not folder.is_dir():
        raise InvalidArgument(f"{folder}: no such folder; expected one with {stem}_0.pt to {stem}_{n_layers - 1}.pt")
    found = {}
    for path in sorted(folder.iterdir()):
        match = re.fullmatch(rf"{stem}_(\d+)\.pt", path.name)
        if match:
            found[int(match[1])] = path
    missing = [number for number in range(n_layers) if number not in found]
    if missing:
        raise InvalidArgument(
            f"{folder}: {stem}_{missing[0]}.pt is missing; expected {stem}_0.pt to {stem}_{n_layers - 1}.pt, "
            f"got {len(found)} files"
        )
    if len(found) > n_layers:
        raise InvalidArgument(
            f"{folder}: has {len(found)} layers, the model {n_layers}; is this the folder of another model?"
        )
    return [found[number] for number in range(n_layers)]


def _identity(files: list[Path]) -> str:
    status = [(path, path.stat()) for path in files]
    return "\n".join(f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}" for path, stat in status)

"""State dictionaries that torch saved. They are pickles from the internet: only tensors are ever loaded."""

from __future__ import annotations

import os
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import numpy.typing as npt

from powerinfer_py._core import FormatError, UnsupportedError

BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""numpy has none; the field holds the upper half of the float32."""


def load_torch_state(path: str | os.PathLike[str]) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a file: name -> array in the stored type (BFLOAT16 for bfloat16), mapped where possible.

    A file that holds a single tensor gives it under the name "".

    Raises:
        UnsupportedError: torch is not installed.
        FormatError: not such a file, or one that holds anything but tensors; nothing of it was run.
    """
    try:
        import torch  # noqa: PLC0415
    except ImportError:
        raise UnsupportedError(
            f"{path}: reading files of torch needs torch; pip install 'powerinfer_py[train]', "
            "or use the model's safetensors"
        ) from None
    try:
        state = _load(torch, Path(path))
    except UnpicklingError:
        raise FormatError(
            f"{path}: holds more than tensors, or is damaged; nothing of it was run. Get the checkpoint as safetensors"
        ) from None
    except (FileNotFoundError, PermissionError):
        raise
    except (RuntimeError, EOFError, ValueError, KeyError, AttributeError, TypeError, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise FormatError(f"{path}: not a file of torch tensors: {reason}") from None
    tensors = {"": state} if isinstance(state, torch.Tensor) else state
    if not isinstance(tensors, dict):
        raise FormatError(f"{path}: expected tensors by name, got {type(state).__name__}")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise FormatError(f"{path}: entry {name!r}: expected a tensor, got {type(tensor).__name__}")
        if tensor.is_sparse or tensor.is_quantized or tensor.is_complex():
            raise FormatError(f"{path}: tensor {name!r}: expected a plain dense tensor")
    try:
        return {name: _to_numpy(torch, tensor) for name, tensor in tensors.items()}
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise FormatError(f"{path}: a tensor of a type that cannot be read: {str(error).splitlines()[0]}") from None


def _load(torch: Any, path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, ValueError):
        # The form from before 2020 is no archive and cannot be mapped.
        return torch.load(path, map_location="cpu", weights_only=True)


def _to_numpy(torch: Any, tensor: Any) -> npt.NDArray[Any]:
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        halves: npt.NDArray[Any] = tensor.contiguous().view(torch.int16).numpy()
        return halves.view(BFLOAT16)
    array: npt.NDArray[Any] = np.asarray(tensor.numpy())
    return array

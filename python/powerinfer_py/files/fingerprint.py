"""The fingerprint that binds plans, profiles and side files to a model's weights."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Iterable, Iterator

import gguf

from powerinfer_py._core import TensorInfo

FINGERPRINT_KEY = "powerinfer.fingerprint"
_SIDE = re.compile(
    r"\.(fc1\.weight|fc2\.weight|fc2\.bias|ffn_(gate|up)_sign\.weight|ffn_activation_count|ffn_neuron_id)$"
)


def is_side_tensor(name: str) -> bool:
    """Whether a tensor says something about the neurons instead of being a weight: predictor, count or id."""
    return _SIDE.search(name) is not None


def fingerprint_of(tensors: Iterable[TensorInfo], chunks: Callable[[TensorInfo], Iterator[memoryview | bytes]]) -> str:
    """BLAKE2b-128, hex, over the weight tensors sorted by name: name, type and shape as little-endian u64, data.

    Predictors, counts and ids are left out, so that a file keeps its fingerprint when it gets them.

    Args:
        tensors: all tensors of a file.
        chunks: a tensor's bytes, in pieces.
    """
    digest = hashlib.blake2b(digest_size=16)
    for tensor in sorted(tensors, key=lambda each: each.name.encode()):
        if is_side_tensor(tensor.name):
            continue
        digest.update(tensor.name.encode())
        number = int(gguf.GGMLQuantizationType[tensor.type])
        digest.update(struct.pack(f"<{1 + len(tensor.shape)}Q", number, *tensor.shape))
        for chunk in chunks(tensor):
            digest.update(chunk)
    return digest.hexdigest()

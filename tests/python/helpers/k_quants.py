"""Straightforward quantizers for the K block types.

The `gguf` package dequantizes them but does not quantize. Nearest rounding on per-sub-block ranges is enough for
tests: what matters is that the bytes are valid blocks whose values follow the weights.
"""

from __future__ import annotations

import numpy as np

_BLOCK = 256


def _half_bytes(values: np.ndarray) -> np.ndarray:
    return values.astype("<f2").reshape(-1, 1).view(np.uint8)


def _safe(divisor: np.ndarray) -> np.ndarray:
    return np.where(divisor > 0, divisor, 1.0)


def _affine(blocks: np.ndarray, n_levels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Header bytes [n, 16] (d, dmin, packed scales) and codes [n, 8, 32] of blocks [n, 256]."""
    sub = blocks.reshape(-1, 8, 32)
    low = np.minimum(sub.min(axis=2), 0.0)  # [n, 8]
    step = (sub.max(axis=2) - low) / (n_levels - 1)
    d = (step.max(axis=1) / 63).astype(np.float16).astype(np.float32)
    dmin = ((-low).max(axis=1) / 63).astype(np.float16).astype(np.float32)
    scales = np.clip(np.rint(step / _safe(d)[:, None]), 0, 63).astype(np.uint8)
    mins = np.clip(np.rint(-low / _safe(dmin)[:, None]), 0, 63).astype(np.uint8)
    width = _safe(d[:, None] * scales)
    codes = np.rint((sub + (dmin[:, None] * mins)[:, :, None]) / width[:, :, None])
    packed = np.concatenate(
        [
            scales[:, :4] | (scales[:, 4:] >> 4) << 6,
            mins[:, :4] | (mins[:, 4:] >> 4) << 6,
            (scales[:, 4:] & 15) | (mins[:, 4:] & 15) << 4,
        ],
        axis=1,
    )
    header = np.concatenate([_half_bytes(d), _half_bytes(dmin), packed], axis=1)
    return header, np.clip(codes, 0, n_levels - 1).astype(np.uint8), scales


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """[n, 8, 32] codes to [n, 128] bytes: sub-blocks 2j in the low, 2j + 1 in the high nibbles."""
    return ((codes[:, 0::2] & 15) | (codes[:, 1::2] & 15) << 4).reshape(len(codes), 128)


def quantize_q4_k(values: np.ndarray) -> np.ndarray:
    """Q4_K bytes of float32 rows whose length is a multiple of 256."""
    header, codes, _ = _affine(values.reshape(-1, _BLOCK), 16)
    return np.concatenate([header, _nibbles(codes)], axis=1)


def quantize_q5_k(values: np.ndarray) -> np.ndarray:
    """Q5_K bytes of float32 rows whose length is a multiple of 256."""
    header, codes, _ = _affine(values.reshape(-1, _BLOCK), 32)
    shifts = np.arange(8, dtype=np.uint8)[None, :, None]
    high = np.bitwise_or.reduce((codes >> 4) << shifts, axis=1)  # [n, 32]
    return np.concatenate([header, high, _nibbles(codes)], axis=1)


def quantize_q6_k(values: np.ndarray) -> np.ndarray:
    """Q6_K bytes of float32 rows whose length is a multiple of 256."""
    sub = values.reshape(-1, 16, 16)
    step = np.abs(sub).max(axis=2) / 31
    d = (step.max(axis=1) / 127).astype(np.float16).astype(np.float32)
    scales = np.clip(np.rint(step / _safe(d)[:, None]), 0, 127).astype(np.int8)
    codes = np.rint(sub / _safe(d[:, None] * scales)[:, :, None])
    codes = (np.clip(codes, -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)  # half, quarter, lane
    low = np.concatenate(
        [codes[:, :, 0] & 15 | (codes[:, :, 2] & 15) << 4, codes[:, :, 1] & 15 | (codes[:, :, 3] & 15) << 4], axis=2
    )  # [n, 2, 64]
    high = sum(((codes[:, :, i] >> 4) << (2 * i) for i in range(1, 4)), codes[:, :, 0] >> 4)  # [n, 2, 32]
    n = len(codes)
    return np.concatenate([low.reshape(n, 128), high.reshape(n, 64), scales.view(np.uint8), _half_bytes(d)], axis=1)

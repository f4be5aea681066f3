"""Measures of agreement between two sets of logits."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest


def spread_error(ours: np.ndarray, witness: np.ndarray) -> float:
    """Largest |difference| per position over the witness's spread (max - min) there; [n, n_vocab] both."""
    difference = np.abs(ours.astype(np.float64) - witness).max(axis=-1)
    return float((difference / (witness.max(axis=-1) - witness.min(axis=-1))).max())


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities in double precision."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def mean_kl(witness: np.ndarray, ours: np.ndarray) -> float:
    """Mean over positions of KL(witness || ours) in nats."""
    p, q = log_softmax(witness), log_softmax(ours)
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


def top1_agreement(witness: np.ndarray, ours: np.ndarray) -> float:
    """Share of positions with the same best token."""
    return float((witness.argmax(axis=-1) == ours.argmax(axis=-1)).mean())


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine over all values."""
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def shared_data(*parts: str) -> Path:
    """A path in the shared test data; skips the test where it is absent."""
    root = Path(os.environ.get("POWERINFER_SHARED", Path(__file__).parents[4] / "shared"))
    path = root.joinpath("data", *parts)
    if not path.exists():
        pytest.skip(f"shared test data is absent: {'/'.join(parts)} (set POWERINFER_SHARED)")
    return path

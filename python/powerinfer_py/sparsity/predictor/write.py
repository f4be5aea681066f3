"""A model file with other predictors: everything else is copied byte for byte."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from powerinfer_py.files import GgufInput, GgufOutput, OutputReport, Progress
from powerinfer_py.model import Model
from powerinfer_py.sparsity.activation import (
    COUNT_TENSOR,
    ID_TENSOR,
    TOKENS_KEY,
    ActivationCounts,
    counts_i32,
    side_file_of,
    write_side_file,
)
from powerinfer_py.sparsity.predictor.candidate import EncodedTensor
from powerinfer_py.sparsity.predictor.selection import Selection
from powerinfer_py.sparsity.predictor.workspace import StoredLayer

_PREDICTOR_TENSOR = re.compile(r"blk\.\d+\.(fc1\.weight|fc2\.weight|fc2\.bias|ffn_(gate|up)_sign\.weight)")


def write_model(
    path: Path,
    source: GgufInput,
    model: Model,
    layers: Sequence[StoredLayer],
    selection: Selection,
    point: str,
    counts: ActivationCounts | None,
    *,
    identity: str,
    force: bool,
    progress: Progress | None = None,
) -> OutputReport:
    """Writes `source` with the chosen predictors; resumes what an earlier run with the same identity began.

    Args:
        counts: those that lie beside `source`: they go into a file of magic PWRI, and beside one of magic GGUF.
    """
    tensors, thresholds = _encoded(layers, selection)
    kept = [tensor for name, tensor in source.tensors.items() if not _PREDICTOR_TENSOR.fullmatch(name)]
    transposed = any("ffn_down_t" in tensor.name for tensor in kept)
    powerinfer = transposed or bool(tensors)
    output = GgufOutput(path, powerinfer=powerinfer, force=force)
    output.copy_metadata(
        source, skip=lambda key: key.startswith("powerinfer.predictor.") or key == "powerinfer.sparse_threshold"
    )
    _set_keys(output, source, model, selection, thresholds, point if tensors else None)
    if counts is not None and powerinfer:
        found = _encoded_counts(counts)
        tensors |= found
        identity += blake2b(b"".join(each.data.tobytes() for each in found.values()), digest_size=16).hexdigest()
        if counts.tokens:
            output.set(TOKENS_KEY, counts.tokens, "u64")
    for tensor in kept:
        output.add_tensor(tensor.name, tensor.type, tensor.shape)
    for name, encoded in tensors.items():
        output.add_tensor(name, encoded.type, encoded.shape)

    def write_beside(fingerprint: str) -> None:
        if counts is not None and not powerinfer:
            write_side_file(side_file_of(path), counts, fingerprint)

    return output.write(
        lambda spec: tensors[spec.name].data if spec.name in tensors else iter(source.chunks(source.tensor(spec.name))),
        identity=identity,
        progress=progress,
        before_naming=write_beside,
    )


def _encoded_counts(counts: ActivationCounts) -> dict[str, EncodedTensor]:
    tensors = {}
    for name, values in ((COUNT_TENSOR, counts_i32(counts.counts)), (ID_TENSOR, counts.ids)):
        for layer, row in enumerate(() if values is None else values.astype(np.int32)):
            tensors[f"blk.{layer}.{name}"] = EncodedTensor("I32", row.shape, row.view(np.uint8).reshape(1, -1))
    return tensors


def _encoded(layers: Sequence[StoredLayer], selection: Selection) -> tuple[dict[str, EncodedTensor], list[float]]:
    tensors: dict[str, EncodedTensor] = {}
    thresholds = []
    for choice, layer in zip(selection.layers, layers, strict=True):
        threshold = 0.0
        if choice.candidate is not None:
            found, threshold = layer.tried(choice.candidate).candidate.in_file(choice.threshold)
            tensors |= {f"blk.{choice.layer}.{name}": tensor for name, tensor in found.items()}
        thresholds.append(threshold)
    return tensors, thresholds


def _set_keys(
    output: GgufOutput,
    source: GgufInput,
    model: Model,
    selection: Selection,
    thresholds: Sequence[float],
    point: str | None,
) -> None:
    activation = f"{source.architecture}.hidden_activation"
    if source.get(activation) is None:
        # The magic may change, and with it what a file without the key means.
        name, _, parameter = model.activation.partition(":")
        output.set(activation, name)
        if parameter:
            output.set(f"{activation}_param", float(parameter))
    output.set("powerinfer.version", 1)
    if point is None:
        return
    output.set("powerinfer.predictor.kind", [choice.kind.rstrip("+") for choice in selection.layers])
    output.set("powerinfer.predictor.input", point)
    output.set("powerinfer.predictor.threshold", np.array(thresholds, dtype=np.float32))
    for key, values in (
        ("recall", [choice.recall for choice in selection.layers]),
        ("density", [choice.predicted_density for choice in selection.layers]),
    ):
        output.set(f"powerinfer.predictor.{key}", np.array(values, dtype=np.float32))

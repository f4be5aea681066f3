"""Sorts the neurons of every layer by recorded activation, hottest first; each row stays what it is, byte for byte.

`blk.{i}.ffn_neuron_id` keeps the original number of every row, so that side files of the original still apply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from powerinfer_py._arguments import AnyPath, file_path, file_paths, optional_count
from powerinfer_py._core import FormatError, TensorInfo, UnsupportedError
from powerinfer_py.files import GgufInput, GgufOutput, Progress, TensorSpec, refuse_input_as_output
from powerinfer_py.sparsity.activation import (
    COUNT_TENSOR,
    ID_TENSOR,
    ORDER_KEY,
    ORIGINAL_KEY,
    TOKENS_KEY,
    ActivationCounts,
    Counts,
    check_side_file,
    counts_i32,
    ffn_sizes,
    load_counts,
    side_file_of,
    write_side_file,
)
from powerinfer_py.sparsity.hot_sets import MOST, hot_order, n_neurons_for
from powerinfer_py.sparsity.within_hot import Grouping, group_hot_neurons

_ROWS = re.compile(r"(ffn_(gate|up|down_t|gate_sign|up_sign)|fc2)\.weight")
"""One row per neuron."""
_VALUES = re.compile(rf"(ffn_(gate|up)|fc2)\.bias|{COUNT_TENSOR}|{ID_TENSOR}")
"""One value per neuron."""
_COLUMNS = "ffn_down.weight"
"""One column per neuron."""
_OTHERS = re.compile(r"fc1\.weight|ffn_(down|down_t)\.bias|ffn_norm\.(weight|bias)|(attn_.*|rope_.*)")
"""Nothing per neuron."""
_COLUMN_TYPES = {"F32": "<u4", "F16": "<u2", "BF16": "<u2"}
_CHUNK_BYTES = 16 << 20


@dataclass(frozen=True)
class ReorderReport:
    """What was done to a file."""

    path: Path
    n_bytes: int
    n_moved: int
    """Neurons, of all layers, that lie elsewhere now."""
    n_hot: list[int]
    """[n_layers] neurons that make 80 % of the layer's activations."""
    grouping: Grouping | None
    """What grouping within the hot part brought."""


def reorder_model(
    source: AnyPath,
    target: AnyPath,
    *,
    force: bool = False,
    activation: AnyPath | None = None,
    cluster_texts: AnyPath | Sequence[AnyPath] = (),
    n_ctx: int | None = None,
    max_tokens: int | None = None,
    progress: Progress | None = None,
) -> ReorderReport:
    """Writes `source` with its neurons sorted by activation count; equals keep the order of their original numbers.

    Args:
        source: a model with counts: in it, or in its side file.
        activation: counts to sort by instead: an `activation/` folder of the reference, or a side file.
        cluster_texts: text to find neurons that fire together by; those among the hot ones (80 % of the activations)
            become neighbours, and groups of 64 stand hottest first.
        n_ctx, max_tokens: how that text is read.

    Raises:
        InvalidArgument: no counts, or the target exists or is an input. OSError: the disk is full.
        UnsupportedError: a quantized plain `ffn_down`, a file with a cold type, or with tensors whose neurons are not
            known.
    """
    progress = progress or Progress()
    source, target, cluster_texts = file_path(source), file_path(target), file_paths(cluster_texts)
    activation = None if activation is None else file_path(activation)
    optional_count("max_tokens", max_tokens)
    inputs = [source, *cluster_texts, *([] if activation is None else [activation])]
    refuse_input_as_output(target, inputs)
    with GgufInput(source) as file:
        _check_layout(file)
        counts = load_counts(file, activation)
        output = GgufOutput(target, powerinfer=file.is_powerinfer, force=force)
        if not file.is_powerinfer:
            refuse_input_as_output(side_file_of(target), inputs)
            check_side_file(output, force=force)
        output.check_free_disk(file.path.stat().st_size)
        rows = np.arange(counts.counts.shape[1])
        ids = np.broadcast_to(rows, counts.counts.shape) if counts.ids is None else counts.ids
        orders = np.stack([hot_order(layer, own) for layer, own in zip(counts.counts, ids, strict=True)])
        n_hot = [n_neurons_for(layer, MOST) for layer in counts.counts]
        grouping = None
        if cluster_texts:
            orders, grouping = group_hot_neurons(
                source, orders, n_hot, cluster_texts, n_ctx=n_ctx, max_tokens=max_tokens, progress=progress
            )
        sorted_counts = ActivationCounts(
            counts.tokens,
            np.take_along_axis(counts.counts, orders, axis=1),
            np.take_along_axis(ids, orders, axis=1),
            counts.source,
        )
        report = _Rewrite(file, output, orders, sorted_counts).write(progress)
    return ReorderReport(target, report.n_bytes, int(np.count_nonzero(orders != rows)), n_hot, grouping)


def _part(name: str) -> tuple[int, str] | None:
    """(layer, rest) of `blk.{layer}.{rest}`."""
    found = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
    return (int(found[1]), found[2]) if found else None


def _check_layout(file: GgufInput) -> None:
    """Every tensor's neurons are where they are expected, and can be moved."""
    if "powerinfer.hot_neurons" in file.metadata:
        raise UnsupportedError(
            f"{file.path}: hot and cold neurons are stored in two types, so that they cannot change places; "
            "reorder the model that this one was quantized from, then quantize again"
        )
    n_layers, d_ff = ffn_sizes(file)
    for tensor in file.tensors.values():
        layer, rest = _part(tensor.name) or (0, "")
        is_column = rest == _COLUMNS
        if is_column and tensor.type not in _COLUMN_TYPES:
            raise UnsupportedError(
                f"{file.path}: tensor {tensor.name!r}: columns of {tensor.type} cannot be taken out of their blocks; "
                f"convert the model to transposed rows first: `powerinfer convert {file.path} -o OUT "
                "--allow-requantize`, or convert its source again"
            )
        if is_column or _ROWS.fullmatch(rest) or _VALUES.fullmatch(rest):
            n_neurons = tensor.shape[0 if is_column else -1]
            if layer >= n_layers or n_neurons != d_ff:
                raise FormatError(
                    f"{file.path}: tensor {tensor.name!r}: expected {d_ff} neurons in one of {n_layers} layers, "
                    f"got {n_neurons}"
                )
        elif rest and not _OTHERS.fullmatch(rest):
            raise UnsupportedError(
                f"{file.path}: tensor {tensor.name!r}: it is not known where its neurons are; "
                "this file cannot be reordered"
            )


class _Rewrite:
    """The output's header and bytes."""

    def __init__(self, file: GgufInput, output: GgufOutput, orders: Counts, counts: ActivationCounts) -> None:
        assert counts.ids is not None
        self._file, self._output, self._orders, self._counts = file, output, orders, counts
        self._new: dict[str, npt.NDArray[np.int32]] = {}
        if file.is_powerinfer:  # other files cannot hold them; theirs lie beside the file
            for layer, (count, ids) in enumerate(
                zip(counts_i32(counts.counts), counts.ids.astype(np.int32), strict=True)
            ):
                self._new |= {f"blk.{layer}.{COUNT_TENSOR}": count, f"blk.{layer}.{ID_TENSOR}": ids}

    def write(self, progress: Progress) -> Any:
        file, output = self._file, self._output
        output.copy_metadata(file)
        original = file.get(ORIGINAL_KEY) or (file.fingerprint if file.get(ORDER_KEY) != "activation" else None)
        output.set("powerinfer.version", 1)
        output.set(ORDER_KEY, "activation")
        if original is not None:
            output.set(ORIGINAL_KEY, original)
        output.discard(TOKENS_KEY)
        if self._new and self._counts.tokens:
            output.set(TOKENS_KEY, self._counts.tokens, "u64")
        for tensor in file.tensors.values():
            if tensor.name not in self._new:
                output.add_tensor(tensor.name, tensor.type, tensor.shape)
        for name, values in self._new.items():
            output.add_tensor(name, "I32", values.shape)
        digest = blake2b(self._orders.tobytes() + self._counts.counts.tobytes(), digest_size=16).hexdigest()
        return output.write(
            self._bytes,
            identity=f"reorder:{file.identity}:{digest}",
            progress=progress,
            before_naming=None if self._new else self._write_beside,
        )

    def _write_beside(self, fingerprint: str) -> None:
        """Before the model has its name: without its ids it would be of no use."""
        write_side_file(side_file_of(self._output.path), self._counts, fingerprint)

    def _bytes(self, spec: TensorSpec) -> Any:
        if spec.name in self._new:
            return self._new[spec.name]
        tensor = self._file.tensor(spec.name)
        part = _part(spec.name)
        if part is not None and _ROWS.fullmatch(part[1]):
            return self._rows(tensor, self._orders[part[0]])
        if part is not None and _VALUES.fullmatch(part[1]):
            values = self._file.read(spec.name).reshape(len(self._orders[part[0]]), -1)
            return values[self._orders[part[0]]]
        if part is not None and part[1] == _COLUMNS:
            return self._columns(tensor, self._orders[part[0]])
        return self._file.chunks(tensor)

    def _rows(self, tensor: TensorInfo, order: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.uint8]]:
        rows = self._file.read(tensor.name)
        step = max(1, _CHUNK_BYTES // rows.shape[1])
        for begin in range(0, len(order), step):
            yield rows[order[begin : begin + step]]

    def _columns(self, tensor: TensorInfo, order: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
        n_rows = int(tensor.shape[1])
        step = max(1, _CHUNK_BYTES // (tensor.n_bytes // n_rows))
        for begin in range(0, n_rows, step):
            rows = self._file.read(tensor.name, begin, min(step, n_rows - begin))
            yield rows.view(_COLUMN_TYPES[tensor.type])[:, order]

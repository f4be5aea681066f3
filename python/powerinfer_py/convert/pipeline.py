"""From a checkpoint or a file to one PowerInfer GGUF: layout, types, side data, and the writing of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from powerinfer_py import _core
from powerinfer_py._arguments import file_path, optional_count
from powerinfer_py._core import Error, InvalidArgument, UnsupportedError
from powerinfer_py.convert.card import FILE_TYPES, type_keys
from powerinfer_py.convert.checkpoint import Checkpoint
from powerinfer_py.convert.compatible import make_compatible
from powerinfer_py.convert.contents import Contents
from powerinfer_py.convert.from_checkpoint import read_checkpoint
from powerinfer_py.convert.from_gguf import read_gguf
from powerinfer_py.convert.layout import LAYOUTS, Layout, OutTensor, fallbacks, lay_out
from powerinfer_py.convert.matrix import Bytes, Held, converted, values_of
from powerinfer_py.convert.parts import add_activation, add_predictors, digest, drop_predictors
from powerinfer_py.files import GgufInput, GgufOutput, Progress, TensorSpec, refuse_input_as_output
from powerinfer_py.model import Model
from powerinfer_py.sparsity.activation import (
    COUNT_TENSOR,
    ID_TENSOR,
    TOKENS_KEY,
    ActivationCounts,
    check_side_file,
    side_file_of,
    write_side_file,
)

OUTTYPES = ("auto", *(name.lower() for name in FILE_TYPES))


@dataclass(frozen=True)
class ConvertReport:
    """What was written."""

    path: Path
    architecture: str
    activation: str
    """"relu", or "fatrelu:0.01"."""
    layout: str
    """"transposed" or "plain"."""
    n_bytes: int
    n_tensors: int
    n_resumed: int
    """Tensors that an earlier, interrupted run had finished."""
    seconds: float
    fingerprint: str
    notes: list[str]
    """What was done in another way than one might expect."""
    side_file: Path | None
    """Where counts and original numbers lie that the file itself cannot hold."""
    requantization_error: float | None
    """Relative root mean square error that this run added where it made blocks of blocks; None: nowhere."""


def convert(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    outtype: str = "auto",
    layout: Layout = "auto",
    force_plain: bool = False,
    compatible: bool = False,
    predictors: str | os.PathLike[str] | None = None,
    activation: str | os.PathLike[str] | None = None,
    hidden_activation: str | None = None,
    allow_requantize: bool = False,
    n_threads: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> ConvertReport:
    """Converts a Hugging Face folder, or a GGUF file, to a GGUF file.

    Models with an activation of the ReLU family get the down matrix by neurons (`ffn_down_t`) and magic PWRI; others
    the plain layout and magic GGUF, which every engine reads. Memory stays bounded by a few layers; an interrupted run
    goes on where it ended.

    Args:
        source: the folder, or a .gguf file. Never changed.
        output: the file to write; complete under this name, or not at all.
        outtype: type of the matrices: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q4_k, q5_k, q6_k, or auto: the 16-bit
            type of the checkpoint (else f16); of a file: as they are.
        layout: "transposed", "plain", or "auto".
        force_plain: "plain" even for the ReLU family, whose activation other engines do not know.
        compatible: a file that the reference engine reads; f16 or q4_0.
        predictors: folder of the reference's predictors, `model_{i}.pt`.
        activation: folder of the reference's counts, `activation_{i}.pt`.
        hidden_activation: of a file that is silent or wrong about it: "relu", "fatrelu:0.01".
        allow_requantize: makes blocks of a type of blocks of another, or of its columns.
        n_threads: default: one per usable core.
        force: replaces an output that exists.
        progress: told about bytes.

    Raises:
        InvalidArgument: options that contradict each other or the model; the output exists; parts of another model.
        FormatError: the source is damaged or contradicts itself; values that are not finite.
        UnsupportedError: a class, activation, tokenizer or option that is not known; a package is not installed.
        OSError: the disk is full.
    """
    source, output = file_path(source), file_path(output)
    type_name = _type_name(outtype)
    if layout not in LAYOUTS:
        raise InvalidArgument(f"layout {layout!r}: expected one of {', '.join(LAYOUTS)}")
    if compatible and layout == "plain":
        raise InvalidArgument("compatible: the reference engine reads the transposed layout only; leave layout out")
    refuse_input_as_output(
        output, [source, *(file_path(part) for part in (predictors, activation) if part is not None)]
    )
    threads = optional_count("n_threads", n_threads)
    with ExitStack() as stack:
        if source.is_dir():
            if hidden_activation is not None:
                raise InvalidArgument(
                    f"{source}: config.json and the class say the activation; hidden_activation is for GGUF files"
                )
            contents = read_checkpoint(stack.enter_context(Checkpoint(source)), type_name)
        else:
            Model(source, n_threads=1).close()  # a model that lacks a part is found before hours of work
            contents = read_gguf(stack.enter_context(GgufInput(source)), type_name, hidden_activation)
        transposed = compatible or _is_transposed(contents, layout, force_plain=force_plain)
        if predictors is not None:
            if not transposed:
                raise InvalidArgument("predictors go with the transposed layout only; leave out either of them")
            add_predictors(contents, Path(predictors))
        elif contents.has_predictors and not transposed:
            drop_predictors(contents)
            contents.notes.append("the plain layout has no place for predictors; they are left out")
        if activation is not None:
            add_activation(contents, Path(activation))
        if compatible:
            make_compatible(contents)
        contents.tensors = lay_out(contents.tensors, transposed=transposed, n_threads=threads)
        return _Writing(contents, output, transposed, compatible, threads, force).write(
            allow_requantize=allow_requantize, progress=progress or Progress()
        )


def _type_name(outtype: str) -> str:
    if outtype.lower() not in OUTTYPES:
        raise InvalidArgument(f"outtype {outtype!r}: expected one of {', '.join(OUTTYPES)}")
    return "auto" if outtype.lower() == "auto" else outtype.upper()


def _is_transposed(contents: Contents, layout: Layout, *, force_plain: bool) -> bool:
    activation = contents.activation
    if layout == "auto":
        return activation.is_sparse and not force_plain
    if layout == "transposed" and not activation.is_sparse:
        raise InvalidArgument(
            f"{contents.where}: activation {activation.name} leaves no neuron out, so that the transposed layout would "
            "only keep other engines from reading the file; use layout plain"
        )
    if layout == "plain" and activation.is_sparse and not force_plain:
        raise InvalidArgument(
            f"{contents.where}: has activation {activation.name}; other engines would read a plain file and compute it "
            "with another one, without a word. Use the default layout, or --force-plain (force_plain=True)"
        )
    return layout == "transposed"


class _Writing:
    """The output's header and bytes."""

    def __init__(
        self, contents: Contents, output: Path, transposed: bool, compatible: bool, n_threads: int, force: bool
    ) -> None:
        self._contents, self._transposed, self._n_threads = contents, transposed, n_threads
        self._output = GgufOutput(output, powerinfer=transposed, force=force)
        self._squared_error = self._squared_sum = 0.0
        self._beside = not transposed or compatible  # others refuse tensors that they do not know
        self._side_file = side_file_of(output)
        if self._beside and contents.ids is not None and contents.counts is None:
            raise UnsupportedError(
                f"{contents.where}: is reordered and has no counts, and a file of this form cannot hold the original "
                "numbers; run `powerinfer profile` on it first"
            )
        if self._beside and self._has_records:
            check_side_file(self._output, force=force)

    @property
    def _has_records(self) -> bool:
        return self._contents.counts is not None or self._contents.ids is not None

    def write(self, *, allow_requantize: bool, progress: Progress) -> ConvertReport:
        contents = self._contents
        requantized = [tensor for tensor in contents.tensors if tensor.is_requantized]
        if requantized and not allow_requantize:
            first = requantized[0]
            raise InvalidArgument(
                f"{contents.where}: tensor {first.name!r} and {len(requantized) - 1} others: {first.source_type} would "
                f"be quantized again to {first.type}, which adds an error; start from a 16-bit source, or "
                "--allow-requantize (allow_requantize=True)"
            )
        if not self._transposed and contents.activation.is_sparse:
            contents.notes.append(
                f"plain layout: engines that do not know the key {contents.architecture}.hidden_activation compute "
                f"this {contents.activation.name} model with another activation"
            )
        contents.notes += fallbacks(contents.tensors)
        if not self._beside:
            self._put_records_in()
        for note in contents.notes:
            progress.note(note)
        keys = contents.keys | type_keys(_main_type(contents))
        for key, value in keys.items():
            self._output.set(key, value)
        if contents.tokens and contents.counts is not None and not self._beside:
            self._output.set(TOKENS_KEY, contents.tokens, "u64")
        for tensor in contents.tensors:
            self._output.add_tensor(tensor.name, tensor.type, tensor.shape)
        tensors = {tensor.name: tensor for tensor in contents.tensors}
        has_side_file = self._beside and self._has_records
        report = self._output.write(
            lambda spec: self._rows(spec, tensors[spec.name]),
            identity=self._identity(),
            progress=progress,
            before_naming=self._write_side_file if has_side_file else None,
        )
        error = None
        if self._squared_sum:
            error = float(np.sqrt(self._squared_error / self._squared_sum))
        name = contents.activation.name
        if contents.activation.param is not None:
            name += f":{contents.activation.param:g}"
        return ConvertReport(
            path=report.path,
            architecture=contents.architecture,
            activation=name,
            layout="transposed" if self._transposed else "plain",
            n_bytes=report.n_bytes,
            n_tensors=report.n_tensors,
            n_resumed=report.n_resumed,
            seconds=report.seconds,
            fingerprint=report.fingerprint,
            notes=contents.notes,
            side_file=self._side_file if has_side_file else None,
            requantization_error=error,
        )

    def _identity(self) -> str:
        contents = self._contents
        records = [digest(each) for each in (contents.counts, contents.ids) if each is not None]
        return "\n".join(["convert", contents.identity, *records])

    def _put_records_in(self) -> None:
        contents = self._contents
        for name, records in ((COUNT_TENSOR, contents.counts), (ID_TENSOR, contents.ids)):
            if records is not None:
                contents.tensors += [
                    OutTensor(f"blk.{layer}.{name}", Held(row), is_vector=True, type="I32", source_type="I32")
                    for layer, row in enumerate(records)
                ]

    def _write_side_file(self, fingerprint: str) -> None:
        contents = self._contents
        assert contents.counts is not None
        ids = None if contents.ids is None else contents.ids.astype(np.int64)
        counts = ActivationCounts(contents.tokens, contents.counts.astype(np.int64), ids, contents.where)
        write_side_file(self._side_file, counts, fingerprint)

    def _rows(self, spec: TensorSpec, tensor: OutTensor) -> Iterator[Bytes]:
        first = 0
        try:
            for rows in converted(tensor.matrix, spec.type, self._n_threads):
                if tensor.is_requantized:
                    self._measure(tensor, first, rows)
                first += len(rows)
                yield rows
        except Error as error:
            raise type(error)(f"{self._contents.where}: tensor {tensor.name!r}: {error}") from None

    def _measure(self, tensor: OutTensor, first: int, rows: Bytes) -> None:
        n_cols = tensor.matrix.n_cols
        before = values_of(tensor.matrix, first, len(rows))
        after = _core.dequantize(tensor.type, rows, before.size).reshape(-1, n_cols)
        self._squared_error += float(np.square(after - before, dtype=np.float64).sum())
        self._squared_sum += float(np.square(before, dtype=np.float64).sum())


def _main_type(contents: Contents) -> str:
    """The type that most weights have."""
    if contents.type_name != "auto":
        return contents.type_name
    sizes: Counter[str] = Counter()
    for tensor in contents.tensors:
        if tensor.type in FILE_TYPES and not tensor.is_vector:
            sizes[tensor.type] += tensor.matrix.n_rows * tensor.matrix.n_cols
    return sizes.most_common(1)[0][0] if sizes else "F32"

"""Stores the matrices of a model in smaller types; what is no matrix, and what has its type already, stays as it is."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer_py import _core
from powerinfer_py._arguments import file_path, optional_count
from powerinfer_py._core import FormatError, InvalidArgument, TensorInfo, UnsupportedError
from powerinfer_py.convert.card import FILE_TYPES, type_keys
from powerinfer_py.convert.layout import OutTensor, fallbacks, typed
from powerinfer_py.files import GgufInput, GgufOutput, OutputReport, Progress, TensorSpec, refuse_input_as_output
from powerinfer_py.model import Model
from powerinfer_py.sparsity.activation import (
    COUNT_TENSOR,
    ORDER_KEY,
    ffn_sizes,
    load_counts,
    side_file_of,
    write_side_file,
)
from powerinfer_py.sparsity.imatrix import Imatrix, read_imatrix

TYPES = tuple(FILE_TYPES)
"""What matrices can be stored in."""

_OUTPUT = "output.weight"
_EMBEDDING = "token_embd.weight"
_PREDICTOR = re.compile(r"blk\.\d+\.fc[12]\.weight")
_NEURON_ROWS = re.compile(r"blk\.\d+\.ffn_(gate|up|down_t)\.weight")
_COLD = "_cold"
_WITHOUT_CHOICE = ("F32", "F16", "BF16", "Q8_0")
"""Types in which every value has one nearest code."""
_FLOATS = ("F32", "F16", "BF16")
_CHUNK_BYTES = 32 << 20


@dataclass(frozen=True)
class QuantizeReport:
    """What was done to a file."""

    path: Path
    n_bytes: int
    n_bytes_before: int
    n_tensors: dict[str, int]
    """Type -> tensors that have it now."""
    n_requantized: int
    """Tensors that went from one block type to another."""
    requantize_error: float | None
    """Root of sum (after - before)^2 / sum before^2 over these: what they lost beside what they had lost already."""
    notes: list[str]
    """Sentences about what was done in another way than asked."""
    n_weighted: int
    """Matrices quantized with importance."""
    n_resumed: int
    """Tensors that an earlier, interrupted run had finished."""


def quantize(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    type: str,
    *,
    imatrix: str | os.PathLike[str] | None = None,
    tensor_types: Sequence[tuple[str, str]] = (),
    output_tensor_type: str | None = None,
    predictor_type: str | None = None,
    cold_type: str | None = None,
    hot_share: float | None = None,
    allow_requantize: bool = False,
    n_threads: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> QuantizeReport:
    """Writes `source` with its matrices in another type.

    Vectors and norms are F32 and neuron numbers, counts and sign bits stay what they are. A matrix whose rows the
    blocks of the type do not divide becomes Q8_0, else F16. The same input gives the same bytes.

    Args:
        type: one of `TYPES`, in any case; as are all types here.
        imatrix: importance of columns, made by `collect_imatrix` or llama.cpp: their errors weigh more.
        tensor_types: (regular expression, type) for matrices whose name it is found in; the first that fits wins, and
            wins over everything else. Cold parts are called blk.0.ffn_up_cold.weight and the like.
        output_tensor_type: for the output matrix, and for the token embedding where that serves as one.
        predictor_type: for the predictors' matrices; None: `type`; those in blocks stay as they are.
        cold_type: for the neurons behind the first `hot_share` (0 to 1) of every layer; the model must be reordered,
            hottest first, and then cannot be reordered or quantized again.
        allow_requantize: matrices of one block type may get another, which loses more than quantizing the original.
        n_threads: of the conversion; None: as many as the engine would use.
        force: replace an output that exists.

    Raises:
        InvalidArgument: an unknown type, an expression that is none or fits no matrix, the output exists, matrices of
            block types without `allow_requantize`, an imatrix of another model, or a share or model that `cold_type`
            cannot go with.
        UnsupportedError: a file with a cold type.
        FormatError: a weight is not finite, or the imatrix is damaged.
        OSError: the disk is full; what is finished stays for the next run.
    """
    progress = progress or Progress()
    source, output = file_path(source), file_path(output)
    weights = [] if imatrix is None else [file_path(imatrix)]
    refuse_input_as_output(output, [source, *weights])
    choice = _Choice(
        _type_named(type),
        tuple((_expression(pattern), _type_named(name)) for pattern, name in tensor_types),
        output=_type_named(type if output_tensor_type is None else output_tensor_type),
        predictor=None if predictor_type is None else _type_named(predictor_type),
    )
    Model(source, n_threads=1).close()  # a model that lacks a part is found before hours of work
    with GgufInput(source) as file:
        if "powerinfer.hot_neurons" in file.metadata:
            raise UnsupportedError(
                f"{file.path}: hot and cold neurons are stored in two types already; quantize the model that this one "
                "was made from"
            )
        tensors = choice.of_tensors(file)
        hot_neurons = None
        if cold_type is not None or hot_share is not None:
            n_hot = _n_hot(file, cold_type, hot_share)
            tensors = list(_split(tensors, n_hot, _type_named(cold_type or type), choice))
            hot_neurons = [n_hot] * ffn_sizes(file)[0]
        choice.refuse_unused(file.path)
        requantized = [each for each in tensors if each.is_requantized]
        if requantized and not allow_requantize:
            raise InvalidArgument(_refusal(file, [file.tensor(each.name.replace(_COLD, "")) for each in requantized]))
        importance = _importance(tensors, read_imatrix(weights[0]) if weights else None)
        job = _Job(file, tensors, importance, optional_count("n_threads", n_threads), hot_neurons)
        written = job.write(GgufOutput(output, powerinfer=file.is_powerinfer, force=force), choice.type, progress)
        with GgufInput(output) as result:
            error = _relative_error(result, requantized, progress) if requantized else None
        notes = fallbacks(tensors)
        for note in notes:
            progress.note(note)
        return QuantizeReport(
            path=output,
            n_bytes=written.n_bytes,
            n_bytes_before=source.stat().st_size,
            n_tensors=dict(Counter(each.type for each in tensors)),
            n_requantized=len(requantized),
            requantize_error=error,
            notes=notes,
            n_weighted=len(importance.columns),
            n_resumed=written.n_resumed,
        )


def _type_named(name: str) -> str:
    if name.upper() not in TYPES:
        raise InvalidArgument(f"type {name!r} is unknown; known: {', '.join(TYPES)}")
    return name.upper()


def _expression(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidArgument(f"tensor type {pattern!r}: no regular expression: {error}") from None


@dataclass
class _Stored:
    """A tensor of the source, as a Matrix."""

    file: GgufInput
    tensor: TensorInfo
    type: str
    n_rows: int
    n_cols: int
    begin: int = 0
    """Its first row in the source."""

    def read(self, first_row: int, n_rows: int) -> npt.NDArray[np.uint8]:
        return self.file.read(self.tensor.name, self.begin + first_row, n_rows)


def _n_hot(file: GgufInput, cold_type: str | None, hot_share: float | None) -> int:
    """How many neurons of a layer are hot."""
    if cold_type is None or hot_share is None or not 0 < hot_share < 1:
        raise InvalidArgument(
            f"hot_share {hot_share}, cold_type {cold_type}: expected both, the share between 0 and 1, e.g. 0.2 and q4_0"
        )
    n_layers, d_ff = ffn_sizes(file)
    if file.get(ORDER_KEY) != "activation":
        raise InvalidArgument(
            f"{file.path}: its neurons do not stand hottest first; run `powerinfer profile` and `powerinfer reorder`"
        )
    if any(f"blk.{layer}.ffn_down_t.weight" not in file.tensors for layer in range(n_layers)):
        raise InvalidArgument(
            f"{file.path}: a cold type needs the down rows by neurons, ffn_down_t; `powerinfer convert` makes them"
        )
    for layer in range(n_layers):
        name = f"blk.{layer}.{COUNT_TENSOR}"
        if name in file.tensors and np.any(np.diff(file.read(name).reshape(-1).view("<i4").astype(np.int64)) > 0):
            raise InvalidArgument(
                f"{file.path}: layer {layer}: its neurons stand in the order of older counts; run `powerinfer reorder`"
            )
    return min(max(1, round(hot_share * d_ff)), d_ff - 1)


def _split(tensors: Sequence[OutTensor], n_hot: int, cold_type: str, choice: _Choice) -> Iterator[OutTensor]:
    """The rows of the neurons as a hot and a cold part."""
    for each in tensors:
        matrix = each.matrix
        if not _NEURON_ROWS.fullmatch(each.name) or not isinstance(matrix, _Stored):
            yield each
            continue
        yield replace(each, matrix=replace(matrix, n_rows=n_hot))
        cold = replace(matrix, n_rows=matrix.n_rows - n_hot, begin=n_hot)
        name = each.name.replace(".weight", f"{_COLD}.weight")
        yield typed(name, cold, is_vector=False, type_name=choice.of_name(name, cold_type))


@dataclass(frozen=True)
class _Choice:
    """Which type each tensor gets; remembers which expressions decided about one."""

    type: str
    by_name: tuple[tuple[re.Pattern[str], str], ...]
    output: str
    predictor: str | None
    """None: as the others, but blocks stay what they are."""
    used: set[re.Pattern[str]] = field(default_factory=set)

    def of_name(self, name: str, otherwise: str) -> str:
        """What the expressions say about a matrix."""
        for pattern, named in self.by_name:
            if pattern.search(name):
                self.used.add(pattern)
                return named
        return otherwise

    def refuse_unused(self, path: Path) -> None:
        """Raises InvalidArgument when an expression has decided about nothing."""
        for pattern, _ in self.by_name:
            if pattern not in self.used:
                raise InvalidArgument(
                    f"{path}: tensor type {pattern.pattern!r} decides about no matrix: none has such a name, "
                    "or an earlier expression decides; names are like blk.0.ffn_up.weight"
                )

    def of_tensors(self, file: GgufInput) -> list[OutTensor]:
        """All tensors in file order."""
        output_name = _OUTPUT if _OUTPUT in file.tensors else _EMBEDDING
        found = []
        for name, tensor in file.tensors.items():
            n_cols = int(tensor.shape[0])
            n_rows = int(np.prod(tensor.shape[1:], dtype=np.int64))
            is_vector = len(tensor.shape) == 1 or "norm" in name
            wanted = self.output if name == output_name else self.type
            if _PREDICTOR.fullmatch(name):
                in_blocks = _core.block_length(tensor.type) > 1
                wanted = self.predictor or (tensor.type if in_blocks else self.type)
            if not is_vector:
                wanted = self.of_name(name, wanted)
            matrix = _Stored(file, tensor, tensor.type, n_rows, n_cols)
            found.append(typed(name, matrix, is_vector=is_vector, type_name=wanted))
        return found


def _refusal(file: GgufInput, tensors: Sequence[TensorInfo]) -> str:
    types = ", ".join(sorted({tensor.type for tensor in tensors}))
    return (
        f"{file.path}: {len(tensors)} matrices, such as {tensors[0].name}, are quantized already ({types}), and would "
        "lose more than the original would; quantize the F16 or F32 model, or --allow-requantize "
        "(allow_requantize=True)"
    )


@dataclass(frozen=True)
class _Importance:
    """What weighs the errors."""

    columns: dict[str, npt.NDArray[np.float32]]
    """Matrix -> importance [n_cols], of those that it can help."""
    digest: str


def _importance(tensors: Sequence[OutTensor], imatrix: Imatrix | None) -> _Importance:
    if imatrix is None:
        return _Importance({}, "")
    columns = {}
    for each in tensors:
        found = imatrix.of(each.name.replace(_COLD, ""), each.matrix.n_cols)
        if found is not None and each.type != each.matrix.type and each.type not in _WITHOUT_CHOICE:
            columns[each.name] = found
    if not any(each.name in imatrix.columns for each in tensors):
        raise InvalidArgument(
            f"{imatrix.path}: none of its {len(imatrix.columns)} matrices is in the model; it was made for another one"
        )
    return _Importance(columns, imatrix.digest)


class _Job:
    """The output's header and bytes."""

    def __init__(
        self,
        file: GgufInput,
        tensors: Sequence[OutTensor],
        importance: _Importance,
        n_threads: int,
        hot_neurons: list[int] | None,
    ) -> None:
        self._file, self._n_threads, self._importance = file, n_threads, importance
        self._tensors = {each.name: each for each in tensors}
        self._hot_neurons = hot_neurons

    def write(self, output: GgufOutput, type_name: str, progress: Progress) -> OutputReport:
        output.copy_metadata(self._file)
        for key, value in type_keys(type_name).items():
            output.set(key, value)
        if self._hot_neurons is not None:
            output.set("powerinfer.hot_neurons", self._hot_neurons)
        for name, each in self._tensors.items():
            output.add_tensor(name, each.type, each.shape)
        identity = f"quantize:{self._file.identity}:{self._importance.digest}"
        beside = not self._file.is_powerinfer and side_file_of(self._file.path).exists()
        counts = load_counts(self._file) if beside else None

        def write_beside(fingerprint: str) -> None:
            """The counts beside a file that others read lie beside its successor too."""
            if counts is not None:
                write_side_file(side_file_of(output.path), counts, fingerprint)

        return output.write(self._bytes, identity=identity, progress=progress, before_naming=write_beside)

    def _bytes(self, spec: TensorSpec) -> Iterator[npt.NDArray[np.uint8]]:
        tensor = self._tensors[spec.name]
        if tensor.type == tensor.matrix.type and tensor.type not in _FLOATS:
            return (rows for _, rows in _pieces(tensor))
        return self._converted(tensor)

    def _converted(self, tensor: OutTensor) -> Iterator[npt.NDArray[np.uint8]]:
        importance = self._importance.columns.get(tensor.name)
        matrix = tensor.matrix
        for first, rows in _pieces(tensor):
            try:
                yield _core.convert_rows(
                    matrix.type, rows, matrix.n_cols, tensor.type, importance, n_threads=self._n_threads
                )
            except FormatError as error:
                where = f", rows from {first} on" if first else ""
                raise FormatError(f"{self._file.path}: tensor {tensor.name!r}{where}: {error}") from None


def _pieces(tensor: OutTensor) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """(first row, bytes of rows) of a whole tensor of the source."""
    matrix = tensor.matrix
    step = max(1, _CHUNK_BYTES // (4 * matrix.n_cols))
    for first in range(0, matrix.n_rows, step):
        yield first, matrix.read(first, min(step, matrix.n_rows - first))


def _relative_error(after: GgufInput, tensors: Sequence[OutTensor], progress: Progress) -> float:
    """Root of sum (after - before)^2 / sum before^2."""
    squares = errors = 0.0
    progress.start("error added", sum(each.matrix.n_rows for each in tensors), " rows")
    try:
        for tensor in tensors:
            n_cols = tensor.matrix.n_cols
            for first, rows in _pieces(tensor):
                old = _core.dequantize(tensor.matrix.type, rows, len(rows) * n_cols)
                new = _core.dequantize(tensor.type, after.read(tensor.name, first, len(rows)), len(rows) * n_cols)
                new -= old
                squares += float(np.dot(old, old))
                errors += float(np.dot(new, new))
                progress.advance(len(rows))
    finally:
        progress.finish()
    return (errors / squares) ** 0.5 if squares else 0.0

"""Importance: how large the inputs of each matrix's columns are on a text, in llama.cpp's GGUF layout.

`<tensor>.in_sum2` holds the sums of squares of a matrix's input, `<tensor>.counts` how many inputs they are of.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer_py._arguments import file_path
from powerinfer_py._core import FormatError, InvalidArgument, SquareSums
from powerinfer_py.context import Context, TapPoint
from powerinfer_py.files import GgufInput, GgufOutput, Progress, refuse_input_as_output
from powerinfer_py.model import Model
from powerinfer_py.sparsity.text import load_windows, window_size

_TYPE = "imatrix"
_SUMS, _COUNTS = ".in_sum2", ".counts"
_DATASETS_KEY = "imatrix.datasets"
_CHUNKS_KEY = "imatrix.chunk_count"
_CHUNK_SIZE_KEY = "imatrix.chunk_size"
_READERS: dict[TapPoint, tuple[str, ...]] = {
    "attn_input": ("attn_q", "attn_k", "attn_v", "attn_qkv"),
    "attn_output": ("attn_output",),
    "ffn_input": ("ffn_gate", "ffn_up"),
    "h": ("ffn_down",),
}
"""Tap -> the matrices that meet its values."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ImatrixReport:
    """What was collected."""

    path: Path
    n_tokens: int
    n_windows: int
    tensors: list[str]
    """Matrices whose inputs were seen."""


def collect_imatrix(
    path: str | os.PathLike[str],
    texts: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    n_ctx: int | None = None,
    max_tokens: int | None = None,
    n_threads: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> ImatrixReport:
    """Runs a model over texts and writes how large the inputs of its matrices were.

    Nothing is skipped but what is zero. The input of the down matrices is recorded under the plain layout's name, also
    for models whose rows lie transposed, where it cannot weigh columns. The same input gives the same bytes.

    Args:
        path: the model; the less it is quantized, the better.
        texts: what it reads, in windows of `n_ctx` tokens (see `window_size`); at most `max_tokens` of them.
        output: the file to write.

    Raises:
        InvalidArgument: too little text, or the output exists. OSError: the disk is full.
    """
    progress = progress or Progress()
    output, files = file_path(output), [file_path(text) for text in texts]
    refuse_input_as_output(output, [file_path(path), *files])
    written = GgufOutput(output, powerinfer=False, force=force)
    with GgufInput(path) as file, Model(path, n_threads=n_threads) as model:
        n_ctx = window_size(model, n_ctx)
        if max_tokens is not None and max_tokens < n_ctx:
            raise InvalidArgument(f"--max-tokens {max_tokens} is less than one window of {n_ctx} tokens")
        max_windows = None if max_tokens is None else max_tokens // n_ctx
        windows = load_windows(model, files, n_ctx=n_ctx, max_windows=max_windows)
        sums = _collect(model, _readers(file), windows, progress)
        tensors = _tensors(file, model, sums)
    written.set("general.type", _TYPE)
    written.set(_DATASETS_KEY, [text.name for text in files], "[string]")
    written.set(_CHUNKS_KEY, len(windows))
    written.set(_CHUNK_SIZE_KEY, n_ctx)
    for name, values in tensors.items():
        written.add_tensor(name, "F32", values.shape)
    digest = blake2b(b"".join(values.tobytes() for values in tensors.values())).hexdigest()
    written.write(lambda spec: tensors[spec.name], identity=f"imatrix:{digest}", progress=progress)
    names = [name.removesuffix(_SUMS) for name in tensors if name.endswith(_SUMS)]
    return ImatrixReport(output, windows.size, len(windows), names)


def _readers(file: GgufInput) -> dict[TapPoint, tuple[str, ...]]:
    """`_READERS`, and the predictors."""
    if not any(name.endswith(".fc1.weight") for name in file.tensors):
        return _READERS
    published = "layer_input" if file.architecture == "falcon" else "residual"
    usual = published if "mlp" in file.get("powerinfer.predictor.kind", "mlp") else "ffn_input"
    point = file.get("powerinfer.predictor.input", usual)
    return _READERS | {point: (*_READERS.get(point, ()), "fc1")}


def _collect(
    model: Model, points: Mapping[TapPoint, object], windows: npt.NDArray[np.int32], progress: Progress
) -> dict[TapPoint, SquareSums]:
    widths = {"attn_output": model.n_heads * model.head_dim, "h": model.d_ff}
    sums = {point: SquareSums(model.n_layers, widths.get(point, model.d_model)) for point in points}
    is_exact = next(mode for mode in model.modes if mode.name == "exact").available
    n_ctx = windows.shape[1]
    with Context(
        model, n_ctx=n_ctx, n_batch=min(512, n_ctx), sparsity="exact" if is_exact else "dense", kv_type="f32"
    ) as context:
        for point, sink in sums.items():
            context.set_tap(point, sink)
        progress.start("reading", windows.size, "tokens")
        try:
            for window in windows:
                context.reset()
                context.eval(window)
                progress.advance(n_ctx)
        finally:
            progress.finish()
    return sums


def _tensors(file: GgufInput, model: Model, sums: Mapping[TapPoint, SquareSums]) -> dict[str, Floats]:
    """The file's tensors, by name of the matrix and layer."""
    tensors: dict[str, Floats] = {}
    readers = _readers(file)
    for layer in range(model.n_layers):
        for point, sink in sums.items():
            for part in readers[point]:
                name = f"blk.{layer}.{part}.weight"
                if name in file.tensors or (part == "ffn_down" and f"blk.{layer}.ffn_down_t.weight" in file.tensors):
                    tensors[name + _SUMS] = sink.sums[layer].astype(np.float32)
                    tensors[name + _COUNTS] = np.array([sink.n_rows[layer]], dtype=np.float32)
    return dict(sorted(tensors.items()))


@dataclass(frozen=True)
class Imatrix:
    """The importance of the columns of matrices."""

    path: Path
    columns: dict[str, Floats]
    """Matrix -> mean squares of its input, float32 [n_cols]; those whose inputs were never seen are left out."""
    digest: str
    """Of all of it."""

    def of(self, name: str, n_cols: int) -> Floats | None:
        """The importance of a matrix's columns; None: not known.

        Raises:
            FormatError: it was made for a matrix of another width.
        """
        found = self.columns.get(name)
        if found is not None and len(found) != n_cols:
            raise FormatError(
                f"{self.path}: tensor {name + _SUMS!r}: expected {n_cols} values, one for each column of the matrix, "
                f"got {len(found)}; it was made for another model"
            )
        return found


def read_imatrix(path: Path) -> Imatrix:
    """An importance file of `collect_imatrix` or of llama.cpp.

    Raises:
        InvalidArgument: it is no such file. FormatError: it is damaged.
    """
    columns: dict[str, Floats] = {}
    digest = blake2b(digest_size=16)
    with GgufInput(path) as file:
        names = [name.removesuffix(_SUMS) for name in file.tensors if name.endswith(_SUMS)]
        if file.get("general.type") != _TYPE or not names:
            raise InvalidArgument(
                f"{path}: is no importance file (general.type is {file.get('general.type')!r}, expected {_TYPE!r}); "
                "make one with `powerinfer imatrix`"
            )
        for name in names:
            sums, counts = (_values(file, name + suffix) for suffix in (_SUMS, _COUNTS))
            if counts.size != 1 or sums.shape[0] != 1:
                raise FormatError(f"{path}: tensor {name!r}: importance of experts, whose models are not supported")
            digest.update(name.encode() + sums.tobytes() + counts.tobytes())
            if counts[0, 0] > 0:
                columns[name] = sums[0] / counts[0, 0]
    return Imatrix(path, columns, digest.hexdigest())


def _values(file: GgufInput, name: str) -> Floats:
    """[rows, values], finite and not negative."""
    if file.tensor(name).type != "F32":
        raise FormatError(f"{file.path}: tensor {name!r}: expected F32, got {file.tensor(name).type}")
    values = file.read_f32(name)
    if not np.all(np.isfinite(values) & (values >= 0)):
        raise FormatError(f"{file.path}: tensor {name!r}: expected finite values >= 0; make the file again")
    return values

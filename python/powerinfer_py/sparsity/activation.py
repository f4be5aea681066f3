"""Activation counts: how often each neuron of a model was non-zero, and the places where they are kept.

They live in the model file itself, in the side file `<model>.activation.npz` of files that others read too, or in an
`activation/` folder of the reference engine, which numbers neurons as the original checkpoint does.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from powerinfer_py._arguments import AnyPath, file_path
from powerinfer_py._core import FormatError, InvalidArgument
from powerinfer_py.files import GgufInput, GgufOutput, write_atomically

TOKENS_KEY = "powerinfer.activation.tokens"
ORDER_KEY = "powerinfer.neuron_order"
ORIGINAL_KEY = "powerinfer.original_fingerprint"
"""Of a reordered file: the fingerprint of the file whose neuron numbers the ids are."""
COUNT_TENSOR = "ffn_activation_count"
ID_TENSOR = "ffn_neuron_id"

_INT32_MAX = 2**31 - 1
_NPY_HEADER_BYTES = 4096

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ActivationCounts:
    """How often every neuron was non-zero."""

    tokens: int
    """Tokens that were read; 0: unknown."""
    counts: Counts
    """int64 [n_layers, d_ff], in the neuron order of the file they belong to."""
    ids: Counts | None
    """int64 [n_layers, d_ff]: the original number of each neuron; None: the order is the original one."""
    source: str
    """Where they come from, for people."""

    def original_order(self) -> Counts:
        """The counts in the order of the original checkpoint [n_layers, d_ff]."""
        if self.ids is None:
            return self.counts
        original = np.empty_like(self.counts)
        np.put_along_axis(original, self.ids, self.counts, axis=1)
        return original


def ffn_sizes(file: GgufInput) -> tuple[int, int]:
    """(n_layers, d_ff) of a model file.

    Raises:
        FormatError: the file is no model.
    """
    sizes = []
    for key in (f"{file.architecture}.block_count", f"{file.architecture}.feed_forward_length"):
        value = file.get(key)
        if not isinstance(value, int) or value <= 0:
            raise FormatError(f"{file.path}: key {key!r}: expected a positive number, got {value!r}; is this a model?")
        sizes.append(value)
    return sizes[0], sizes[1]


def side_file_of(model: Path) -> Path:
    """`<model>.activation.npz`."""
    return model.with_name(model.name + ".activation.npz")


def read_ids(file: GgufInput) -> Counts | None:
    """The original number of each neuron [n_layers, d_ff], from the file or its side file; None: original order.

    Raises:
        FormatError: the file is reordered and its ids are nowhere, or they are no permutation.
    """
    ids = _read_tensors(file, ID_TENSOR)
    side_file = side_file_of(file.path)
    if ids is None and side_file.exists():
        side = _SideFile(side_file, *ffn_sizes(file))
        ids = side.array("id") if side.fingerprint == file.fingerprint else None
    if ids is None:
        if file.get(ORDER_KEY, "original") != "original":
            raise FormatError(
                f"{file.path}: the neurons are reordered, and their original numbers are neither in the file nor in "
                f"{side_file}; profile the file itself, or reorder the original again"
            )
        return None
    _check_permutations(ids, str(file.path))
    return ids


def check_side_file(output: GgufOutput, *, force: bool) -> None:
    """Refuses to replace the side file of a model that is about to be written.

    One beside an unfinished model is not in the way: the run that was killed between the two has left it.

    Raises:
        InvalidArgument: it exists, and `force` is not set.
    """
    side_file = side_file_of(output.path)
    if side_file.exists() and not output.part.exists() and not force:
        raise InvalidArgument(f"{side_file}: exists already; choose another output, or --force (force=True)")


def beside_counts(file: GgufInput) -> ActivationCounts | None:
    """The counts and ids that a file of magic GGUF cannot hold, from its side file; None: it has none that fits.

    Raises:
        FormatError: the file is reordered and its ids are nowhere, or the side file is damaged.
    """
    if file.is_powerinfer:
        return None
    read_ids(file)
    side_file = side_file_of(file.path)
    try:
        return read_side_file(file, side_file) if side_file.exists() else None
    except InvalidArgument:
        return None


def load_counts(file: GgufInput, recorded: AnyPath | None = None) -> ActivationCounts:
    """The counts that belong to a model: those of a folder or side file if one is given, else its own, else the ones
    in the side file that lies beside it.

    Raises:
        InvalidArgument: there are none, or they belong to another model. FormatError: they are damaged.
    """
    if recorded is not None:
        return read_recorded(file, file_path(recorded))
    side_file = side_file_of(file.path)
    own = _read_tensors(file, COUNT_TENSOR)
    if own is not None:
        return ActivationCounts(int(file.get(TOKENS_KEY, 0)), own, read_ids(file), str(file.path))
    if side_file.exists():
        return read_side_file(file, side_file)
    raise InvalidArgument(
        f"{file.path}: has no activation counts, and {side_file} does not exist; "
        f"run `powerinfer profile {file.path} --text FILE` first"
    )


def read_recorded(file: GgufInput, path: Path) -> ActivationCounts:
    """The counts of a reference `activation/` folder or a side file; errors as of these."""
    return read_activation_folder(file, path) if path.is_dir() else read_side_file(file, path)


def read_side_file(file: GgufInput, path: Path) -> ActivationCounts:
    """The counts of a side file, in the neuron order of `file`.

    A side file of the model that `file` was reordered from is taken through the neurons' original numbers.

    Raises:
        InvalidArgument: it was made for another model. FormatError: it is damaged.
    """
    side = _SideFile(path, *ffn_sizes(file))
    fits = side.fingerprint == file.fingerprint
    if not fits and side.fingerprint != file.get(ORIGINAL_KEY):
        raise InvalidArgument(
            f"{path}: was made for another model (fingerprint {side.fingerprint}, {file.path} has "
            f"{file.fingerprint}); profile this model again, or remove the side file"
        )
    counts, ids = side.array("count"), side.array("id")
    if counts is None:
        raise FormatError(f"{path}: holds no counts; make it again with `powerinfer profile`")
    if ids is not None:
        _check_permutations(ids, str(path))
    if np.any(counts < 0):
        raise FormatError(f"{path}: holds negative counts; make it again with `powerinfer profile`")
    found = ActivationCounts(side.tokens, counts, ids, str(path))
    return found if fits else _through_ids(file, found.original_order(), side.tokens, str(path))


def read_activation_folder(file: GgufInput, folder: Path) -> ActivationCounts:
    """The counts of a reference `activation/` folder, in the neuron order of `file`.

    Raises:
        FormatError, InvalidArgument: the folder has gaps, belongs to another model, or holds anything but numbers >= 0;
            or `file` is reordered and does not tell the original numbers. UnsupportedError: torch is not installed.
    """
    from powerinfer_py.convert import reference_parts  # noqa: PLC0415

    counts, tokens = reference_parts.read_activation_folder(folder, *ffn_sizes(file))
    return _through_ids(file, counts, tokens, str(folder))


def _through_ids(file: GgufInput, original: Counts, tokens: int, source: str) -> ActivationCounts:
    ids = read_ids(file)
    counts = original if ids is None else np.take_along_axis(original, ids, axis=1)
    return ActivationCounts(tokens, counts, ids, source)


def write_side_file(path: Path, counts: ActivationCounts, fingerprint: str) -> None:
    """Writes `<model>.activation.npz`; complete or not at all, the same bytes for the same counts."""
    arrays: dict[str, Any] = {"tokens": np.uint64(counts.tokens), "fingerprint": np.str_(fingerprint)}
    arrays |= {f"count_{layer}": row for layer, row in enumerate(counts_i32(counts.counts))}
    if counts.ids is not None:
        arrays |= {f"id_{layer}": row for layer, row in enumerate(counts.ids.astype(np.int32))}

    def write(file: BinaryIO) -> None:
        np.savez(file, **arrays)  # its members carry no time

    write_atomically(path, write)


def counts_i32(counts: Counts) -> npt.NDArray[np.int32]:
    """The counts as files hold them."""
    if counts.max(initial=0) > _INT32_MAX:
        raise InvalidArgument(f"a neuron fired {counts.max()} times, more than a file can hold; profile less text")
    return counts.astype(np.int32)


def _read_tensors(file: GgufInput, what: str) -> Counts | None:
    """`blk.{i}.{what}` of all layers [n_layers, d_ff]; None if the file has none."""
    n_layers, d_ff = ffn_sizes(file)
    if not any(name.startswith("blk.") and name.endswith(f".{what}") for name in file.tensors):
        return None
    rows = []
    for layer in range(n_layers):
        tensor = file.tensor(f"blk.{layer}.{what}")
        if tensor.type != "I32" or tuple(tensor.shape) != (d_ff,):
            raise FormatError(
                f"{file.path}: tensor {tensor.name!r}: expected I32 [{d_ff}], got {tensor.type} {list(tensor.shape)}"
            )
        rows.append(file.read(tensor.name).reshape(-1).view("<i4").astype(np.int64))
    return np.stack(rows)


def _check_permutations(ids: Counts, where: str) -> None:
    expected = np.arange(ids.shape[1])
    for layer, row in enumerate(ids):
        if not np.array_equal(np.sort(row), expected):
            raise FormatError(
                f"{where}: layer {layer}: the neurons' original numbers are not 0 to {ids.shape[1] - 1}, each once"
            )


class _SideFile:
    """An opened side file; nothing in it is trusted."""

    def __init__(self, path: Path, n_layers: int, d_ff: int) -> None:
        self._path, self._n_layers, self._d_ff = path, n_layers, d_ff
        self._arrays = self._load()
        self.fingerprint = str(self._scalar("fingerprint", "U"))
        self.tokens = int(self._scalar("tokens", "ui"))

    def _load(self) -> dict[str, npt.NDArray[Any]]:
        wanted = {"tokens", "fingerprint"} | {f"{w}_{i}" for w in ("count", "id") for i in range(self._n_layers)}
        largest = self._d_ff * 8 + _NPY_HEADER_BYTES
        try:
            with zipfile.ZipFile(self._path) as archive:
                sizes = {info.filename: info.file_size for info in archive.infolist()}
            with np.load(self._path, allow_pickle=False) as archive:
                names = wanted & set(archive.files)
                if any(sizes.get(f"{name}.npy", 0) > largest for name in names):
                    raise ValueError(f"arrays are larger than the model's {self._d_ff} neurons")
                return {name: archive[name] for name in sorted(names)}
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
            raise self._broken(str(error).splitlines()[0] if str(error) else type(error).__name__) from None

    def _broken(self, reason: str) -> FormatError:
        return FormatError(f"{self._path}: no usable side file: {reason}; make it again with `powerinfer profile`")

    def _scalar(self, name: str, kinds: str) -> Any:
        value = self._arrays.get(name)
        if value is None or value.shape != () or value.dtype.kind not in kinds:
            raise self._broken(f"{name!r} is missing or of another type")
        return value[()]

    def array(self, what: str) -> Counts | None:
        """`{what}_{i}` of all layers, int64 [n_layers, d_ff]; None if there are none."""
        rows = [self._arrays.get(f"{what}_{layer}") for layer in range(self._n_layers)]
        if all(row is None for row in rows):
            return None
        for layer, row in enumerate(rows):
            if row is None or row.shape != (self._d_ff,) or row.dtype.kind not in "iu":
                got = "nothing" if row is None else f"{row.dtype} {list(row.shape)}"
                raise self._broken(f"'{what}_{layer}': expected integers [{self._d_ff}], got {got}")
        return np.stack([row.astype(np.int64) for row in rows if row is not None])

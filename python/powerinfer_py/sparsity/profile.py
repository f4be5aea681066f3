"""Counts how often each neuron is non-zero while the engine reads text (exact mode), and keeps the counts.

A journal beside the target holds the counts of the windows done so far, so that a killed run goes on there.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from powerinfer_py._arguments import AnyPath, file_path, file_paths
from powerinfer_py._core import ActivationCounter, InvalidArgument, UnsupportedError
from powerinfer_py.context import Context
from powerinfer_py.files import (
    GgufInput,
    GgufOutput,
    Progress,
    TensorSpec,
    check_free_disk,
    refuse_input_as_output,
    remove_written,
    write_atomically,
)
from powerinfer_py.model import Model
from powerinfer_py.sparsity.activation import (
    COUNT_TENSOR,
    TOKENS_KEY,
    ActivationCounts,
    Counts,
    counts_i32,
    ffn_sizes,
    read_ids,
    read_recorded,
    side_file_of,
    write_side_file,
)
from powerinfer_py.sparsity.scoring import read_window
from powerinfer_py.sparsity.text import load_windows, window_size

_JOURNAL_TOKENS = 4096
_BYTES_PER_COUNT = 32
"""Of the side file, and of two journals, each with its successor."""


@dataclass(frozen=True)
class ProfileReport:
    """What was counted, and where it was written."""

    path: Path
    counts: ActivationCounts
    compared: ActivationCounts | None
    """The counts of the second text."""
    n_resumed: int
    """Windows that an earlier, interrupted run had counted."""


def profile_model(
    path: AnyPath,
    texts: AnyPath | Sequence[AnyPath],
    *,
    output: AnyPath | None = None,
    force: bool = False,
    n_ctx: int | None = None,
    max_tokens: int | None = None,
    compare_texts: AnyPath | Sequence[AnyPath] = (),
    activation: AnyPath | None = None,
    n_threads: int | None = None,
    progress: Progress | None = None,
) -> ProfileReport:
    """Records the activation counts of a model over texts.

    Args:
        path: a model of the ReLU family.
        texts: what it reads, in windows of `n_ctx` tokens (see `window_size`); at most `max_tokens` of them.
        output: a copy of the model that holds the counts, may be `path` itself; None: the side file of `path`.
        force: replace what exists.
        compare_texts: counted too, but not written.
        activation: take the counts from here instead of running: a reference `activation/` folder, or a side file.

    Raises:
        InvalidArgument: too little text; the output exists, is a text, or is one that others read; both texts and a
            folder.
        FormatError: the model's weights are not finite.
        UnsupportedError: an activation without true zeros. OSError: the disk is full; what is counted stays.
    """
    progress = progress or Progress()
    texts, compare_texts = file_paths(texts), file_paths(compare_texts)
    activation = None if activation is None else file_path(activation)
    if bool(texts) == (activation is not None):
        raise InvalidArgument("give either texts to read or recorded activations")
    if activation is not None and compare_texts:
        raise InvalidArgument("recorded activations cannot be compared with a text; leave --compare-text away")
    with GgufInput(path) as file:
        target = _Target(file, None if output is None else file_path(output), force=force)
        refuse_input_as_output(target.path, [*texts, *compare_texts, *([] if activation is None else [activation])])
        target.check_free_disk()
        n_resumed, compared = 0, None
        if activation is not None:
            counts = read_recorded(file, activation)
        else:
            with Model(path, sparsity="auto", n_threads=n_threads) as model:
                run = _Run(model, file, n_ctx, max_tokens, progress)
                counts, n_resumed = run.count(texts, target.journal("profile"))
                if compare_texts:
                    compared, _ = run.count(compare_texts, target.journal("compared"))
        target.write(counts, progress)
    for name in ("profile", "compared"):
        remove_written(target.journal(name))
    return ProfileReport(target.path, counts, compared, n_resumed)


def check_countable(model: Model) -> None:
    """Refuses models whose neurons are never exactly zero.

    Raises:
        UnsupportedError: the activation is not of the ReLU family.
    """
    if not next(mode for mode in model.modes if mode.name == "exact").available:
        raise UnsupportedError(
            f"{model.path}: activation counts of a {model.activation} model are meaningless, because its neurons "
            f"are never exactly zero ({model.activation_source}); profile a model of the ReLU family"
        )


class _Target:
    """The model copy or the side file that takes the counts; what cannot be written is refused at once."""

    def __init__(self, file: GgufInput, output: Path | None, *, force: bool) -> None:
        self._file = file
        self._output: GgufOutput | None = None
        self.path = output or side_file_of(file.path)
        if output is None:
            if self.path.exists() and not force:
                raise InvalidArgument(f"{self.path}: exists already; remove it, or --force (force=True)")
            return
        if not file.is_powerinfer:
            raise InvalidArgument(
                f"{file.path}: other engines refuse files of magic GGUF with tensors that they do not know; "
                f"leave -o away, and the counts go into {side_file_of(file.path)}"
            )
        self._output = GgufOutput(output, powerinfer=True, force=force)

    def check_free_disk(self) -> None:
        """Refuses to begin where there is no room for the counts, or for the copy."""
        n_layers, d_ff = ffn_sizes(self._file)
        check_free_disk(self.path.parent, _BYTES_PER_COUNT * n_layers * d_ff)
        if self._output is not None:
            self._output.check_free_disk(self._file.path.stat().st_size)

    def journal(self, name: str) -> Path:
        """Where an interrupted count goes on."""
        return self.path.with_name(f"{self.path.name}.{name}")

    def write(self, counts: ActivationCounts, progress: Progress) -> None:
        """Writes the counts under the final name."""
        if self._output is None:
            write_side_file(self.path, counts, self._file.fingerprint)
            return
        values = counts_i32(counts.counts)
        output = self._output
        output.copy_metadata(self._file)
        output.set("powerinfer.version", 1)
        output.discard(TOKENS_KEY)
        if counts.tokens:
            output.set(TOKENS_KEY, counts.tokens, "u64")
        rows = {f"blk.{layer}.{COUNT_TENSOR}": row for layer, row in enumerate(values)}
        for tensor in self._file.tensors.values():
            if tensor.name not in rows:
                output.add_tensor(tensor.name, tensor.type, tensor.shape)
        for name, row in rows.items():
            output.add_tensor(name, "I32", row.shape)

        def produce(spec: TensorSpec) -> npt.NDArray[np.int32] | Iterator[memoryview]:
            return rows[spec.name] if spec.name in rows else self._file.chunks(self._file.tensor(spec.name))

        digest = blake2b(values.tobytes(), digest_size=16).hexdigest()
        output.write(produce, identity=f"profile:{self._file.identity}:{digest}", progress=progress)


class _Run:
    """Counts over texts with one model."""

    def __init__(
        self, model: Model, file: GgufInput, n_ctx: int | None, max_tokens: int | None, progress: Progress
    ) -> None:
        check_countable(model)
        self._model, self._file, self._progress = model, file, progress
        self._n_ctx = window_size(model, n_ctx)
        if max_tokens is not None and max_tokens < self._n_ctx:
            raise InvalidArgument(f"--max-tokens {max_tokens} is less than one window of {self._n_ctx} tokens")
        self._max_windows = None if max_tokens is None else max_tokens // self._n_ctx

    def count(self, texts: Sequence[Path], journal_path: Path) -> tuple[ActivationCounts, int]:
        """The counts over texts, and how many windows of them an earlier run had done."""
        windows = load_windows(self._model, texts, n_ctx=self._n_ctx, max_windows=self._max_windows)
        shape = (self._model.n_layers, self._model.d_ff)
        digest = blake2b(windows.tobytes(), digest_size=16).hexdigest()
        journal = _Journal(journal_path, f"{self._file.identity}:{windows.shape}:{digest}", shape)
        n_resumed = journal.n_done
        if n_resumed:
            self._progress.note(
                f"goes on where an earlier run ended: {n_resumed} of {len(windows)} windows are counted"
            )
        self._count_windows(windows, journal)
        source = ", ".join(str(text) for text in texts)
        return ActivationCounts(windows.size, journal.counts, read_ids(self._file), source), n_resumed

    def _count_windows(self, windows: npt.NDArray[np.int32], journal: _Journal) -> None:
        per_save = max(1, _JOURNAL_TOKENS // self._n_ctx)
        counter = ActivationCounter(*journal.counts.shape)
        before = journal.counts.copy()
        with Context(
            self._model, n_ctx=self._n_ctx, n_batch=min(512, self._n_ctx), sparsity="exact", kv_type="f32"
        ) as context:
            context.set_tap("h", counter)
            self._progress.start("counting activations", windows.size, "tokens")
            self._progress.advance(journal.n_done * self._n_ctx)
            for window in windows[journal.n_done :]:
                read_window(self._model, context, window)
                journal.n_done += 1
                self._progress.advance(self._n_ctx)
                if journal.n_done % per_save == 0 or journal.n_done == len(windows):
                    journal.counts = before + counter.counts.astype(np.int64)
                    journal.save()
            self._progress.finish()


class _Journal:
    """Counts of the windows done so far; one of another plan, or a damaged one, is as good as none."""

    def __init__(self, path: Path, plan: str, shape: tuple[int, int]) -> None:
        self._path = path
        self._plan = blake2b(plan.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        self.n_done = 0
        self.counts: Counts = np.zeros(shape, dtype=np.int64)
        try:
            with np.load(path, allow_pickle=False) as saved:
                n_done, counts = int(saved["n_done"]), saved["counts"]
                if str(saved["plan"]) == self._plan and counts.shape == shape and counts.dtype == np.int64:
                    self.n_done, self.counts = n_done, counts
        except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile):
            pass

    def save(self) -> None:
        """Brings the state to the disk."""

        def write(file: BinaryIO) -> None:
            np.savez(file, plan=np.str_(self._plan), n_done=np.int64(self.n_done), counts=self.counts)

        write_atomically(self._path, write)

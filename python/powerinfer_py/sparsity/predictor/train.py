"""Training predictors for a model: record, fit layer by layer, choose for the whole model, write."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from powerinfer_py import _core
from powerinfer_py._arguments import AnyPath, count, file_path, file_paths
from powerinfer_py._core import InvalidArgument, UnsupportedError
from powerinfer_py.context import Context
from powerinfer_py.files import GgufInput, GgufOutput, OutputReport, Progress, refuse_input_as_output
from powerinfer_py.model import Model
from powerinfer_py.sparsity.activation import ActivationCounts, beside_counts, check_side_file
from powerinfer_py.sparsity.evaluate import decode_speed, perplexity_of
from powerinfer_py.sparsity.predictor.candidate import Recipe
from powerinfer_py.sparsity.predictor.fit import KINDS, TRAINED_KINDS, FitOptions, check_sizes, fit_layer
from powerinfer_py.sparsity.predictor.gradient import import_torch
from powerinfer_py.sparsity.predictor.layer import FfnLayer, activation_of
from powerinfer_py.sparsity.predictor.recording import Plan, Recording, Windows, record, recorded_bytes, split_windows
from powerinfer_py.sparsity.predictor.selection import (
    LayerChoice,
    Selection,
    Totals,
    at_recall,
    exact,
    restricted,
    totals,
    within_bytes,
)
from powerinfer_py.sparsity.predictor.workspace import StoredLayer, Workspace
from powerinfer_py.sparsity.predictor.write import write_model
from powerinfer_py.sparsity.scoring import LEAST_WINDOW
from powerinfer_py.sparsity.text import window_size

PredictorInput = Literal["ffn_input", "residual", "layer_input"]

USUAL_RECALL = 0.97
USUAL_TYPES = ("Q4_0", "Q8_0")
USUAL_TOKENS = 65536
USUAL_CACHE_BYTES = 8_000_000_000

_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K")
_BISECTIONS = 8
_MAX_TRIAL_WINDOWS = 32


@dataclass(frozen=True)
class TrainReport:
    """What was trained, chosen and written."""

    path: Path
    n_bytes: int
    fingerprint: str
    goal: str
    n_train_tokens: int
    n_held_out_tokens: int
    n_resumed_layers: int
    """Layers that an earlier, interrupted run had finished."""
    layers: list[LayerChoice]
    table: list[Totals]
    """Exact mode, each recipe in all layers at the recall of the choice, the choice."""

    @property
    def chosen(self) -> Totals:
        """The file that was written."""
        return self.table[-1]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"path": str(self.path)}


def train_predictor(
    model_path: AnyPath,
    texts: AnyPath | Sequence[AnyPath],
    output: AnyPath,
    *,
    kind: str | Sequence[str] = "auto",
    rank: int | Sequence[int] | None = None,
    type: str | Sequence[str] | None = None,
    target_recall: float | None = None,
    max_perplexity_loss: float | None = None,
    budget_bytes_per_token: float | None = None,
    input: PredictorInput = "ffn_input",
    n_ctx: int | None = None,
    max_tokens: int = USUAL_TOKENS,
    seed: int = 0,
    n_threads: int | None = None,
    cache_dir: AnyPath | None = None,
    max_cache_bytes: float = USUAL_CACHE_BYTES,
    measure: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> TrainReport:
    """Trains predictors and writes a copy of the model that has them.

    Args:
        model_path: a GGUF file of the ReLU family; predictors that it has are replaced.
        texts: UTF-8 text of the kind that the model will meet; the last tenth of each is held out to judge by.
        output: the file to write.
        kind: "svd" (closed form), "sign" (the weights' signs), "svd+" (svd trained on), "mlp" (the published form,
            trained), several of these, or "auto": all that can be had.
        rank: of the matrices; None: a range, chosen per layer. With a rank every layer gets a predictor; otherwise
            layers where none pays stay without.
        type: block types of the matrices that are tried.
        target_recall: share of all firing neurons of the held-out text that must be predicted; the least bytes per
            token that meet it are chosen. The default goal, at 0.97.
        max_perplexity_loss: instead: the largest relative loss of perplexity on held-out text, e.g. 0.01.
        budget_bytes_per_token: instead: the most bytes of weights, all of the model's, that a token may touch; the best
            recall within them is chosen.
        input: what the predictor reads: "ffn_input", "residual" or "layer_input".
        n_ctx: tokens of a window; see `window_size`.
        max_tokens: windows are sampled evenly from the texts down to this.
        seed: of the training, 0 or more.
        n_threads: of the engine and of torch.
        cache_dir: what is finished is kept here, also after success, so that another goal is reached within seconds;
            None: `<output>.train`, removed at success.
        max_cache_bytes: disk for recordings; layers are recorded in groups that need no more, one at least.
        measure: also measures the time per token of each row of the table.
        force: replace an output that exists.

    Raises:
        InvalidArgument: options that contradict each other, too little text, a goal out of reach, an existing output.
        UnsupportedError: an activation without zeros; a kind that needs torch, which is not installed.
        FormatError: the model's weights are not finite, or it is reordered and its neurons' ids are nowhere.
        OSError: the disk is full; what is finished stays.
    """
    progress = progress or Progress()
    goal = _Goal.of(target_recall, max_perplexity_loss, budget_bytes_per_token)
    seed = count("seed", seed, minimum=0)
    max_tokens = count("max_tokens", max_tokens)
    if not 0 <= max_cache_bytes < math.inf:
        raise InvalidArgument(f"cache of {max_cache_bytes:g} bytes (--cache-gb): expected a finite number, 0 or more")
    out_path, texts = file_path(output), file_paths(texts)
    refuse_input_as_output(out_path, [file_path(model_path), *texts])
    planned = GgufOutput(out_path, powerinfer=True, force=force)  # refuses at once what could not be written at the end
    with GgufInput(model_path) as source, Model(model_path, sparsity="auto", n_threads=n_threads) as model:
        counts = beside_counts(source)
        if counts is not None:
            check_side_file(planned, force=force)
        options = _fit_options(kind, rank, type, input, seed, model, progress)
        size = window_size(model, n_ctx, minimum=LEAST_WINDOW)
        windows = split_windows(model, texts, n_ctx=size, max_tokens=max_tokens)
        folder = out_path.with_name(out_path.name + ".train") if cache_dir is None else file_path(cache_dir)
        planned.check_free_disk(source.path.stat().st_size - recorded_bytes(folder))
        identity = _identity(source, windows, options, measure)
        with Workspace(folder, identity) as workspace:
            run = _Run(model, source, counts, windows, options, workspace, progress, max_cache_bytes, keep_all=measure)
            run.fit_layers()
            selection = run.select(goal)
            report = run.write(out_path, selection, goal, json.dumps(identity, sort_keys=True), force=force)
            if cache_dir is None:
                workspace.remove()
    return report


@dataclass(frozen=True)
class _Goal:
    """One of the three is set."""

    recall: float | None
    loss: float | None
    n_bytes: float | None

    @classmethod
    def of(cls, recall: float | None, loss: float | None, n_bytes: float | None) -> _Goal:
        if sum(value is not None for value in (recall, loss, n_bytes)) > 1:
            raise InvalidArgument("give one goal: a target recall, a loss of perplexity, or a budget of bytes")
        if loss is None and n_bytes is None and recall is None:
            recall = USUAL_RECALL
        if recall is not None and not 0 < recall <= 1:
            raise InvalidArgument(f"target recall {recall}: expected a share between 0 and 1, such as {USUAL_RECALL}")
        if loss is not None and not 0 <= loss < 10:
            raise InvalidArgument(f"loss of perplexity {loss}: expected a small share, such as 0.01 for 1 %")
        if n_bytes is not None and not n_bytes > 0:
            raise InvalidArgument(f"budget of {n_bytes} bytes per token: expected a positive number")
        return cls(recall, loss, n_bytes)

    def __str__(self) -> str:
        if self.loss is not None:
            return f"at most {100 * self.loss:g} % of perplexity lost"
        if self.n_bytes is not None:
            return f"at most {self.n_bytes:.0f} bytes per token"
        return f"recall {self.recall:g}"


def _several(value: str | int | Sequence[Any] | None) -> tuple[Any, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, (str, int)) else tuple(value)


def _fit_options(
    kind: str | Sequence[str],
    rank: int | Sequence[int] | None,
    type: str | Sequence[str] | None,
    point: PredictorInput,
    seed: int,
    model: Model,
    progress: Progress,
) -> FitOptions:
    if point not in get_args(PredictorInput):
        raise InvalidArgument(f"predictor input {point!r}: expected one of {', '.join(get_args(PredictorInput))}")
    types = tuple(dict.fromkeys(str(each).upper() for each in _several(type)))
    for each in types:
        if each not in _TYPES:
            raise InvalidArgument(f"predictor type {each!r}: expected one of {', '.join(_TYPES)}")
    types = types or (USUAL_TYPES if model.d_model % 32 == 0 else ("F16",))
    with Context(model, n_ctx=8) as context:
        threads = context.stats["n_threads"]
    options = FitOptions(
        kinds=_kinds(_several(kind), point, progress),
        ranks=tuple(sorted(set(_several(rank)))) or None,
        types=types,
        point=point,
        seed=seed,
        n_threads=threads,
        train_all_ranks="auto" not in _several(kind),
    )
    check_sizes(model.d_model, model.d_ff, options)
    return options


def _kinds(wanted: Sequence[str], point: str, progress: Progress) -> tuple[str, ...]:
    for each in wanted:
        if each not in (*KINDS, "auto"):
            raise InvalidArgument(f"kind {each!r}: expected auto or some of {', '.join(KINDS)}")
    kinds = list(KINDS) if "auto" in wanted else [each for each in KINDS if each in wanted]
    if "sign" in kinds and point != "ffn_input":
        if "auto" not in wanted:
            raise InvalidArgument(f"kind sign reads ffn_input, not {point}; leave --input away or choose another kind")
        kinds.remove("sign")
    if any(each in TRAINED_KINDS for each in kinds):
        try:
            import_torch()
        except UnsupportedError as error:
            if "auto" not in wanted:
                raise
            progress.note(f"{error} (kinds {' and '.join(TRAINED_KINDS)} are left out)")
            kinds = [each for each in kinds if each not in TRAINED_KINDS]
    return tuple(kinds)


def _identity(source: GgufInput, windows: Windows, options: FitOptions, measure: bool) -> dict[str, Any]:
    """All that the finished layers depend on."""
    text = blake2b(windows.train.tobytes() + windows.held_out.tobytes(), digest_size=16)
    versions = {"powerinfer": _core.version(), "numpy": np.__version__, "machine": platform.machine()}
    if options.trains:
        versions["torch"] = import_torch().__version__
    shapes = [windows.train.shape, windows.held_out.shape]
    return {
        "model": source.identity,
        "fingerprint": source.fingerprint,
        "text": text.hexdigest(),
        "windows": shapes,
        "options": asdict(options),
        "keep_all": measure,
        "versions": versions,
    }


class _Run:
    def __init__(
        self,
        model: Model,
        source: GgufInput,
        counts: ActivationCounts | None,
        windows: Windows,
        options: FitOptions,
        workspace: Workspace,
        progress: Progress,
        max_cache_bytes: float,
        *,
        keep_all: bool,
    ) -> None:
        self._model, self._source, self._counts, self._options = model, source, counts, options
        self._workspace, self._progress, self._max_cache_bytes = workspace, progress, max_cache_bytes
        self._keep_all = keep_all
        activation = activation_of(model)
        self._ffns = [FfnLayer(source, activation, layer) for layer in range(model.n_layers)]
        self._plan = Plan(windows, options.point, with_ffn_input=options.point != "ffn_input", train_h=options.trains)
        self._layers: list[StoredLayer] = []
        self._n_resumed = 0
        if windows.n_train < 4 * model.d_model:
            progress.note(
                f"{windows.n_train} tokens are few to learn {model.d_model} dimensions from; give more text, "
                "or a larger number with --max-tokens"
            )

    # Fitting.

    def fit_layers(self) -> None:
        """Finishes every layer, in groups whose recordings fit the cache."""
        finished = [ffn for ffn in self._ffns if self._workspace.load(ffn.layer, ffn) is not None]
        self._n_resumed = len(finished)
        if finished:
            skipped = compact_ranges([ffn.layer for ffn in finished])
            self._progress.note(
                f"goes on where an earlier run ended: layers {skipped} of {len(self._ffns)} are finished and skipped"
            )
        for ffn in finished:
            self._recording(ffn).remove()
        pending = [ffn for ffn in self._ffns if ffn not in finished]
        per_layer = self._plan.bytes_per_layer(self._model.d_model, self._model.d_ff)
        size = max(1, int(self._max_cache_bytes // per_layer))
        for begin in range(0, len(pending), size):
            self._fit_group(pending[begin : begin + size], per_layer)
        for ffn in self._ffns:
            stored = self._workspace.load(ffn.layer, ffn)
            if stored is None:
                raise OSError(f"{self._workspace.folder}: layer {ffn.layer} vanished while it was needed; run again")
            self._layers.append(stored)

    def _fit_group(self, group: Sequence[FfnLayer], bytes_per_layer: int) -> None:
        recordings = {ffn.layer: self._recording(ffn) for ffn in group}
        missing = {layer: recording for layer, recording in recordings.items() if not recording.is_complete}
        if missing:
            n_bytes = len(missing) * bytes_per_layer
            record(self._model, self._plan, missing, n_bytes, self._options.n_threads, self._progress)
        n_trainings = sum(kind in TRAINED_KINDS for kind in self._options.kinds)
        for ffn in group:
            self._progress.start(f"layer {ffn.layer}", n_trainings or 1, "")
            fitted = fit_layer(ffn, recordings[ffn.layer], self._options, self._progress)
            self._workspace.save(ffn.layer, fitted, keep_all=self._keep_all)
            recordings[ffn.layer].remove()
            self._progress.finish()

    def _recording(self, ffn: FfnLayer) -> Recording:
        return Recording(self._workspace.folder, ffn.layer, self._plan, ffn.d_model, ffn.d_ff)

    # Choosing.

    @property
    def _allow_exact(self) -> bool:
        return self._options.ranks is None

    def select(self, goal: _Goal) -> Selection:
        """Meets the goal.

        Raises:
            InvalidArgument: it is out of reach.
        """
        if goal.loss is not None:
            return self._within_loss(goal.loss)
        if goal.n_bytes is not None:
            other = self._other_bytes
            found = within_bytes(self._layers, goal.n_bytes - other, allow_exact=self._allow_exact)
            if found is None:
                least = other + sum(
                    min([layer.truth.exact_bytes] + [float(curve.bytes.min()) for curve in layer.curves])
                    for layer in self._layers
                )
                raise InvalidArgument(
                    f"a budget of {goal.n_bytes:.0f} bytes per token cannot be met: at least {least:.0f} are touched"
                )
            return found
        return self._at_recall(goal.recall or USUAL_RECALL)

    def _at_recall(self, recall: float) -> Selection:
        found = at_recall(self._layers, recall, allow_exact=self._allow_exact)
        if found is None:
            ranks = self._options.ranks
            raise InvalidArgument(f"recall {recall:g} cannot be met with ranks {ranks}; leave --rank away")
        return found

    def _within_loss(self, limit: float) -> Selection:
        """Bisects on the recall, measuring the perplexity of a trial file each time."""
        windows = self._plan.windows.held_out[:_MAX_TRIAL_WINDOWS]
        self._progress.start("perplexity", (1 + _BISECTIONS) * len(windows), "windows")
        with self._context(self._model, "exact") as context:
            reference = perplexity_of(self._model, context, windows, self._progress)
        low, high = 0.0, 1.0
        best = self._at_recall(high)
        for _ in range(_BISECTIONS):
            recall = (low + high) / 2
            selection = self._at_recall(recall)
            with self._trial(selection, f"trial {recall}") as (model, context):
                loss = perplexity_of(model, context, windows, self._progress) / reference - 1
            if loss <= limit:
                high, best = recall, selection
            else:
                low = recall
        self._progress.finish()
        return best

    def _context(self, model: Model, sparsity: Any) -> Context:
        n_ctx = self._plan.windows.n_ctx
        return Context(
            model, n_ctx=n_ctx, n_batch=min(512, n_ctx), sparsity=sparsity, n_threads=self._options.n_threads
        )

    @property
    def _other_bytes(self) -> float:
        """Bytes of weights outside the FFNs that a token touches."""
        with Context(self._model, n_ctx=8, sparsity="dense") as context:
            context.eval([0])
            touched = context.stats["weight_bytes_per_token"] or 0.0
        return touched - sum(ffn.dense_bytes for ffn in self._ffns)

    # Writing.

    def _write(
        self, path: Path, selection: Selection, identity: str, *, force: bool, progress: Progress | None = None
    ) -> OutputReport:
        return write_model(
            path, self._source, self._model, self._layers, selection, self._options.point, self._counts,
            identity=identity, force=force, progress=progress,
        )  # fmt: skip

    @contextmanager
    def _trial(self, selection: Selection, identity: str) -> Iterator[tuple[Model, Context]]:
        """A model with these predictors, while it is looked at."""
        with self._workspace.trial() as path:
            self._write(path, selection, identity, force=True)
            with Model(path, n_threads=self._options.n_threads) as model, self._context(model, "auto") as context:
                yield model, context

    def write(self, path: Path, selection: Selection, goal: _Goal, identity: str, *, force: bool) -> TrainReport:
        """Writes the model and sums up."""
        written = self._write(
            path, selection, f"train-predictor:{identity}:{goal}", force=force, progress=self._progress
        )
        if all(choice.candidate is None for choice in selection.layers):
            self._progress.note("no predictor pays for its bytes in any layer: the file has none, for exact mode")
        return TrainReport(
            path=path,
            n_bytes=written.n_bytes,
            fingerprint=written.fingerprint,
            goal=str(goal),
            n_train_tokens=self._plan.windows.n_train,
            n_held_out_tokens=self._plan.windows.n_held_out,
            n_resumed_layers=self._n_resumed,
            layers=selection.layers,
            table=self._table(selection),
        )

    def _table(self, selection: Selection) -> list[Totals]:
        other = self._other_bytes
        chosen = totals("chosen", selection, self._layers, other)
        rows = [("exact", exact(self._layers))]
        for name in dict.fromkeys(self._row_name(recipe) for layer in self._layers for recipe in layer.recipes):
            found = restricted(self._layers, lambda recipe, name=name: self._row_name(recipe) == name, chosen.recall)  # type: ignore[misc]
            if found is not None:
                ranks = compact_ranges(sorted({choice.rank for choice in found.layers}))
                rows.append((name.replace("best", f"best ({ranks})"), found))
        rows.append(("chosen", selection))
        times = self._times(rows) if self._keep_all else {}
        return [totals(name, found, self._layers, other, times.get(name)) for name, found in rows]

    def _row_name(self, recipe: Recipe) -> str:
        """A row is one recipe in all layers; of trained kinds, whose rank may differ from layer to layer, one type."""
        if recipe.kind in TRAINED_KINDS and not self._options.train_all_ranks:
            return f"{recipe.kind} best {recipe.type}"
        return str(recipe)

    def _times(self, rows: Sequence[tuple[str, Selection]]) -> Mapping[str, float]:
        """Milliseconds per single token, of trial files."""
        times = {}
        for name, selection in rows:
            with self._trial(selection, f"trial {name}") as (_, context):
                ((speed, _),) = decode_speed([context], self._plan.windows.held_out[0])
            times[name] = 1000 / speed if speed else float("nan")
        return times


def compact_ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, runs of neighbours by their ends: "0-4, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)

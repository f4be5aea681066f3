"""Which predictor, at which threshold, each layer gets, so that the whole model meets its goal at the least cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from powerinfer_py.sparsity.predictor.candidate import Recipe
from powerinfer_py.sparsity.predictor.choose import F64, choose
from powerinfer_py.sparsity.predictor.workspace import StoredLayer


@dataclass(frozen=True)
class LayerChoice:
    """What a layer gets, and what it did on the held-out text."""

    layer: int
    kind: str
    """"none": the layer is computed in exact mode."""
    rank: int
    type: str
    threshold: float
    recall: float
    """Share of the firing neurons that are predicted."""
    weighted_recall: float
    """The same, each neuron counted with |h| * ||down row||."""
    precision: float
    """Share of the predicted neurons that fire."""
    density: float
    """Share of neurons that fire."""
    predicted_density: float
    """Share of neurons predicted active; 1 for "none"."""
    predictor_bytes: int
    bytes_per_token: float
    """Of the layer's FFN weights, predictor included."""
    exact_bytes_per_token: float
    candidate: int | None
    """Its index among those tried."""
    threshold_index: int


@dataclass(frozen=True)
class Totals:
    """Sums over a model's FFNs."""

    name: str
    recall: float
    """Of all firings of all layers."""
    weighted_recall: float
    precision: float
    """Over the layers that have a predictor; likewise the density."""
    predicted_density: float
    bytes_per_token: float
    """Of all weights, those outside the FFNs included."""
    milliseconds_per_token: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Selection:
    """One option per layer."""

    layers: list[LayerChoice]

    @property
    def ffn_bytes(self) -> float:
        """Bytes of FFN weights touched per token."""
        return sum(layer.bytes_per_token for layer in self.layers)


def at_recall(layers: Sequence[StoredLayer], recall: float, *, allow_exact: bool) -> Selection | None:
    """The least bytes at a recall of the whole model; None where it cannot be met."""
    missed_limit = (1 - recall) * sum(layer.truth.firing for layer in layers)
    return _select(layers, lambda option: (option.n_bytes, option.missed), missed_limit, allow_exact=allow_exact)


def within_bytes(layers: Sequence[StoredLayer], ffn_bytes: float, *, allow_exact: bool) -> Selection | None:
    """The best recall within a number of FFN bytes; None where none is so small."""
    return _select(layers, lambda option: (option.missed, option.n_bytes), ffn_bytes, allow_exact=allow_exact)


def restricted(layers: Sequence[StoredLayer], wanted: Callable[[Recipe], bool], recall: float) -> Selection | None:
    """`at_recall` with a predictor of the wanted recipes in every layer; None where a layer has not tried one."""
    if not all(any(map(wanted, layer.recipes)) for layer in layers):
        return None
    missed_limit = (1 - recall) * sum(layer.truth.firing for layer in layers)
    return _select(
        layers, lambda option: (option.n_bytes, option.missed), missed_limit, allow_exact=False, wanted=wanted
    )


def exact(layers: Sequence[StoredLayer]) -> Selection:
    """No predictor anywhere."""
    return Selection([_choice(index, layer, None, 0) for index, layer in enumerate(layers)])


@dataclass(frozen=True)
class _Options:
    """All a layer can get: arrays over (candidate, threshold), exact mode as candidate -1."""

    candidate: np.ndarray[Any, np.dtype[np.intp]]
    threshold: np.ndarray[Any, np.dtype[np.intp]]
    missed: F64
    n_bytes: F64


def _select(
    layers: Sequence[StoredLayer],
    roles: Callable[[_Options], tuple[F64, F64]],
    limit: float,
    *,
    allow_exact: bool,
    wanted: Callable[[Recipe], bool] = lambda recipe: True,
) -> Selection | None:
    options = [_options_of(layer, allow_exact, wanted) for layer in layers]
    costs, uses = zip(*(roles(option) for option in options), strict=True)
    chosen = choose(costs, uses, limit)
    if chosen is None:
        return None
    picks = []
    for index, (layer, option, pick) in enumerate(zip(layers, options, chosen, strict=True)):
        candidate = int(option.candidate[pick])
        picks.append(_choice(index, layer, None if candidate < 0 else candidate, int(option.threshold[pick])))
    return Selection(picks)


def _options_of(layer: StoredLayer, allow_exact: bool, wanted: Callable[[Recipe], bool]) -> _Options:
    rows = [(-1, 0, 0.0, layer.truth.exact_bytes)] if allow_exact or not layer.curves else []
    for index, (recipe, curve) in enumerate(zip(layer.recipes, layer.curves, strict=True)):
        if wanted(recipe):
            missed = layer.truth.firing - curve.hit
            rows += [(index, k, missed[k], curve.bytes[k]) for k in range(len(curve))]
    candidate, threshold, missed, n_bytes = (np.array(column) for column in zip(*rows, strict=True))
    return _Options(candidate, threshold, missed.astype(np.float64), n_bytes)


def _choice(index: int, layer: StoredLayer, candidate: int | None, k: int) -> LayerChoice:
    truth = layer.truth
    pairs = truth.n_rows * truth.n_neurons
    density = truth.firing / pairs
    shared: dict[str, Any] = {
        "layer": index, "density": density, "exact_bytes_per_token": truth.exact_bytes,
        "candidate": candidate, "threshold_index": k,
    }  # fmt: skip
    if candidate is None:
        return LayerChoice(
            kind="none", rank=0, type="", threshold=0.0, recall=1.0, weighted_recall=1.0, precision=density,
            predicted_density=1.0, predictor_bytes=0, bytes_per_token=truth.exact_bytes, **shared,
        )  # fmt: skip
    recipe, curve = layer.recipes[candidate], layer.curves[candidate]
    return LayerChoice(
        kind=recipe.kind,
        rank=recipe.rank,
        type=recipe.type,
        threshold=float(curve.thresholds[k]),
        recall=_share(curve.hit[k], truth.firing),
        weighted_recall=_share(curve.hit_weight[k], truth.weight),
        precision=_share(curve.hit[k], curve.predicted[k]),
        predicted_density=float(curve.predicted[k]) / pairs,
        predictor_bytes=layer.predictor_bytes[candidate],
        bytes_per_token=float(curve.bytes[k]),
        **shared,
    )


def totals(
    name: str, selection: Selection, layers: Sequence[StoredLayer], other_bytes: float, ms: float | None = None
) -> Totals:
    """What a selection does for the whole model; `other_bytes`: those outside the FFNs."""
    firing = weight = hit = hit_weight = predicted = predicted_hit = pairs = 0.0
    for choice, layer in zip(selection.layers, layers, strict=True):
        truth = layer.truth
        firing, weight = firing + truth.firing, weight + truth.weight
        hit += choice.recall * truth.firing
        hit_weight += choice.weighted_recall * truth.weight
        if choice.candidate is not None:
            pairs += truth.n_rows * truth.n_neurons
            predicted += choice.predicted_density * truth.n_rows * truth.n_neurons
            predicted_hit += choice.recall * truth.firing
    return Totals(
        name, _share(hit, firing), _share(hit_weight, weight), _share(predicted_hit, predicted) if pairs else 1.0,
        _share(predicted, pairs), selection.ffn_bytes + other_bytes, ms,
    )  # fmt: skip


def _share(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else 1.0

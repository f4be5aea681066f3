"""Predictors: the closed form, the choice per layer, the written file, interruptions, bad input."""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.tiny_model import tiny_model
from helpers.with_text import write_text

import powerinfer_py as pi
from powerinfer_py.cli import main
from powerinfer_py.files import GgufInput, Progress
from powerinfer_py.sparsity.activation import load_counts, side_file_of
from powerinfer_py.sparsity.predictor import train_predictor
from powerinfer_py.sparsity.predictor.choose import choose, pareto
from powerinfer_py.sparsity.predictor.low_rank import LinearTarget, LowRank, Moments
from powerinfer_py.sparsity.predictor.recording import Recording
from powerinfer_py.sparsity.predictor.train import compact_ranges
from powerinfer_py.sparsity.profile import profile_model
from powerinfer_py.sparsity.reorder import reorder_model
from powerinfer_py.sparsity.text import load_windows

N_CTX = 64
SIZES = {"d_model": 64, "d_ff": 256, "n_heads": 4, "n_vocab": 384, "n_ctx": 128}
VARIANTS = {
    "llama": {"activation": "relu"},
    "llama-fatrelu": {"activation": "fatrelu", "activation_param": 0.3},
    "llama-relu2-biases": {"activation": "relu2", "mlp_bias": True},
    "llama-plain": {"activation": "relu", "down": "plain"},
    "bamboo": {"activation": "drelu"},
    "falcon": {"activation": "relu"},
    "opt": {"activation": "relu"},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt", 3000)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        name: tiny_model(folder / f"{name}.gguf", name.split("-")[0], density=0.15, **SIZES, **options).path
        for name, options in VARIANTS.items()
    }


def train(source: Path, text: Path, output: Path, **options):
    return train_predictor(str(source), [str(text)], output, **({"n_ctx": N_CTX, "n_threads": 1} | options))


class Notes(Progress):
    """Keeps what is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def recorded(model: pi.Model, windows: np.ndarray, point: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Per layer: the predictor's inputs and h, of exact mode."""
    z: list[list[np.ndarray]] = [[] for _ in range(model.n_layers)]
    h: list[list[np.ndarray]] = [[] for _ in range(model.n_layers)]
    with pi.Context(model, n_ctx=N_CTX, sparsity="exact") as context:
        context.set_tap(point, lambda layer, unit, rows: z[layer].append(rows.copy()))
        context.set_tap("h", lambda layer, unit, rows: h[layer].append(rows.copy()))
        for window in windows:
            context.reset()
            context.eval(window)
    return [np.concatenate(rows) for rows in z], [np.concatenate(rows) for rows in h]


def scores_of(file: GgufInput, layer: int, z: np.ndarray) -> np.ndarray:
    """The format's definition in double precision."""
    kind = file.get("powerinfer.predictor.kind")[layer]
    bias = file.read_f32(f"blk.{layer}.fc2.bias").ravel().astype(np.float64)
    if kind == "sign":
        name = next(name for name in file.tensors if name.startswith(f"blk.{layer}.ffn_") and "_sign" in name)
        words = file.read(name).view(np.uint32)
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, : z.shape[1]]
        agree = (bits[None] == (z < 0)[:, None]).sum(axis=2)
        return 2.0 * agree - z.shape[1] + bias
    hidden = z.astype(np.float64) @ file.read_f32(f"blk.{layer}.fc1.weight").T.astype(np.float64)
    if kind == "mlp":
        hidden = np.maximum(hidden, 0)
    return hidden @ file.read_f32(f"blk.{layer}.fc2.weight").T.astype(np.float64) + bias


def check_file(source: Path, output: Path, report, text: Path, point: str = "ffn_input") -> None:
    """Weights unchanged; what the report says is what the file's predictors do to the held-out text."""
    with GgufInput(source) as before, GgufInput(output) as after, pi.Model(source) as model:
        for name in before.tensors:
            assert np.array_equal(before.read(name), after.read(name))
        assert after.is_powerinfer
        assert after.get("powerinfer.predictor.input") == point
        assert after.get("powerinfer.fingerprint") == after.computed_fingerprint() == report.fingerprint
        windows = load_windows(model, [text], n_ctx=N_CTX)
        z, h = recorded(model, windows[-(len(windows) // 10) :], point)
        thresholds = after.get("powerinfer.predictor.threshold")
        found = firing = 0
        for layer, choice in enumerate(report.layers):
            assert after.get("powerinfer.predictor.kind")[layer] == choice.kind.rstrip("+")
            active = h[layer] != 0
            predicted = scores_of(after, layer, z[layer]) >= thresholds[layer]
            assert (predicted & active).sum() / active.sum() == pytest.approx(choice.recall, abs=0.01)
            assert predicted.mean() == pytest.approx(choice.predicted_density, abs=0.01)
            assert active.mean() == pytest.approx(choice.density, abs=1e-9)
            found, firing = found + (predicted & active).sum(), firing + active.sum()
        assert found / firing == pytest.approx(report.chosen.recall, abs=0.005)
        check_engine(output, report, windows[-(len(windows) // 10) :])


def check_engine(output: Path, report, windows: np.ndarray) -> None:
    """The engine computes the file with its predictors, which skip what the report says."""
    with pi.Model(output) as model, pi.Context(model, n_ctx=N_CTX, n_threads=1) as context:
        assert context.sparsity == "predictor"
        assert [layer.predictor_kind for layer in model.layers] == [choice.kind.rstrip("+") for choice in report.layers]
        for window in windows:
            context.reset()
            assert np.isfinite(context.eval(window)).all()
        for choice, density in zip(report.layers, context.stats["predicted_density"], strict=True):
            # The inputs of later layers are those that the skipped neurons leave.
            expected = None if choice.kind == "none" else pytest.approx(choice.predicted_density, abs=0.05)
            assert density == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_svd_of_every_architecture(variant, sources, text, tmp_path):
    output = tmp_path / "out.gguf"
    report = train(sources[variant], text, output, kind="svd", rank=32)
    check_file(sources[variant], output, report, text)
    assert report.chosen.recall >= 0.97
    assert report.chosen.predicted_density < 0.9


@pytest.mark.parametrize("variant", ["llama", "bamboo", "opt"])
@pytest.mark.parametrize("kind", ["sign", "svd+", "mlp"])
def test_other_kinds(kind, variant, sources, text, tmp_path):
    if kind in ("svd+", "mlp"):
        pytest.importorskip("torch")
    output = tmp_path / "out.gguf"
    report = train(sources[variant], text, output, kind=kind, rank=32, target_recall=0.9)
    check_file(sources[variant], output, report, text)
    assert report.chosen.recall >= 0.9
    assert {layer.kind for layer in report.layers} == {kind}


@pytest.mark.parametrize(("variant", "point"), [("llama", "residual"), ("opt", "residual"), ("falcon", "layer_input")])
def test_other_inputs(variant, point, sources, text, tmp_path):
    output = tmp_path / "out.gguf"
    report = train(sources[variant], text, output, kind="svd", rank=32, type="q8_0", input=point)
    check_file(sources[variant], output, report, text, point)
    assert report.chosen.recall >= 0.97


def test_training_improves_on_the_closed_form(sources, text, tmp_path):
    pytest.importorskip("torch")
    report = train(sources["llama"], text, tmp_path / "out.gguf", kind=["svd", "svd+"], rank=32, type="q8_0")
    rows = {row.name: row for row in report.table}
    assert rows["svd+ 32 Q8_0"].predicted_density < rows["svd 32 Q8_0"].predicted_density


def test_predictors_of_the_source_are_replaced(text, tmp_path):
    source = tiny_model(
        tmp_path / "m.gguf", "llama", activation="relu", density=0.15, predictor_rank=64, fc2_bias=True,
        threshold=0.7, **SIZES,
    ).path  # fmt: skip
    report = train(source, text, tmp_path / "out.gguf", kind="svd", rank=32)
    with GgufInput(report.path) as file:
        assert file.tensor("blk.0.fc1.weight").shape == (64, 32)
        assert file.get("powerinfer.sparse_threshold") is None


# The mathematics.


def test_the_closed_form_is_the_best_of_its_rank():
    rng = np.random.default_rng(0)
    mixed = rng.standard_normal((24, 24)) @ np.diag(0.7 ** np.arange(24))
    covariance, mean = mixed @ mixed.T + 1e-3 * np.eye(24), rng.standard_normal(24)
    weights = rng.standard_normal((60, 24)) * rng.uniform(0.1, 10, (60, 1))
    variance = ((weights @ covariance) * weights).sum(axis=1)
    low_rank = LowRank(LinearTarget(weights, weights @ mean, variance), Moments(mean, covariance))
    values = np.linalg.svd(weights @ np.linalg.cholesky(covariance) / np.sqrt(variance)[:, None], compute_uv=False)
    for rank in (1, 5, 24):
        down = low_rank.down(rank)
        up = low_rank.up(down)
        error = (weights - up @ down) @ np.linalg.cholesky(covariance) / np.sqrt(variance)[:, None]
        assert (error**2).sum() == pytest.approx((values[rank:] ** 2).sum(), abs=1e-8)
        sigma = low_rank.sigma(down, up)
        expected = np.sqrt((((weights - up @ down) @ covariance) * (weights - up @ down)).sum(axis=1))
        assert np.allclose(sigma, np.maximum(expected, 1e-3 * np.sqrt(variance)), rtol=1e-6)
        z = rng.standard_normal(24)
        score = up / sigma[:, None] @ (down @ z) + low_rank.bias(down, up / sigma[:, None], sigma)
        assert np.allclose(score * sigma, up @ (down @ (z - mean)) + weights @ mean)


def test_the_choice_equals_brute_force():
    rng = np.random.default_rng(1)
    for _ in range(30):
        costs = [rng.uniform(0, 10, rng.integers(1, 7)) for _ in range(4)]
        uses = [rng.uniform(0, 10, len(cost)) for cost in costs]
        limit = rng.uniform(sum(use.min() for use in uses), 30)
        sums = [
            sum(cost[i] for cost, i in zip(costs, picks, strict=True))
            for picks in itertools.product(*(range(len(cost)) for cost in costs))
            if sum(use[i] for use, i in zip(uses, picks, strict=True)) <= limit
        ]
        chosen = choose(costs, uses, limit)
        assert sum(use[i] for use, i in zip(uses, chosen, strict=True)) <= limit + 1e-9
        # Uses are rounded up to 1/8192 of the slack: a random instance meets such a tie hardly ever.
        assert sum(cost[i] for cost, i in zip(costs, chosen, strict=True)) == pytest.approx(min(sums), abs=0.05)
    assert choose([np.array([1.0])], [np.array([2.0])], 1.9) is None
    assert choose([np.array([1.0, 0.0])], [np.array([0.0, 2.0])], 0.0) == [0]


def test_pareto_keeps_what_is_not_beaten():
    cost, use = np.array([5.0, 3.0, 4.0, 1.0, 3.0]), np.array([0.0, 1.0, 1.0, 2.0, 1.5])
    assert pareto(cost, use).tolist() == [0, 1, 3]


def test_counts_and_ids_beside_a_plain_file_stay_with_it(text, tmp_path):
    source = tiny_model(tmp_path / "m.gguf", "llama", down="plain", activation="relu", density=0.15, **SIZES).path
    profile_model(source, text, n_ctx=N_CTX)
    reorder_model(source, tmp_path / "ordered.gguf")
    with GgufInput(tmp_path / "ordered.gguf") as file:
        expected = load_counts(file)
    goals = {"with": {"rank": 32}, "loss": {"max_perplexity_loss": 0.5}, "without": {"target_recall": 1.0}}
    for name, options in goals.items():
        report = train(tmp_path / "ordered.gguf", text, tmp_path / f"{name}.gguf", kind="svd", **options)
        with GgufInput(report.path) as file, pi.Model(report.path) as model:
            found = load_counts(file)
            assert np.array_equal(found.ids, expected.ids) and np.array_equal(found.counts, expected.counts)
            assert found.tokens == expected.tokens
            assert file.is_powerinfer == side_file_of(report.path).exists() ^ True
            assert file.is_powerinfer == (name != "without") == (model.sparsity == "predictor")


def test_a_reordered_file_without_its_ids_is_refused_at_once(text, tmp_path):
    source = tiny_model(
        tmp_path / "m.gguf",
        down="plain",
        activation="relu",
        metadata={"powerinfer.neuron_order": "activation"},
        **SIZES,
    ).path
    with pytest.raises(pi.FormatError, match="original numbers"):
        train(source, text, tmp_path / "out.gguf", kind="svd")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


# Goals.


def test_a_loss_of_perplexity_is_used_up(sources, text, tmp_path):
    cache = tmp_path / "cache"
    strict, loose = (
        train(sources["llama"], text, tmp_path / f"{loss}.gguf", kind="svd", cache_dir=cache, max_perplexity_loss=loss)
        for loss in (0.0, 9.0)
    )
    assert loose.chosen.recall < 0.5 < strict.chosen.recall
    assert loose.chosen.bytes_per_token < strict.chosen.bytes_per_token


def test_the_automatic_choice_is_on_the_front(sources, text, tmp_path):
    report = train(sources["llama"], text, tmp_path / "out.gguf", kind=["svd", "sign"])
    recall = report.chosen.recall
    assert recall >= 0.97
    for row in report.table[:-1]:
        # 1/8192 of the allowed misses per layer stays unused; nothing else is lost.
        assert report.chosen.bytes_per_token <= row.bytes_per_token * 1.002 or row.recall < recall
    total = sum(layer.bytes_per_token for layer in report.layers)
    exact = sum(layer.exact_bytes_per_token for layer in report.layers)
    assert total < exact


def test_reported_bytes_of_exact_mode_are_the_engines(sources, text, tmp_path):
    report = train(sources["llama"], text, tmp_path / "out.gguf", kind="svd", rank=32)
    with pi.Model(sources["llama"]) as model, pi.Context(model, n_ctx=N_CTX, sparsity="exact") as context:
        windows = load_windows(model, [text], n_ctx=N_CTX)
        for window in windows[-(len(windows) // 10) :]:
            context.reset()
            for token in window:
                context.eval([int(token)])
        assert report.table[0].bytes_per_token == pytest.approx(context.stats["weight_bytes_per_token"], rel=1e-3)


def test_a_budget_is_kept_and_its_recall_is_the_best(sources, text, tmp_path):
    cache = tmp_path / "cache"
    free = train(sources["llama"], text, tmp_path / "a.gguf", kind="svd", cache_dir=cache)
    budget = 0.97 * free.chosen.bytes_per_token
    report = train(
        sources["llama"], text, tmp_path / "b.gguf", kind="svd", cache_dir=cache, budget_bytes_per_token=budget
    )
    assert report.n_resumed_layers == len(report.layers)
    assert report.chosen.bytes_per_token <= budget
    assert report.chosen.recall < free.chosen.recall
    back = train(
        sources["llama"], text, tmp_path / "c.gguf", kind="svd", cache_dir=cache, target_recall=report.chosen.recall
    )
    assert back.chosen.bytes_per_token == pytest.approx(report.chosen.bytes_per_token, rel=2e-3)
    with pytest.raises(pi.InvalidArgument, match="at least"):
        train(sources["llama"], text, tmp_path / "d.gguf", kind="svd", cache_dir=cache, budget_bytes_per_token=1000)


def test_layers_where_nothing_pays_stay_without(text, tmp_path):
    source = tiny_model(tmp_path / "m.gguf", "llama", activation="relu", dtype="Q4_0", **SIZES).path
    notes = Notes()
    report = train(source, text, tmp_path / "out.gguf", kind="svd", type="q8_0", target_recall=0.999, progress=notes)
    assert {layer.kind for layer in report.layers} == {"none"}
    assert any("no predictor pays" in note for note in notes.notes)
    with GgufInput(report.path) as file, pi.Model(report.path) as model:
        assert file.get("powerinfer.predictor.kind") is None
        assert model.sparsity == "exact"


# Interruptions.


class Interrupted(Progress):
    """Ctrl-C when a step begins for the n-th time."""

    def __init__(self, title: str) -> None:
        self.title = title

    def start(self, title: str, total: float, unit: str = "") -> None:
        if title == self.title:
            raise KeyboardInterrupt


@pytest.mark.parametrize("title", ["reading text", "layer 0", "layer 1", "writing"])
def test_an_interrupted_run_goes_on(title, sources, text, tmp_path):
    undisturbed = train(sources["llama"], text, tmp_path / "a.gguf", kind=["svd", "sign"])
    output = tmp_path / "b.gguf"
    with pytest.raises(KeyboardInterrupt):
        train(sources["llama"], text, output, kind=["svd", "sign"], progress=Interrupted(title))
    assert not output.exists()
    report = train(sources["llama"], text, output, kind=["svd", "sign"])
    assert report.n_resumed_layers == {"reading text": 0, "layer 0": 0, "layer 1": 1, "writing": 2}[title]
    assert output.read_bytes() == undisturbed.path.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "b.gguf"]


def test_groups_of_layers_and_training_give_the_same_bytes(sources, text, tmp_path):
    pytest.importorskip("torch")
    options = {"kind": "auto", "type": "q8_0"}
    whole = train(sources["llama"], text, tmp_path / "a.gguf", **options)
    names = [row.name for row in whole.table]
    assert [re.sub(r"\(\d+(, \d+)*\)", "(N)", name) for name in names if "best" in name] == [
        "svd+ best (N) Q8_0",
        "mlp best (N) Q8_0",
    ]
    grouped = train(sources["llama"], text, tmp_path / "b.gguf", max_cache_bytes=1, **options)
    assert whole.path.read_bytes() == grouped.path.read_bytes()
    other = train(sources["llama"], text, tmp_path / "c.gguf", seed=1, kind="mlp", type="q8_0", rank=32)
    same = train(sources["llama"], text, tmp_path / "d.gguf", seed=2, kind="mlp", type="q8_0", rank=32)
    assert other.path.read_bytes() != same.path.read_bytes()


def test_another_text_does_not_use_what_was_kept(sources, text, tmp_path):
    cache = tmp_path / "cache"
    train(sources["llama"], text, tmp_path / "a.gguf", kind="svd", cache_dir=cache)
    other = write_text(tmp_path / "other.txt", 2000, seed=5)
    report = train(sources["llama"], other, tmp_path / "b.gguf", kind="svd", cache_dir=cache)
    assert report.n_resumed_layers == 0


def test_finished_layers_are_named_and_their_recordings_removed(sources, text, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    with monkeypatch.context() as killed:

        def kill(recording):
            raise KeyboardInterrupt

        killed.setattr(Recording, "remove", kill)
        with pytest.raises(KeyboardInterrupt):
            train(sources["llama"], text, tmp_path / "a.gguf", kind="svd", cache_dir=cache)
    assert (cache / "layer_0.h.f16").exists()
    notes = Notes()
    train(sources["llama"], text, tmp_path / "a.gguf", kind="svd", cache_dir=cache, progress=notes)
    assert any("layers 0 of 2 are finished" in note for note in notes.notes)
    assert not list(cache.glob("*.f16"))


def test_numbers_are_told_in_ranges():
    assert compact_ranges([0, 1, 2, 3, 4, 7]) == "0-4, 7"
    assert compact_ranges([2, 4, 5]) == "2, 4-5"
    assert compact_ranges([]) == ""


def test_what_a_killed_run_left_is_no_used_space(sources, text, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        train(sources["llama"], text, tmp_path / "a.gguf", kind="svd", cache_dir=cache, progress=Interrupted("layer 0"))
    sizes = {path: path.stat().st_size for path in cache.glob("*.f16")}
    for path in sizes:
        path.rename(path.with_name(path.name + ".partial"))

    source_bytes = sources["llama"].stat().st_size
    assert source_bytes < sum(sizes.values())

    class Usage:
        @property
        def free(self):
            return sum(sizes.values()) + (2 << 20) - sum(path.stat().st_size for path in cache.iterdir())

    monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage())
    train(sources["llama"], text, tmp_path / "a.gguf", kind="svd", cache_dir=cache)


def test_room_for_the_model_is_looked_for_first(sources, text, tmp_path, monkeypatch):
    class Usage:
        free = 1 << 20

    monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage)
    with pytest.raises(OSError, match="are free"):
        train(sources["llama"], text, tmp_path / "a.gguf", kind="svd")
    assert not list(tmp_path.iterdir())


# Bad input.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "cnn"}, "kind 'cnn'"),
        ({"rank": 33}, "rank 33"),
        ({"rank": 128}, "rank 128"),
        ({"type": "q9"}, "'Q9'"),
        ({"type": "q4_k"}, "blocks of 256"),
        ({"input": "logits"}, "'logits'"),
        ({"kind": "sign", "input": "residual"}, "sign reads ffn_input"),
        ({"target_recall": 1.5}, "1.5"),
        ({"target_recall": 0.9, "max_perplexity_loss": 0.01}, "one goal"),
        ({"budget_bytes_per_token": -1}, "budget"),
        ({"max_perplexity_loss": -0.1}, "perplexity"),
        ({"seed": -1}, "seed is -1"),
        ({"max_tokens": -5}, "max_tokens is -5"),
        ({"max_cache_bytes": float("nan")}, "--cache-gb"),
        ({"max_cache_bytes": float("inf")}, "--cache-gb"),
        ({"max_cache_bytes": -1e9}, "--cache-gb"),
        ({"max_perplexity_loss": 0.1, "n_ctx": 2}, "at least 4"),
        ({"n_ctx": 1}, "at least 4"),
    ],
)
def test_options_that_make_no_sense(options, message, sources, text, tmp_path):
    with pytest.raises(pi.InvalidArgument, match=message):
        train(sources["llama"], text, tmp_path / "out.gguf", **({"kind": "svd"} | options))
    assert not list(tmp_path.iterdir())


def test_odd_ranks_of_mlp_are_refused_at_once(sources, text, tmp_path):
    pytest.importorskip("torch")
    with pytest.raises(pi.InvalidArgument, match="rank 31: kind mlp needs an even rank"):
        train(sources["llama"], text, tmp_path / "out.gguf", kind=["svd", "mlp"], rank=[31, 32], type="f16")
    assert not list(tmp_path.iterdir())


def test_weights_that_are_not_finite_are_refused(text, tmp_path):
    gate = np.ones((SIZES["d_ff"], SIZES["d_model"]), np.float32)
    gate[3, 5] = np.nan
    broken = {"blk.1.ffn_gate.weight": (gate, "F32")}
    source = tiny_model(tmp_path / "broken.gguf", "llama", activation="relu", tensors=broken, **SIZES).path
    with pytest.raises(pi.FormatError, match=r"broken\.gguf: the logits are not finite"):
        train(source, text, tmp_path / "out.gguf", kind="svd")


@pytest.mark.parametrize(("n_words", "message"), [(15, "too few"), (50, "too short: 1 window")])
def test_too_little_text(n_words, message, sources, tmp_path):
    short = write_text(tmp_path / "short.txt", n_words)
    with pytest.raises(pi.InvalidArgument, match=rf"short\.txt: .*{message}"):
        train(sources["llama"], short, tmp_path / "out.gguf", kind="svd")
    assert [path.name for path in tmp_path.iterdir()] == ["short.txt"]


def test_an_activation_without_zeros(text, tmp_path):
    source = tiny_model(tmp_path / "silu.gguf", "llama", activation="silu", down="plain", **SIZES).path
    with pytest.raises(pi.UnsupportedError, match="silu has no zeros"):
        train(source, text, tmp_path / "out.gguf", kind="svd")


def test_outputs_that_exist_and_folders_of_others(sources, text, tmp_path):
    output = tmp_path / "out.gguf"
    output.write_bytes(b"precious")
    with pytest.raises(pi.InvalidArgument, match="exists"):
        train(sources["llama"], text, output, kind="svd")
    with pytest.raises(pi.InvalidArgument, match="never changed"):
        train(sources["llama"], text, sources["llama"], kind="svd", force=True)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "mine").write_text("precious")
    with pytest.raises(pi.InvalidArgument, match="no cache"):
        train(sources["llama"], text, tmp_path / "new.gguf", kind="svd", cache_dir=folder)
    (folder / "lock").touch()
    (folder / "layer_notes.txt").write_text("precious")
    for marker in ("[1]", '{"model": "a car"}', "no JSON"):
        with pytest.raises(pi.InvalidArgument, match="no cache"):
            train(sources["llama"], text, tmp_path / "new.gguf", kind="svd", cache_dir=folder)
        (folder / "identity.json").write_text(marker)
    (folder / "identity.json").unlink()
    assert output.read_bytes() == b"precious"
    assert sorted(path.name for path in folder.iterdir()) == ["layer_notes.txt", "lock", "mine"]
    with pytest.raises(pi.InvalidArgument, match="never changed"):
        train(sources["llama"], text, text, kind="svd", force=True)


def test_a_cache_deletes_what_is_its_own_only(sources, text, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "lock").touch()  # as a run leaves it that is killed at once
    train(sources["llama"], text, tmp_path / "a.gguf", kind="svd", cache_dir=cache)
    for name in ("layer_notes.txt", "layer_0.h.f16.partial"):
        (cache / name).touch()
    train(sources["llama"], text, tmp_path / "b.gguf", kind="sign", cache_dir=cache)
    names = [path.name for path in cache.iterdir()]
    assert sorted(names) == ["identity.json", "layer_0.npz", "layer_1.npz", "layer_notes.txt", "lock"]


def test_without_torch(sources, text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(pi.UnsupportedError, match=r"powerinfer_py\[train\]"):
        train(sources["llama"], text, tmp_path / "out.gguf", kind="mlp")
    report = train(sources["llama"], text, tmp_path / "out.gguf", kind="auto")
    assert {row.name.split()[0] for row in report.table} == {"exact", "svd", "sign", "chosen"}


# The command.


def run_command(capsys, *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_the_command(sources, text, tmp_path, capsys):
    common = ("train-predictor", sources["llama"], "--text", text, "-c", N_CTX, "--kind", "svd", "-t", 1)
    code, out, err = run_command(capsys, *common, "-o", tmp_path / "a.gguf", "--rank", 32, "--type", "q8_0")
    assert code == 0, err
    assert "svd 32 Q8_0" in out
    assert "exact mode" in out
    code, out, err = run_command(capsys, *common, "-o", tmp_path / "b.gguf", "--json", "--target-recall", 0.9)
    assert code == 0, err
    facts = json.loads(out)
    assert facts["table"][-1]["recall"] >= 0.9
    assert len(facts["layers"]) == 2
    code, out, err = run_command(capsys, *common, "-o", tmp_path / "b.gguf")
    assert code == 1
    assert "--force" in err
    for option, value in (("--cache-gb", "nan"), ("--cache-gb", "inf"), ("--seed", "-1")):
        code, out, err = run_command(capsys, *common, "-o", tmp_path / "c.gguf", option, value)
        assert (code, out) == (1, "")
        assert "internal error" not in err and "expected" in err

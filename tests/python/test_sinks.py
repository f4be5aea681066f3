"""Sinks in C++ against the same sums over what a Python callback sees; what flows past the attention's taps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.tiny_model import TinyModel, tiny_model

import powerinfer_py as pi
from powerinfer_py.sparsity.predictor import recording

TOKENS = [1, 300, 17, 80, 311, 5, 260, 99]
SMALL = {"d_model": 64, "d_ff": 192, "n_heads": 4, "n_vocab": 384, "n_ctx": 64}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return tiny_model(tmp_path_factory.mktemp("sinks") / "m.gguf", activation="relu", density=0.2, **SMALL)


def tapped(model: pi.Model, point: str, **options: object) -> np.ndarray:
    """What a callback sees of a point: [n_layers, n_tokens, width]."""
    rows: list[list[np.ndarray]] = [[] for _ in range(model.n_layers)]
    with pi.Context(model, kv_type="f32", **options) as context:
        context.set_tap(point, lambda layer, unit, values: rows[layer].extend(values))
        context.eval(TOKENS)
    return np.stack([np.stack(layer) for layer in rows])


def test_counts_and_sums(tiny: TinyModel) -> None:
    with pi.Model(tiny.path) as model:
        h, x = tapped(model, "h"), tapped(model, "ffn_input")
        counter, sums = pi.ActivationCounter(2, model.d_ff), pi.SquareSums(2, model.d_model)
        with pi.Context(model, kv_type="f32", n_batch=3) as context:
            context.set_tap("h", counter)
            context.set_tap("ffn_input", sums)
            for _ in range(2):
                context.reset()
                context.eval(TOKENS)
            context.set_tap("h", None)
            context.reset()
            context.eval(TOKENS)
        assert counter.counts.dtype == np.uint64
        assert np.array_equal(counter.counts, 2 * np.count_nonzero(h, axis=1))
        assert counter.n_rows.tolist() == [2 * len(TOKENS)] * 2
        assert np.allclose(sums.sums, 3 * np.square(x.astype(np.float64)).sum(axis=1), rtol=1e-12)
        assert sums.n_rows.tolist() == [3 * len(TOKENS)] * 2
        for sink in (counter, sums):
            sink.reset()
            assert sink.n_rows.tolist() == [0, 0]
        assert not counter.counts.any() and not sums.sums.any()


def test_recorder(tiny: TinyModel) -> None:
    with pi.Model(tiny.path) as model:
        h = tapped(model, "h")
        recorder = pi.RowRecorder(model.n_layers, model.d_ff, [1])
        with pi.Context(model, kv_type="f32") as context:
            context.set_tap("h", recorder)
            context.eval(TOKENS)
        assert recorder.take(0).shape == (0, model.d_ff)
        rows = recorder.take(1)
        assert rows.dtype == np.float16
        assert np.array_equal(rows, h[1].astype(np.float16))
        assert np.array_equal(rows != 0, h[1] != 0)
        assert recorder.take(1).shape == (0, model.d_ff)


def test_halves_lose_nothing_to_zero_or_infinity(tmp_path: Path) -> None:
    embedding = np.zeros((384, 64), np.float32)
    embedding[5, :5] = [1e9, -1e9, 1e-30, -1e-30, 0]
    tiny = tiny_model(tmp_path / "m.gguf", tensors={"token_embd.weight": (embedding, "F32")}, **SMALL)
    with pi.Model(tiny.path) as model, pi.Context(model) as context:
        recorder = pi.RowRecorder(model.n_layers, model.d_model, [0])
        context.set_tap("layer_input", recorder)
        context.eval([5])
    assert recorder.take(0)[0, :5].tolist() == [65504, -65504, 2**-24, -(2**-24), 0]


def test_a_sink_of_another_shape(tiny: TinyModel) -> None:
    with pi.Model(tiny.path) as model, pi.Context(model) as context:
        for sink in (pi.ActivationCounter(2, 7), pi.SquareSums(1, model.d_ff), pi.RowRecorder(2, 7, [0])):
            context.set_tap("h", sink)
            with pytest.raises(pi.InvalidArgument, match="192"):
                context.eval(TOKENS)
            context.reset()
        with pytest.raises(TypeError):
            context.set_tap("h", pi.ActivationCounter)  # the class itself, called with rows
            context.eval(TOKENS)
    for make in (lambda: pi.ActivationCounter(0, 4), lambda: pi.SquareSums(2, 0), lambda: pi.RowRecorder(2, 4, [2])):
        with pytest.raises(pi.InvalidArgument, match="sink"):
            make()
    with pytest.raises(pi.InvalidArgument, match="layer 2"):
        pi.RowRecorder(2, 4, [0]).take(2)


@pytest.mark.parametrize(("arch", "style"), [("llama", "7b"), ("opt", "7b"), ("falcon", "7b"), ("falcon", "40b")])
def test_attention_taps(arch: str, style: str, tmp_path: Path) -> None:
    """The inputs of the attention's linear maps: a norm's output, and what the output projection adds to the stream."""
    tiny = tiny_model(tmp_path / "m.gguf", arch, activation="relu", falcon_style=style, **SMALL)
    with pi.Model(tiny.path) as model:
        layer_input, read, result = (tapped(model, point) for point in ("layer_input", "attn_input", "attn_output"))
        added = tapped(model, "ffn_output") if arch == "falcon" else 0
        after = tapped(model, "residual")
        for layer in range(2):
            get = {n.removeprefix(f"blk.{layer}."): v for n, v in tiny.tensors.items()}.get
            norm = "attn_norm_2" if style == "40b" else "attn_norm"
            x = layer_input[layer].astype(np.float64)
            x = x if arch == "llama" else x - x.mean(axis=1, keepdims=True)
            x /= np.sqrt(np.square(x).mean(axis=1, keepdims=True) + 1e-5)
            expected = x * get(f"{norm}.weight") + get(f"{norm}.bias", 0)
            assert np.allclose(read[layer], expected, atol=1e-4)
            projected = result[layer] @ get("attn_output.weight").T + get("attn_output.bias", 0)
            if arch != "falcon":
                assert np.allclose(after[layer], layer_input[layer] + projected, atol=1e-3)
            elif layer == 0:
                assert np.allclose(layer_input[1], layer_input[0] + projected + added[0], atol=1e-3)


def test_recordings_are_what_the_taps_show(tiny: TinyModel, tmp_path: Path) -> None:
    windows = recording.Windows(np.array([TOKENS], np.int32), np.array([TOKENS[::-1]], np.int32))
    with pi.Model(tiny.path) as model:
        plan = recording.Plan(windows, "residual", with_ffn_input=True, train_h=False)
        kept = {1: recording.Recording(tmp_path, 1, plan, model.d_model, model.d_ff)}
        recording.record(model, plan, kept, 1, 1, recording.Progress())
        for what, point in (("z", "residual"), ("x", "ffn_input")):
            rows = getattr(kept[1], what)(held_out=False)
            assert np.allclose(rows, tapped(model, point, sparsity="exact")[1], rtol=1e-2, atol=1e-2)
        assert kept[1].h(held_out=True).shape == (len(TOKENS), model.d_ff)

"""Model and Context: sizes, evaluation, state, threads, observation, errors."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.tiny_model import TinyModel, tiny_model

import powerinfer_py as pi

TOKENS = [1, 300, 301, 302, 303, 304, 305, 306]


@pytest.fixture
def context(model: pi.Model) -> pi.Context:
    return pi.Context(model, n_ctx=128, kv_type="f32")


def test_model_properties(tiny: TinyModel, model: pi.Model) -> None:
    for name in ("n_vocab", "d_model", "d_ff", "n_layers", "n_heads", "n_kv_heads", "head_dim"):
        assert getattr(model, name) == tiny.config[name], name
    assert model.n_ctx_train == tiny.config["n_ctx"]
    assert model.architecture == "llama"
    assert model.name == "tiny llama"
    assert model.path == tiny.path
    predictors = sum(v.size for k, v in tiny.tensors.items() if ".fc" in k)
    assert model.n_params == sum(v.size for v in tiny.tensors.values()) - predictors
    assert model.weight_bytes == 4 * sum(v.size for v in tiny.tensors.values())
    assert model.activation == "relu"
    assert "hidden_activation" in model.activation_source
    assert model.has_transposed_down
    assert model.sparsity == "predictor"
    assert [mode.name for mode in model.modes if mode.available] == ["dense", "exact", "predictor"]
    assert [layer.predictor_rank for layer in model.layers] == tiny.config["ranks"]
    assert {layer.predictor_kind for layer in model.layers} == {"mlp"}
    assert "lossless" in model.mode_summary("exact")
    assert "recall" in model.mode_summary()
    assert model.metadata["llama.block_count"] == tiny.config["n_layers"]
    assert len(model.tensors) == len(tiny.tensors)
    assert "tiny llama" not in repr(model) and "llama" in repr(model)


def test_tokenize_and_back(model: pi.Model) -> None:
    text = "once upon a time, é漢😀"
    tokens = model.tokenize(text)
    assert tokens[0] == model.tokenizer.bos
    assert model.tokenize(text, add_bos=False) == tokens[1:]
    assert model.tokenize(text.encode()) == tokens
    assert model.detokenize(tokens) == text
    assert model.tokenize("<s>", add_bos=False, special=True) == [model.tokenizer.bos]
    assert model.tokenize("<s>", add_bos=False) != [model.tokenizer.bos]
    assert model.detokenize(model.tokenize("a \ud800 b")) == "a \ufffd b"
    with pytest.raises(TypeError):
        model.tokenize(3)  # type: ignore[arg-type]
    with pytest.raises(pi.InvalidArgument):
        model.detokenize([10**6])


def test_stream_decoder_never_emits_half_a_character(model: pi.Model) -> None:
    text = "a é漢😀 z"
    decoder = pi.StreamDecoder(model.tokenizer)
    pieces = [decoder.push(token) for token in model.tokenize(text)]
    assert "".join(pieces) + decoder.finish() == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert sum(bool(piece) for piece in pieces) < len(pieces)


def test_eval_shapes_and_copies(context: pi.Context) -> None:
    n_vocab = 512
    last = context.eval(TOKENS)
    assert last.shape == (n_vocab,) and last.dtype == np.float32
    assert context.n_past == len(TOKENS)
    kept = last.copy()
    context.reset()
    everything = context.eval(np.array(TOKENS, np.int64), all_logits=True)
    assert everything.shape == (len(TOKENS), n_vocab)
    assert np.array_equal(last, kept)
    assert np.array_equal(everything[-1], last)

    context.reset()
    out = np.empty((len(TOKENS), n_vocab), np.float32)
    assert context.eval(TOKENS, all_logits=True, out=out) is out
    assert np.array_equal(out, everything)


def test_eval_refuses_a_wrong_out(context: pi.Context) -> None:
    read_only = np.empty(512, np.float32)
    read_only.flags.writeable = False
    for bad in (np.empty(511, np.float32), np.empty(512), np.empty((512, 2), np.float32)[:, 0], read_only):
        with pytest.raises(pi.InvalidArgument, match="out"):
            context.eval(TOKENS, out=bad)
    assert context.n_past == 0


def test_continuing_truncating_and_copying(model: pi.Model) -> None:
    context = pi.Context(model, n_ctx=64, n_seqs=2)
    one_by_one = [context.eval([token]) for token in TOKENS]
    context.truncate(4)
    assert context.n_past == 4
    assert np.array_equal(context.eval([TOKENS[4]]), one_by_one[4])
    context.copy_sequence(0, 1)
    assert context.n_past_of(1) == 5
    rows = context.forward([(TOKENS[5], 5, 0, True), (TOKENS[5], 5, 1, True), (TOKENS[6], 6, 1, False)])
    assert rows.shape == (2, 512)
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], one_by_one[5])
    assert (context.n_past_of(0), context.n_past_of(1)) == (6, 7)
    for n in (-1, 7):
        with pytest.raises(pi.InvalidArgument):
            context.truncate(n)


def test_a_full_context_is_an_error_that_changes_nothing(model: pi.Model) -> None:
    context = pi.Context(model, n_ctx=8)
    context.eval(TOKENS[:6])
    before = context.eval([5])
    with pytest.raises(pi.StateError, match="full"):
        context.eval([7, 8])
    assert context.n_past == 7
    context.truncate(6)
    assert np.array_equal(context.eval([5]), before)


@pytest.mark.parametrize("tokens", [[], [512], [-1], [2**31], [2**70], np.zeros((2, 2), np.int32)])
def test_bad_tokens(context: pi.Context, tokens: list[int]) -> None:
    with pytest.raises(pi.InvalidArgument):
        context.eval(tokens)
    assert context.n_past == 0


@pytest.mark.parametrize("tokens", ["abc", b"abc", [1.5], 7, None, np.zeros(2)])
def test_tokens_of_a_wrong_kind(context: pi.Context, tokens: object) -> None:
    with pytest.raises(TypeError):
        context.eval(tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"n_ctx": 0},
        {"n_ctx": -1},
        {"n_ctx": 2**40},
        {"n_seqs": 0},
        {"n_batch": 0},
        {"n_threads": 0},
        {"n_threads": 10**6},
        {"n_threads_batch": -1},
        {"kv_type": "q8_0"},
        {"sparsity": "sometimes"},
        {"threshold": math.nan},
        {"threshold": [0.0]},
        {"threshold": [0.0] * 5},
        {"threshold": []},
    ],
)
def test_bad_context_options(model: pi.Model, options: dict[str, object]) -> None:
    if options == {"threshold": [0.0]}:
        pi.Context(model, n_ctx=8, threshold=[0.0])  # one value is good for all layers
        return
    with pytest.raises(pi.InvalidArgument, match=next(iter(options)).split("_batch")[0]):
        pi.Context(model, **{"n_ctx": 8, **options})  # type: ignore[arg-type]


def test_a_context_too_large_for_the_memory(model: pi.Model) -> None:
    with pytest.raises(pi.OutOfMemoryError, match="MiB"):
        pi.Context(model, n_ctx=2**22, n_seqs=2**14)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"sparsity": "exact"}, pi.UnsupportedError),
        ({"sparsity": "predictor"}, pi.UnsupportedError),
        ({"sparsity": "threshold"}, pi.UnsupportedError),
        ({"sparsity": "x"}, pi.InvalidArgument),
        ({"activation": "swish"}, pi.Error),
        ({"threshold": math.nan}, pi.InvalidArgument),
        ({"device": "cuda"}, pi.DeviceError),
        ({"weights": "copy"}, pi.InvalidArgument),
        ({"n_threads": -3}, pi.InvalidArgument),
    ],
)
def test_bad_model_options(plain_path: Path, options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        pi.Model(plain_path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_impossible_paths(path: str) -> None:
    with pytest.raises(pi.InvalidArgument, match="file name"):
        pi.Model(path)


def test_activation_override_and_weights_modes(plain_path: Path) -> None:
    assert pi.Model(plain_path).activation == "silu"
    relu = pi.Model(plain_path, activation="fatrelu:0.01", weights="read")
    assert relu.activation == "fatrelu:0.01"
    assert relu.sparsity == "exact"
    mapped = pi.Context(pi.Model(plain_path, weights="mmap"), n_ctx=8).eval([1, 2])
    read = pi.Context(pi.Model(plain_path, weights="read"), n_ctx=8).eval([1, 2])
    assert np.array_equal(mapped, read)


def test_a_model_without_a_vocabulary(plain_path: Path) -> None:
    with pi.Model(plain_path) as model, pi.Context(model, n_ctx=32) as context:
        assert not model.has_tokenizer
        with pytest.raises(pi.UnsupportedError, match="vocabulary"):
            model.tokenize("a")
        with pytest.raises(pi.UnsupportedError, match="token ids"):
            context.generate("a")
        pieces = list(context.generate([1, 2], max_tokens=3, seed=1))
        assert [piece.text for piece in pieces] == ["", "", ""]
        assert len({piece.token for piece in pieces}) > 1


def test_closing(tiny: TinyModel) -> None:
    model = pi.Model(tiny.path)
    context = pi.Context(model, n_ctx=16)
    model.close()
    model.close()
    assert "closed" in repr(model)
    with pytest.raises(pi.StateError, match="closed"):
        _ = model.n_vocab
    with pytest.raises(pi.StateError, match="closed"):
        pi.Context(model)
    assert context.eval([1]).shape == (512,)
    with context:
        pass
    with pytest.raises(pi.StateError, match="closed"):
        context.eval([1])


def test_stats_have_the_documented_schema(model: pi.Model) -> None:
    context = pi.Context(model, n_ctx=64, n_threads=1, n_threads_batch=2)
    empty = context.stats
    assert empty.keys() == pi.Stats.__annotations__.keys()
    assert empty["generate_tokens_per_second"] is None and empty["mean_density"] is None
    context.eval(TOKENS)
    for token in TOKENS[:3]:
        context.eval([token])
    stats = context.stats
    assert (stats["n_prompt_tokens"], stats["n_generated_tokens"]) == (len(TOKENS), 3)
    assert (stats["n_threads"], stats["n_threads_batch"]) == (1, 2)
    assert stats["mode"] == "predictor" and stats["isa"]
    for values in (stats["density"], stats["predicted_density"]):
        assert len(values) == model.n_layers
        assert all(value is not None and 0 < value < 1 for value in values)
    assert stats["mean_density"] == pytest.approx(np.mean(stats["density"]))
    assert 0 < (stats["weight_bytes_per_token"] or 0) < model.weight_bytes
    assert (
        stats["kv_bytes"] == 2 * 2 * model.n_layers * model.n_kv_heads * model.head_dim * 256 or stats["kv_bytes"] > 0
    )
    context.reset_stats()
    assert context.stats["n_prompt_tokens"] == 0


def test_taps_and_masks(tiny: TinyModel, model: pi.Model) -> None:
    context = pi.Context(model, n_ctx=32, sparsity="dense")
    seen: dict[str, list[tuple[int, int, np.ndarray]]] = {}
    widths = dict.fromkeys(("layer_input", "residual", "ffn_input", "ffn_output"), model.d_model)
    widths |= {"attn_input": model.d_model, "attn_output": model.n_heads * model.head_dim}
    widths |= {"gate": model.d_ff, "h": model.d_ff}
    for point in widths:
        context.set_tap(point, lambda *event, point=point: seen.setdefault(point, []).append(event))  # type: ignore[arg-type]
    plain = context.eval(TOKENS)
    for point, width in widths.items():
        assert {unit for _, unit, _ in seen[point]} == {0}
        assert all(values.shape[1] == width and values.dtype == np.float32 for _, _, values in seen[point])
        for layer in range(model.n_layers):
            assert sum(len(values) for i, _, values in seen[point] if i == layer) == len(TOKENS)
    embedded = np.concatenate([values for layer, _, values in seen["layer_input"] if layer == 0])
    assert np.array_equal(embedded, tiny.tensors["token_embd.weight"][TOKENS])

    context.reset()
    asked = []

    def all_active(layer: int, unit: int, token: int, position: int, sequence: int) -> np.ndarray:
        asked.append((layer, token, position, sequence))
        return np.ones(model.d_ff, bool)

    context.set_mask(all_active)
    assert np.array_equal(context.eval(TOKENS), plain)
    assert sorted(asked) == sorted((i, t, p, 0) for i in range(model.n_layers) for p, t in enumerate(TOKENS))

    context.reset()
    seen.clear()
    context.set_mask(lambda *_: np.zeros(model.d_ff, bool))
    context.eval(TOKENS)
    assert not any(values.any() for _, _, values in seen["h"] + seen["ffn_output"])

    context.reset()
    context.set_mask(lambda *_: None)
    for point in widths:
        context.set_tap(point, None)  # type: ignore[arg-type]
    assert np.array_equal(context.eval(TOKENS), plain)
    with pytest.raises(pi.InvalidArgument, match="ffn_input"):
        context.set_tap("nowhere", None)  # type: ignore[arg-type]


def test_errors_in_callbacks_reach_the_caller(context: pi.Context, model: pi.Model) -> None:
    plain = context.eval(TOKENS)
    context.reset()

    def fail(*_: object) -> None:
        raise KeyError("from the callback")

    for tokens in (TOKENS, TOKENS[:1]):
        context.set_tap("residual", fail)
        with pytest.raises(KeyError, match="from the callback"):
            context.eval(tokens)
        context.set_tap("residual", None)
        context.set_mask(lambda *_: np.ones(3, bool))
        with pytest.raises(pi.InvalidArgument, match="mask"):
            context.eval(tokens)
        context.set_mask(None)
        assert context.n_past == 0
    assert np.array_equal(context.eval(TOKENS), plain)


# Threads and interruption.


def slow_context(model: pi.Model, seconds: float = 0.002) -> pi.Context:
    """A context whose passes of 8 tokens take at least 2 x `seconds`."""
    context = pi.Context(model, n_ctx=2048, n_batch=8)
    context.set_tap("residual", lambda *_: time.sleep(seconds))
    return context


def test_a_second_thread_gets_an_error(model: pi.Model) -> None:
    context = slow_context(model, 0.02)
    errors: list[Exception] = []

    def attempt(work: Callable[[], object]) -> None:  # either thread may be the second one
        try:
            work()
        except pi.StateError as error:
            errors.append(error)

    thread = threading.Thread(target=attempt, args=(lambda: context.eval([1] * 80),))
    thread.start()
    deadline = time.monotonic() + 10
    while not errors and thread.is_alive() and time.monotonic() < deadline:
        attempt(lambda: context.truncate(0))
    thread.join()
    assert errors and "another thread" in str(errors[0])
    assert context.n_past == 80


def test_cancel_from_another_thread(model: pi.Model) -> None:
    context = slow_context(model)
    threading.Timer(0.1, context.cancel).start()
    with pytest.raises(pi.CancelledError):
        context.eval([1] * 2000)
    assert context.n_past % 8 == 0 and context.n_past < 2000
    assert context.eval([1]).shape == (512,)


def test_ctrl_c_in_a_long_prompt(model: pi.Model) -> None:
    context = slow_context(model)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    start = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        context.eval([1] * 2000)
    assert time.monotonic() - start < 0.8
    assert context.n_past % 8 == 0 and context.n_past < 2000
    context.set_tap("residual", None)
    assert context.eval([1]).shape == (512,)


def test_the_gil_is_released(model: pi.Model) -> None:
    context = pi.Context(model, n_ctx=4096, n_batch=4096, n_threads=1)
    finished = threading.Event()

    def work() -> None:
        context.eval([1] * 4000)
        finished.set()

    threading.Thread(target=work).start()
    n_steps = 0
    while not finished.is_set():
        n_steps += 1
        time.sleep(0.001)
    assert n_steps > 3


def test_two_models_in_two_threads_give_the_bits_of_each_alone(tiny: TinyModel, tmp_path: Path) -> None:
    other = tiny_model(tmp_path / "other.gguf", "opt", dtype="Q8_0", seed=5)
    models = [pi.Model(tiny.path, n_threads=2), pi.Model(other.path, n_threads=2)]

    def texts(model: pi.Model) -> list[int]:
        with pi.Context(model, n_ctx=128) as context:
            return [piece.token for piece in context.generate([1, 300], max_tokens=60, seed=3)]

    alone = [texts(model) for model in models]
    together: list[list[int]] = [[], []]

    def run(i: int) -> None:
        together[i] = texts(models[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


# Messages.


def test_silent_by_default_and_logging_on_request(tiny: TinyModel, caplog: pytest.LogCaptureFixture) -> None:
    code = f"import powerinfer_py as pi; pi.Context(pi.Model({str(tiny.path)!r})).eval([1])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")

    with caplog.at_level(logging.INFO, logger="powerinfer_py"):
        pi.Context(pi.Model(tiny.path))
    assert any("context of 256" in record.message for record in caplog.records)


def test_log_callback(tiny: TinyModel) -> None:
    messages: list[tuple[str, str]] = []
    pi.set_log_callback(lambda level, message: messages.append((level, message)))
    try:
        pi.Model(tiny.path)
        assert any(level == "info" and "tiny llama" in message for level, message in messages)
        n = len(messages)
    finally:
        pi.set_log_callback(None)
    pi.Model(tiny.path)
    assert len(messages) == n
    with pytest.raises(TypeError):
        pi.set_log_callback(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.float32(0.5), np.int64(1), np.array(0.5), np.array([0.5]), [0.5], 1])
def test_thresholds_of_any_numeric_kind(tiny: TinyModel, value: object) -> None:
    with pi.Model(tiny.path, threshold=value) as model, pi.Context(model, n_ctx=8, threshold=value) as context:
        context.eval([1])


@pytest.mark.parametrize("value", ["0.5", "a", [], [[0.5]], object()])
def test_thresholds_that_are_none(tiny: TinyModel, value: object) -> None:
    with pytest.raises(pi.InvalidArgument, match="threshold"):
        pi.Model(tiny.path, threshold=value)


def test_none_is_no_number(model: pi.Model) -> None:
    with pi.Context(model, n_ctx=8) as context:
        context.eval([1, 2])
        with pytest.raises(TypeError):
            context.truncate(None)
        assert context.n_past == 2
    with pytest.raises(TypeError):
        pi.Sampler().accept(None)
    with pytest.raises(TypeError, match="Model"):
        pi.Context("model.gguf")

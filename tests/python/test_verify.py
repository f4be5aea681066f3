"""Comparing a model with its source: every number against plain numpy, bounds, fingerprints, refusals."""

import json
import subprocess
import sys

import numpy as np
import pytest
from helpers.compare import log_softmax
from helpers.tiny_model import tiny_model
from helpers.with_text import write_text

import powerinfer_py as pi
from powerinfer_py.files import GgufInput, GgufOutput
from powerinfer_py.sparsity import scoring, verify
from powerinfer_py.sparsity.predictor import train_predictor
from powerinfer_py.sparsity.text import load_windows
from powerinfer_py.sparsity.verify import Bounds, verify_model

COMMAND = [sys.executable, "-m", "powerinfer_py", "verify"]
N_CTX, N_WINDOWS = 50, 6
SIZES = {"d_ff": 320, "n_layers": 3, "activation": "relu", "density": 0.2}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """(quantized model, its source, text)"""
    folder = tmp_path_factory.mktemp("verify")
    source = tiny_model(folder / "source.gguf", "llama", **SIZES).path
    quantized = tiny_model(folder / "quantized.gguf", "llama", dtype="Q4_0", **SIZES).path
    with GgufInput(quantized) as file:  # a copy that stores its fingerprint
        output = GgufOutput(folder / "stored.gguf", powerinfer=True)
        output.copy_metadata(file)
        for tensor in file.tensors.values():
            output.add_tensor(tensor.name, tensor.type, tensor.shape)
        output.write(lambda spec: file.chunks(file.tensor(spec.name)), identity="")
    return folder / "stored.gguf", source, write_text(folder / "text.txt", 400)


def everything(path, windows):
    """Logits [n_windows, n_ctx, n_vocab] and FFN outputs [n_layers, n_windows * n_ctx, d_model], in one pass each."""
    with pi.Model(path) as model, pi.Context(model, n_ctx=N_CTX, sparsity="dense") as context:
        outputs = [[] for _ in range(model.n_layers)]
        context.set_tap("ffn_output", lambda layer, unit, values: outputs[layer].append(values))
        logits = []
        for window in windows:
            context.reset()
            logits.append(context.eval(window, all_logits=True))
    return np.stack(logits), np.stack([np.concatenate(rows) for rows in outputs]).astype(np.float64)


@pytest.fixture(scope="module")
def expected(files):
    model, source, text = files
    with pi.Model(model) as loaded:
        windows = load_windows(loaded, [text], n_ctx=N_CTX, max_windows=N_WINDOWS)
    ours, our_layers = everything(model, windows)
    theirs, their_layers = everything(source, windows)
    q, p = (log_softmax(logits[:, N_CTX // 2 : -1]) for logits in (ours, theirs))
    targets = windows[:, N_CTX // 2 + 1 :]
    kl = (np.exp(p) * (p - q)).sum(axis=-1)
    nll = [-np.take_along_axis(x, targets[..., None], axis=-1).mean() for x in (q, p)]
    return {
        "n_scored": targets.size,
        "mean_kl": kl.mean(),
        "largest_kl": kl.max(),
        "top1": (q.argmax(axis=-1) == p.argmax(axis=-1)).mean(),
        "perplexity": np.exp(nll[0]),
        "against_perplexity": np.exp(nll[1]),
        "ppl_ratio": np.exp(nll[0] - nll[1]),
        "layer_errors": np.linalg.norm(our_layers - their_layers, axis=(1, 2))
        / np.linalg.norm(their_layers, axis=(1, 2)),
    }


@pytest.mark.parametrize("n_rows", [1, 7, 25, 1000])
def test_numbers_are_those_of_numpy(files, expected, n_rows, monkeypatch):
    monkeypatch.setattr(verify, "rows_at_once", lambda n: n_rows)
    monkeypatch.setattr(verify, "_FLOATS_AT_ONCE", 512 * 10)
    model, source, text = files
    with pi.Model(model) as loaded:
        report = verify_model(loaded, source, [text], n_ctx=N_CTX, max_tokens=N_CTX * N_WINDOWS)
    for name, value in expected.items():
        assert np.allclose(getattr(report, name), value, rtol=1e-6), name
    assert expected["mean_kl"] > 1e-4 and 0.05 < max(expected["layer_errors"]) < 1
    assert (report.mode, report.against_mode) == ("exact", "exact")
    assert report.failures == []


def test_a_model_against_itself(files):
    model, _, text = files
    with pi.Model(model) as loaded:
        report = verify_model(loaded, model, [text], Bounds(0.0, 1.0, 1.0), n_ctx=N_CTX)
    assert report.mean_kl == report.largest_kl == 0 and report.top1 == report.ppl_ratio == 1
    assert report.layer_errors == [0, 0, 0] and report.failures == []
    assert report.fingerprint == report.stored_fingerprint


def test_recall_is_that_of_an_audit(files, tmp_path):
    _, _, text = files
    path = tiny_model(tmp_path / "m.gguf", predictor_rank=[64, 0, 32], threshold=0.1, **SIZES).path
    with pi.Model(path) as model:
        report = verify_model(model, path, [text], Bounds(min_recall=0.99), n_ctx=N_CTX, max_tokens=100)
        windows = load_windows(model, [text], n_ctx=N_CTX, max_windows=2)
        with pi.Context(model, n_ctx=N_CTX, audit=True) as context:
            for window in windows:
                context.reset()
                context.eval(window)
            audit, density = context.audit, context.stats["density"]
    assert report.recall == [audit[0].recall, None, audit[2].recall]
    exact = density[1] * windows.size * SIZES["d_ff"]
    found, active = (exact + getattr(audit[0], name) + getattr(audit[2], name) for name in ("n_hit", "n_active"))
    assert 0 < report.mean_recall < 0.99
    assert report.mean_recall == pytest.approx(found / active)
    assert "--min-recall" in report.failures[0]


def test_recall_is_what_the_training_promised(tmp_path):
    source = tiny_model(tmp_path / "m.gguf", "llama", **SIZES).path
    text = write_text(tmp_path / "text.txt", 600)
    train_predictor(source, [text], tmp_path / "p.gguf", kind="svd", rank=64, target_recall=0.9, n_ctx=N_CTX)
    with pi.Model(tmp_path / "p.gguf") as model:
        report = verify_model(model, str(source), str(text), Bounds(min_recall=0.85), n_ctx=N_CTX)
    assert report.mean_recall == pytest.approx(0.9, abs=0.05) and not report.failures


@pytest.mark.parametrize("options", [{"max_tokens": -9}, {"max_tokens": 0}, {"n_ctx": 3}])
def test_options_that_make_no_sense(options, files):
    model, source, text = files
    with pi.Model(model) as loaded, pytest.raises(pi.InvalidArgument, match=r"max_tokens is|give at least 4"):
        verify_model(loaded, source, [text], **options)


def test_numbers_that_json_lacks_are_null(files, tmp_path):
    _, source, text = files
    with GgufInput(source) as file:
        down = np.zeros(file.tensor("blk.2.ffn_down_t.weight").shape[::-1], np.float32)
    silent = {"blk.2.ffn_down_t.weight": (down, "F32")}
    other = tiny_model(tmp_path / "silent.gguf", "llama", tensors=silent, **SIZES).path
    done = run(source, "--against", other, "--text", text, "-c", N_CTX, "--max-tokens", N_CTX, "--json")
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout, parse_constant=pytest.fail)["layer_errors"]
    assert errors[2] is None and errors[0] < 1e-3


def test_memory_does_not_grow_with_the_vocabulary():
    assert scoring.rows_at_once(150_000) * 150_000 * 4 <= 64 << 20
    assert scoring.rows_at_once(10**9) == 16


def test_other_shapes_and_dense_models(files, tmp_path):
    model, _, text = files
    silu = tiny_model(tmp_path / "silu.gguf", "llama", activation="silu", n_layers=2).path
    with pi.Model(model) as loaded:
        report = verify_model(loaded, silu, [text], n_ctx=N_CTX, max_tokens=N_CTX)
    assert report.layer_errors is None and report.against_mode == "dense" and report.n_windows == 1


def test_models_that_cannot_be_compared(files, tmp_path):
    model, source, text = files
    larger = tiny_model(tmp_path / "large.gguf", "llama", n_vocab=600, **SIZES).path
    other = tiny_model(tmp_path / "other.gguf", "llama", metadata={"tokenizer.ggml.add_bos_token": False}, **SIZES).path
    with pi.Model(model) as loaded:
        for against, arguments, message in [
            (larger, {}, "600"),
            (other, {}, "tokenizers is wrong"),
            (source, {"n_ctx": 2}, "at least 4"),
            (source, {"n_ctx": 30_000}, "too few"),
        ]:
            with pytest.raises(pi.InvalidArgument, match=message):
                verify_model(loaded, against, [text], **{"n_ctx": N_CTX, **arguments})


def test_broken_weights_are_an_error(files, tmp_path):
    _, source, text = files
    broken = tmp_path / "nan.gguf"
    with GgufInput(source) as file:
        tensor = file.tensor("output_norm.weight")
    data = bytearray(source.read_bytes())
    data[tensor.offset : tensor.offset + tensor.n_bytes] = np.full(256, np.nan, np.float32).tobytes()
    broken.write_bytes(data)
    with pi.Model(broken) as loaded, pytest.raises(pi.InvalidArgument, match="not finite"):
        verify_model(loaded, source, [text], n_ctx=N_CTX)


# The command.


def run(*arguments):
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_command(files, expected):
    model, source, text = files
    arguments = [model, "--against", source, "--text", text, "-c", N_CTX, "--max-tokens", N_CTX * N_WINDOWS]
    done = run(
        *arguments, "--json", "--max-kl", expected["mean_kl"] * 1.01, "--max-ppl-ratio", expected["ppl_ratio"] * 1.01
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    for name, value in expected.items():
        assert np.allclose(facts[name], value, rtol=1e-6), name
    shown = run(*arguments)
    worst = int(np.argmax(expected["layer_errors"]))
    assert shown.returncode == 0
    assert f"(layer {worst})" in next(line for line in shown.stdout.splitlines() if "layers" in line).split(",")[0]
    assert "as stored" in shown.stdout
    for bound, message in [
        (["--max-kl", expected["mean_kl"] * 0.99], "--max-kl"),
        (["--min-top1", expected["top1"] + 0.01], "--min-top1"),
        (["--max-ppl-ratio", expected["ppl_ratio"] * 0.99], "--max-ppl-ratio"),
        (["--min-recall", 0.5], "no layer runs a predictor"),
    ]:
        done = run(*arguments, *bound)
        assert done.returncode == 1 and message in done.stderr.strip().splitlines()[-1], done.stderr
        assert "perplexity" in done.stdout


def test_changed_weights_are_found(files, tmp_path):
    model, _, text = files
    with GgufInput(model) as file:
        place = file.tensor("blk.1.ffn_up.weight").offset + 1234
    data = bytearray(model.read_bytes())
    data[place] ^= 1
    (tmp_path / "changed.gguf").write_bytes(data)
    done = run(tmp_path / "changed.gguf", "--against", model, "--text", text, "-c", N_CTX)
    assert done.returncode == 1
    assert "the weights are not those" in done.stderr and "but the file says" in done.stdout


def test_command_errors(files, tmp_path):
    model, source, text = files
    for arguments, code, message in [
        ([model, "--text", text], 2, "--against"),
        ([model, "--against", source], 2, "--text"),
        ([model, "--against", tmp_path / "absent.gguf", "--text", text], 1, "absent.gguf"),
        ([model, "--against", source, "--text", tmp_path / "absent.txt"], 1, "absent.txt"),
    ]:
        done = run(*arguments)
        assert done.returncode == code and message in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert done.stdout == ""

"""The table of modes: its numbers against their definitions, its figure, bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.compare import log_softmax
from helpers.tiny_model import tiny_model
from helpers.with_text import write_text

import powerinfer_py as pi
from powerinfer_py.cli import main
from powerinfer_py.sparsity.evaluate import evaluate_sparsity, plot_sparsity
from powerinfer_py.sparsity.text import load_windows

N_CTX = 64
SIZES = {"d_model": 64, "d_ff": 128, "n_vocab": 384, "n_ctx": 128, "density": 0.2, "activation": "relu"}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt", 300)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    return tiny_model(path, "llama", predictor_rank=32, layer_thresholds=[0.1, -0.2], **SIZES).path


def test_numbers_are_what_they_say(source, text):
    table = evaluate_sparsity(source, [text], offsets=[-100.0, 0.0, 100.0], n_ctx=N_CTX)
    rows = {(row.mode, row.offset): row for row in table.rows}
    assert list(rows) == [("dense", None), ("exact", None), *(("predictor", o) for o in (-100.0, 0.0, 100.0))]
    dense, exact = rows["dense", None], rows["exact", None]
    with pi.Model(source) as model:
        windows = load_windows(model, [text], n_ctx=N_CTX)
        for (mode, offset), row in rows.items():
            thresholds = None if offset is None else [0.1 + offset, -0.2 + offset]
            nll = []
            with pi.Context(model, n_ctx=N_CTX, sparsity=mode, threshold=thresholds) as context:
                for window in windows:
                    context.reset()
                    logits = log_softmax(context.eval(window, all_logits=True))[N_CTX // 2 : -1]
                    nll.append(-logits[np.arange(len(logits)), window[N_CTX // 2 + 1 :]])
            assert row.perplexity == pytest.approx(np.exp(np.mean(nll)), rel=1e-6)
        assert dense.bytes_per_token <= model.weight_bytes
    assert table.n_scored == len(windows) * (N_CTX // 2 - 1)
    assert dense.perplexity == exact.perplexity
    assert exact.bytes_per_token < dense.bytes_per_token
    everything, file_threshold, nothing = (rows["predictor", offset] for offset in (-100.0, 0.0, 100.0))
    assert everything.perplexity == pytest.approx(exact.perplexity, rel=1e-6)
    assert everything.predicted_density == 1
    assert nothing.predicted_density == nothing.density == 0
    assert nothing.bytes_per_token < file_threshold.bytes_per_token < everything.bytes_per_token
    assert exact.density == pytest.approx(everything.density)
    assert all(row.tokens_per_second > 0 for row in table.rows)


def test_paths_may_be_strings(source, text):
    table = evaluate_sparsity(str(source), [str(text)], n_ctx=N_CTX, max_windows=1)
    assert table.path == source


def test_models_without_a_predictor_and_without_zeros(text, tmp_path):
    plain = tiny_model(tmp_path / "relu.gguf", "llama", **SIZES).path
    assert [row.mode for row in evaluate_sparsity(plain, [text], n_ctx=N_CTX, max_windows=2).rows] == ["dense", "exact"]
    silu = tiny_model(tmp_path / "silu.gguf", "llama", down="plain", **(SIZES | {"activation": "silu"})).path
    assert [row.mode for row in evaluate_sparsity(silu, [text], n_ctx=N_CTX, max_windows=2).rows] == ["dense"]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_figure_is_the_same_each_time(suffix, source, text, tmp_path):
    pytest.importorskip("matplotlib")
    table = evaluate_sparsity(source, [text], n_ctx=N_CTX, max_windows=1)
    for name in ("a", "b"):
        plot_sparsity(tmp_path / f"{name}.{suffix}", table)
    data = (tmp_path / f"a.{suffix}").read_bytes()
    assert data == (tmp_path / f"b.{suffix}").read_bytes()
    assert data.startswith({"png": b"\x89PNG", "svg": b"<?xml"}[suffix])


def run_command(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["evaluate-sparsity", *map(str, arguments)])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_the_command(source, text, tmp_path, capsys):
    common = (source, "--text", text, "-c", N_CTX, "--chunks", 2, "-t", 1)
    code, out, err = run_command(capsys, *common)
    assert code == 0, err
    assert "predictor +0.5" in out
    code, out, err = run_command(capsys, *common, "--json", "--thresholds=-1,2")
    assert code == 0, err
    assert [row["offset"] for row in json.loads(out)["rows"]] == [None, None, -1.0, 2.0]


@pytest.mark.parametrize(
    ("extra", "code", "message"),
    [
        (("--thresholds", "a"), 2, "'a'"),
        (("--thresholds", "nan"), 1, "expected numbers"),
        (("-c", "8"), 1, "too small"),
        (("-o", "figure.pdf"), 1, ".png or .svg"),
        (("-o", "nodir/figure.png"), 1, "the folder nodir does not exist"),
        (("--chunks", "0"), 1, "--chunks"),
        (("--chunks", "-3"), 1, "--chunks"),
    ],
)
def test_bad_input(extra, code, message, source, text, capsys):
    found, _, err = run_command(capsys, source, "--text", text, "-c", N_CTX, *extra)
    assert found == code
    assert message in err


def test_the_table_is_shown_even_if_the_figure_cannot_be_drawn(source, text, tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")

    def fails(path, table):
        raise OSError("no figure today")

    monkeypatch.setattr("powerinfer_py.cli.evaluate_sparsity.plot_sparsity", fails)
    code, out, err = run_command(
        capsys, source, "--text", text, "-c", N_CTX, "--chunks", 1, "-o", tmp_path / "x.png", "--json"
    )
    assert (code, len(json.loads(out)["rows"])) == (1, 7)
    assert "no figure today" in err


def test_without_matplotlib(source, text, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = run_command(capsys, source, "--text", text, "-o", tmp_path / "x.png")
    assert code == 1
    assert "powerinfer_py[plot]" in err

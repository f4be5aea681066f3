"""`inspect --probe`: the activation that a model was trained with has the least perplexity, and another one warns."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.compare import shared_data
from helpers.tiny_model import tiny_model, write_gguf
from test_stories260k import convert

import powerinfer_py as pi
from powerinfer_py.files import GgufInput, is_side_tensor
from powerinfer_py.sparsity.probe import probe_activation
from powerinfer_py.sparsity.text import negative_log_likelihoods


def unlabelled(source: Path, target: Path) -> Path:
    """A plain GGUF of a ReLU model that does not say so: what other tools leave behind."""
    tensors = {}
    with GgufInput(source) as file:
        keys = {
            key: value
            for key, value in pi.GgufFile(source).metadata.items()
            if not key.startswith(("general.", "powerinfer.", "llama.hidden_activation"))
        }
        for name, tensor in file.tensors.items():
            if is_side_tensor(name):
                continue
            values = file.read_f32(name).reshape(tensor.shape[::-1])
            transposed = "ffn_down_t" in name
            tensors[name.replace("down_t", "down")] = (np.ascontiguousarray(values.T) if transposed else values, "F32")
    write_gguf(target, "llama", keys, tensors)
    return target


def inspect(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "powerinfer_py", "inspect", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8")


def test_an_unlabelled_relu_file_is_noticed(bundled: pi.Model, tmp_path: Path) -> None:
    path = unlabelled(bundled.path, tmp_path / "m.gguf")
    found = probe_activation(path)
    assert found.assumed == "silu"
    assert found.source.startswith("assumed")
    assert found.best == "relu"
    assert "silu (assumed" in found.warning and "--activation relu" in found.warning
    done = inspect(path, "--probe", "--json")
    facts = json.loads(done.stdout)["probe"]
    assert facts["best"] == "relu"
    assert facts["perplexity"]["relu"] == pytest.approx(found.perplexity["relu"])
    assert facts["warning"] == found.warning
    assert found.warning in done.stderr


def test_the_right_activation_is_quiet(bundled: pi.Model) -> None:
    found = probe_activation(bundled.path)
    assert (found.assumed, found.best, found.warning) == ("relu", "relu", None)
    assert list(found.perplexity.values()) == sorted(found.perplexity.values())
    done = inspect("--probe", "-t", 1)
    assert "relu fits" in done.stdout
    assert done.stderr == ""
    assert "probe" not in json.loads(inspect("--json").stdout)
    assert "does not fit" in inspect("--probe", "--activation", "silu").stdout


def test_a_silu_model(tmp_path: Path) -> None:
    found = probe_activation(convert(shared_data("stories260k"), tmp_path / "m.gguf"))
    assert (found.assumed, found.best, found.warning) == ("silu", "silu", None)


def test_perplexities_are_those_of_the_text(bundled: pi.Model) -> None:
    text = (Path(pi.__file__).parent / "data" / "probe.txt").read_text(encoding="utf-8")
    tokens = np.array(bundled.tokenize(text))[:512].reshape(2, 256)
    tokens[:, 0] = bundled.tokenizer.bos
    losses = []
    with pi.Context(bundled, n_ctx=256, sparsity="dense") as context:
        for window in tokens:
            context.reset()
            logits = context.eval(window, all_logits=True)
            losses.append(negative_log_likelihoods(logits[128:-1], window[129:]))
    found = probe_activation(bundled.path)
    assert found.n_tokens == 254
    assert found.perplexity["relu"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-4)


def test_what_is_tried(tmp_path: Path) -> None:
    fat = tiny_model(tmp_path / "fat.gguf", activation="fatrelu", activation_param=0.25).path
    assert "fatrelu:0.25" in probe_activation(fat).perplexity
    assert "drelu" in probe_activation(fat).perplexity
    ungated = tiny_model(tmp_path / "opt.gguf", "opt").path
    assert "drelu" not in probe_activation(ungated).perplexity
    assert "gelu" in probe_activation(ungated).perplexity
    assert probe_activation(ungated, activation="silu").assumed == "silu"


def test_logits_that_are_not_finite(tmp_path: Path) -> None:
    gate = (np.full((512, 256), 1e25, np.float32), "F32")  # squared: infinite
    path = tiny_model(tmp_path / "m.gguf", activation="relu2", tensors={"blk.0.ffn_gate.weight": gate}).path
    found = json.loads(inspect(path, "--probe", "--json").stdout)["probe"]
    assert found["perplexity"]["relu2"] is None
    assert found["perplexity"]["relu"] is not None
    assert "relu2" in found["warning"]
    assert "not finite" in inspect(path, "--probe").stdout


def test_files_that_cannot_be_probed(tmp_path: Path) -> None:
    mute = tiny_model(tmp_path / "mute.gguf", vocab=None).path
    with pytest.raises(pi.UnsupportedError, match="vocabulary"):
        probe_activation(mute)
    assert "needs a vocabulary" in inspect(mute, "--probe").stdout
    short = tiny_model(tmp_path / "short.gguf", n_ctx=8).path
    with pytest.raises(pi.InvalidArgument, match="at least 16 tokens"):
        probe_activation(short)
    broken = tiny_model(tmp_path / "broken.gguf", metadata={"powerinfer.version": 9}).path
    assert json.loads(inspect(broken, "--probe", "--json").stdout)["probe"] == {
        "problem": "the model cannot be computed"
    }

"""Importance files: what the engine's taps say, as llama.cpp writes it, and what quantize makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from helpers.tiny_model import tiny_model
from helpers.with_text import write_text

import powerinfer_py as pi
from powerinfer_py._core import FormatError, InvalidArgument
from powerinfer_py.files import GgufInput, GgufOutput
from powerinfer_py.sparsity.imatrix import ImatrixReport, collect_imatrix, read_imatrix
from powerinfer_py.sparsity.quantize import quantize


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An F32 ReLU llama in the plain layout."""
    return tiny_model(tmp_path_factory.mktemp("imatrix") / "in.gguf", down="plain", activation="relu").path


@pytest.fixture(scope="module")
def text(source: Path) -> Path:
    """A few hundred tokens."""
    return write_text(source.with_name("text.txt"), 300)


@pytest.fixture(scope="module")
def collected(source: Path, text: Path) -> ImatrixReport:
    """Its importance."""
    return collect_imatrix(source, [text], source.with_name("imatrix.gguf"), n_ctx=64)


def inputs_of(path: Path, text: Path, points: list[str]) -> dict[tuple[str, int], npt.NDArray[np.float64]]:
    """(point, layer) -> all rows, through Python taps."""
    rows: dict[tuple[str, int], list[npt.NDArray[np.float32]]] = {}
    with pi.Model(path) as model, pi.Context(model, n_ctx=64, sparsity="dense", kv_type="f32") as context:
        for point in points:
            context.set_tap(
                point,  # type: ignore[arg-type]
                lambda layer, unit, values, point=point: rows.setdefault((point, layer), []).append(values.copy()),
            )
        tokens = model.tokenize(text.read_text(encoding="utf-8"))
        for begin in range(0, len(tokens) - 63, 64):
            context.reset()
            context.eval([model.tokenizer.bos, *tokens[begin + 1 : begin + 64]])
    return {key: np.concatenate(parts).astype(np.float64) for key, parts in rows.items()}


def test_file_is_llama_cpps(source: Path, text: Path, collected: ImatrixReport) -> None:
    reader = gguf.GGUFReader(collected.path)
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.datasets"].contents() == ["text.txt"]
    assert reader.fields["imatrix.chunk_size"].contents() == 64
    assert reader.fields["imatrix.chunk_count"].contents() == collected.n_windows == collected.n_tokens // 64
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    points = {"attn_input": ("attn_q", "attn_k", "attn_v"), "attn_output": ("attn_output",),
              "ffn_input": ("ffn_gate", "ffn_up"), "h": ("ffn_down",)}  # fmt: skip
    rows = inputs_of(source, text, list(points))
    expected_names = set()
    for point, parts in points.items():
        for layer in (0, 1):
            expected = (rows[point, layer] ** 2).sum(axis=0)
            for part in parts:
                name = f"blk.{layer}.{part}.weight"
                expected_names |= {f"{name}.in_sum2", f"{name}.counts"}
                np.testing.assert_allclose(tensors[f"{name}.in_sum2"], expected, rtol=1e-5, atol=1e-9)
                assert tensors[f"{name}.counts"].tolist() == [len(rows[point, layer])] == [collected.n_tokens]
    assert set(tensors) == expected_names
    assert sorted(collected.tensors) == sorted(name[:-8] for name in expected_names if name.endswith(".in_sum2"))


def test_read_back(collected: ImatrixReport) -> None:
    read = read_imatrix(collected.path)
    reader = gguf.GGUFReader(collected.path)
    for tensor in reader.tensors:
        if tensor.name.endswith(".in_sum2"):
            found = read.of(tensor.name.removesuffix(".in_sum2"), len(tensor.data))
            np.testing.assert_allclose(found, tensor.data / collected.n_tokens, rtol=1e-6)
    assert read.of("output.weight", 256) is None
    with pytest.raises(FormatError, match=r"expected 512 values.*another model"):
        read.of("blk.0.attn_q.weight", 512)


@pytest.mark.parametrize("arch", ["llama", "bamboo", "falcon", "opt"])
def test_every_architecture_and_its_predictors(arch: str, tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "in.gguf", arch, predictor_rank=64, density=0.3).path
    text = write_text(tmp_path / "text.txt", 100)
    report = collect_imatrix(path, [text], tmp_path / "a.gguf", n_ctx=32)
    again = collect_imatrix(path, [text], tmp_path / "b.gguf", n_ctx=32)
    assert report.path.read_bytes() == again.path.read_bytes()
    with GgufInput(path) as file:
        matrices = {name for name, tensor in file.tensors.items() if len(tensor.shape) == 2 and name.startswith("blk")}
    matrices -= {f"blk.{layer}.fc2.weight" for layer in (0, 1)}
    assert {name.replace("down_t", "down") for name in matrices} == set(report.tensors)
    point = "layer_input" if arch == "falcon" else "residual"
    expected = np.mean(inputs_of_32(path, text, point) ** 2, axis=0)
    np.testing.assert_allclose(read_imatrix(report.path).of("blk.1.fc1.weight", 256), expected, rtol=1e-4)


def inputs_of_32(path: Path, text: Path, point: str) -> npt.NDArray[np.float64]:
    """Rows of the last layer in windows of 32 tokens."""
    rows: list[npt.NDArray[np.float32]] = []
    with pi.Model(path) as model, pi.Context(model, n_ctx=32, sparsity="dense", kv_type="f32") as context:
        context.set_tap(point, lambda layer, unit, values: rows.append(values.copy()) if layer == 1 else None)  # type: ignore[arg-type]
        tokens = model.tokenize(text.read_text(encoding="utf-8"))
        for begin in range(0, len(tokens) - 31, 32):
            context.reset()
            context.eval([model.tokenizer.bos, *tokens[begin + 1 : begin + 32]])
    return np.concatenate(rows).astype(np.float64)


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K"])
def test_importance_lowers_the_error_of_outputs(
    source: Path, text: Path, collected: ImatrixReport, type_name: str, tmp_path: Path
) -> None:
    plain = quantize(source, tmp_path / "plain.gguf", type_name)
    weighted = quantize(source, tmp_path / "weighted.gguf", type_name, imatrix=collected.path)
    assert plain.n_weighted == 0 and weighted.n_weighted == len(collected.tensors) == 14
    importance = read_imatrix(collected.path)
    with GgufInput(source) as file, GgufInput(plain.path) as a, GgufInput(weighted.path) as b:
        assert b.computed_fingerprint() == b.fingerprint != a.fingerprint
        for name in collected.tensors:
            exact = file.read_f32(name)
            columns = importance.of(name, exact.shape[1])
            errors = [(((each.read_f32(name) - exact) ** 2) * columns).sum() for each in (a, b)]
            assert errors[1] < errors[0], name


def test_bad_files(source: Path, collected: ImatrixReport, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no importance file"):
        read_imatrix(source)
    other = tiny_model(tmp_path / "other.gguf", down="plain", activation="relu", d_model=512).path
    with pytest.raises(FormatError, match="another model"):
        quantize(other, tmp_path / "out.gguf", "Q4_0", imatrix=collected.path)
    ones = np.ones(256, dtype=np.float32)
    for values, count, error, message in [
        (ones * np.nan, 1, FormatError, "finite"),
        (-ones, 1, FormatError, ">= 0"),
        (ones, None, FormatError, "counts.*missing"),
        (ones, 4, InvalidArgument, "none of its 1 matrices"),
    ]:
        output = GgufOutput(tmp_path / "broken.gguf", powerinfer=False, force=True)
        output.set("general.type", "imatrix")
        tensors = {"blk.9.attn_q.weight.in_sum2": values}
        if count is not None:
            tensors["blk.9.attn_q.weight.counts"] = np.array([count], dtype=np.float32)
        for name, array in tensors.items():
            output.add_tensor(name, "F32", array.shape)
        output.write(lambda spec, tensors=tensors: tensors[spec.name], identity=message)
        with pytest.raises(error, match=message):
            quantize(source, tmp_path / "out.gguf", "Q4_0", imatrix=tmp_path / "broken.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_commands(source: Path, text: Path, tmp_path: Path) -> None:
    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "powerinfer_py", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    out = tmp_path / "imatrix.gguf"
    done = run("imatrix", source, "--text", text, "-o", out, "--ctx-size", 64, "--json")
    assert done.returncode == 0 and len(json.loads(done.stdout)["tensors"]) == 14, done.stderr
    done = run("imatrix", source, "--text", text, "-o", out, "--ctx-size", 64)
    assert done.returncode == 1 and "--force" in done.stderr
    done = run("quantize", source, tmp_path / "q.gguf", "q4_k", "--imatrix", out)
    assert done.returncode == 0 and "14 matrices" in done.stdout, done.stderr
    done = run("imatrix", source, "--text", text, "-o", tmp_path / "b.gguf", "--max-tokens", 9)
    assert done.returncode == 1 and "--max-tokens 9" in done.stderr

"""The command line as people meet it: through a process, with its streams and exit codes."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.compare import shared_data
from helpers.tiny_model import TinyModel, tiny_model

import powerinfer_py as pi

COMMAND = [sys.executable, "-m", "powerinfer_py"]


def powerinfer(*arguments: object, data: bytes | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=data.decode("latin-1") if data is not None else None,
        capture_output=True,
        encoding="utf-8" if data is None else "latin-1",
        env={**os.environ, **env},
        timeout=120,
        check=False,
    )


def assert_one_sentence(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """The exit code, nothing on stdout, no traceback, and a last line that names the problem."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    for part in parts:
        assert part in last, last


# run


def test_run_writes_text_alone_on_stdout(tiny: TinyModel) -> None:
    done = powerinfer("run", "-m", tiny.path, "-p", "once upon", "-n", 12, "-s", 1, "--ignore-eos")
    assert done.returncode == 0
    with pi.Model(tiny.path) as model, pi.Context(model) as context:
        pieces = context.generate("once upon", max_tokens=12, seed=1, ignore_eos=True)
        assert done.stdout == "once upon" + "".join(map(str, pieces)) + "\n"
    line = done.stderr.strip()
    assert len(line.splitlines()) == 1
    for part in ("tiny llama", "context 256", "predictor", "recall", "'exact' or 'dense' is lossless"):
        assert part in line


def test_run_without_a_model_uses_the_bundled_one(bundled: pi.Model) -> None:
    done = powerinfer("run", "-p", "Once upon a time", "-n", 20, "--temp", 0, "--stats")
    assert done.returncode == 0
    assert done.stdout.startswith("Once upon a time")
    assert len(done.stdout.split()) > 10
    assert bundled.name in done.stderr
    for part in ("tokens/s", "density", "MB touched", "threads"):
        assert part in done.stderr


def test_every_long_and_short_name(tiny: TinyModel) -> None:
    short = powerinfer(
        "run", "-m", tiny.path, "-p", "a", "-n", 4, "-c", 64, "-b", 16, "-t", 1, "-tb", 2, "-s", 5, "--temp", 0.7,
        "--top-k", 20, "--top-p", 0.9, "--min-p", 0.1, "--repeat-penalty", 1.1, "--repeat-last-n", 8,
        "--presence-penalty", 0.1, "--frequency-penalty", 0.1, "--sparsity", "exact", "--activation", "relu",
        "--kv-type", "f32", "--weights", "read",
    )  # fmt: skip
    long = powerinfer(
        "run", "--model", tiny.path, "--prompt", "a", "--predict", 4, "--ctx-size", 64, "--batch-size", 16,
        "--threads", 1, "--threads-batch", 2, "--seed=5", "--temperature", 0.7, "--top-k=20", "--top-p", 0.9,
        "--min-p", 0.1, "--repeat-penalty", 1.1, "--repeat-last-n", 8, "--presence-penalty", 0.1,
        "--frequency-penalty", 0.1, "--sparsity", "exact", "--activation", "relu", "--kv-type", "f32",
        "--weights", "read",
    )  # fmt: skip
    assert short.returncode == long.returncode == 0, short.stderr + long.stderr
    assert short.stdout == long.stdout


def test_prompt_from_file_and_stdin(tiny: TinyModel, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("a é\n", encoding="utf-8")
    from_file = powerinfer("run", "-m", tiny.path, "-f", tmp_path / "p.txt", "-n", 0)
    assert from_file.stdout == "a é\n"
    from_stdin = powerinfer("run", "-m", tiny.path, "-f", "-", "-n", 0, data="a é\n".encode())
    assert from_stdin.stdout.encode("latin-1").decode() == "a é\n"
    silent = powerinfer("run", "-m", tiny.path, "-p", "a é", "-n", 0, "--no-display-prompt")
    assert silent.stdout == "\n"


def test_output_is_utf8_whatever_the_locale(tiny: TinyModel) -> None:
    done = powerinfer(
        "run", "-m", tiny.path, "-p", "é漢😀", "-n", 0, LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="1"
    )
    assert done.stdout == "é漢😀\n"


def test_chat(tmp_path: Path, tiny: TinyModel) -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    path = tiny_model(tmp_path / "chat.gguf", chat_template=template).path
    done = powerinfer("run", "-m", path, "--chat", "-p", "play", "-sys", "little", "-n", 6, "-s", 2)
    with pi.Model(path) as model, pi.Context(model) as context:
        messages = [{"role": "system", "content": "little"}, {"role": "user", "content": "play"}]
        pieces = context.generate(model.tokenize_chat(messages), max_tokens=6, seed=2)
        assert done.stdout == "".join(map(str, pieces)) + "\n"
    assert_one_sentence(powerinfer("run", "-m", tiny.path, "--chat", "-p", "a"), 1, "no chat template")
    assert_one_sentence(powerinfer("run", "-m", tiny.path, "-sys", "b", "-p", "a"), 2, "-sys needs --chat")
    hostile = tiny_model(tmp_path / "hostile.gguf", chat_template="{{ ''.__class__ }}").path
    assert_one_sentence(powerinfer("run", "-m", hostile, "--chat", "-p", "a"), 1, "__class__", "not allowed")


def test_a_full_context_is_mentioned(tiny: TinyModel) -> None:
    done = powerinfer("run", "-m", tiny.path, "-p", "a", "-c", 16, "-n", 50, "--ignore-eos")
    assert done.returncode == 0
    assert "context of 16 tokens is full" in done.stderr


# Flags from elsewhere.


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        (["-ngl", "99"], "CPU"),
        (["--n-gpu-layers=3"], "CPU"),
        (["-fa"], "attention"),
        (["-fa", "on"], "attention"),
        (["--mlock"], "--weights read"),
        (["--no-mmap"], "--weights read"),
        (["--vram-budget", "8"], "CPU"),
        (["--reset-gpu-index"], "GPU index"),
        (["--disable-gpu-index"], "GPU index"),
        (["--numa", "distribute"], "numactl"),
        (["--color"], "stdout"),
        (["-ctk", "f16"], "--kv-type"),
        (["-ub", "64"], "-b"),
    ],
)
def test_harmless_foreign_flags_get_a_note(tiny: TinyModel, flags: list[str], advice: str) -> None:
    done = powerinfer("run", *flags, "-m", tiny.path, "-p", "a", "-n", 0)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a\n"
    note = done.stderr.splitlines()[0]
    assert flags[0].partition("=")[0] in note and advice in note


@pytest.mark.parametrize(
    "flags",
    [["-i"], ["-cnv"], ["-ctk", "q8_0"], ["--mirostat", "2"], ["--rope-freq-base", "1e6"], ["--lora", "x"], ["-e"]],
)
def test_foreign_flags_that_would_change_the_result_are_refused(tiny: TinyModel, flags: list[str]) -> None:
    assert_one_sentence(powerinfer("run", "-m", tiny.path, "-p", "a", *flags), 2, flags[0])


def test_a_value_that_looks_like_a_flag_is_a_value(tiny: TinyModel) -> None:
    done = powerinfer("run", "-m", tiny.path, "-p", "-ngl", "-n", 0)
    assert (done.stdout, done.returncode) == ("-ngl\n", 0)


# Wrong usage and bad input.


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (["run"], 2, ["no prompt"]),
        (["run", "-p", "a", "-f", "b"], 2, ["not with both"]),
        (["run", "-p", "a", "--bogus"], 2, ["--bogus"]),
        (["run", "-p"], 2, ["-p"]),
        (["run", "-p", "a", "-n", "x"], 2, ["--n-predict"]),
        (["run", "-p", "a", "-n", "-5"], 2, ["-n -5"]),
        (["run", "-p", "a", "--sparsity", "some"], 2, ["some"]),
        (["run", "-p", "a", "--threshold", "1,x"], 2, ["1,x"]),
        (["run", "-p", "a", "--threshold", "nan"], 1, ["NaN"]),
        (["run", "-p", "a", "--threshold", "1,2,3,4,5"], 1, ["one per layer"]),
        (["run", "-p", "a", "--temp", "nan"], 1, ["temperature"]),
        (["run", "-p", "a", "--top-p", "2"], 1, ["top_p"]),
        (["run", "-p", "a", "-t", "0"], 1, ["n_threads"]),
        (["run", "-p", "a", "-c", "-7"], 1, ["n_ctx"]),
        (["run", "-p", "a", "-c", "16000000", "-b", "16000000"], 1, ["MiB"]),
        (["run", "-p", "a", "--activation", "swish"], 1, ["swish", "relu"]),
        (["run", "-p", "once " * 300, "-c", "32"], 1, ["full", "302 tokens", "raise -c"]),
        (["run", "-f", "/nonexistent/file"], 1, ["/nonexistent/file"]),
        (["bogus"], 2, ["bogus"]),
        (["inspect", "--bogus"], 2, ["--bogus"]),
        (["perplexity"], 2, ["-f"]),
        (["perplexity", "-f", "/nonexistent/file"], 1, ["/nonexistent/file"]),
        (["perplexity", "-f", "x", "-c", "2"], 2, ["-c 2"]),
    ],
)
def test_wrong_usage(tiny: TinyModel, arguments: list[str], code: int, parts: list[str]) -> None:
    model = ["-m", str(tiny.path)] if arguments[0] in ("run", "perplexity") else []
    assert_one_sentence(powerinfer(arguments[0], *model, *arguments[1:]), code, *parts)


def test_files_that_are_no_models(tmp_path: Path, tiny: TinyModel) -> None:
    whole = tiny.path.read_bytes()
    cases = {
        "absent.gguf": None,
        "empty.gguf": b"",
        "text.gguf": b"hello there, this is no model",
        "cut.gguf": whole[: len(whole) // 2],
        "head.gguf": whole[:20],
        "counts.gguf": whole[:8] + b"\xff" * 16 + whole[24:],
    }
    for name, data in cases.items():
        path = tmp_path / name
        if data is not None:
            path.write_bytes(data)
        assert_one_sentence(powerinfer("run", "-m", path, "-p", "a"), 1, name)
        assert_one_sentence(powerinfer("inspect", path), 1, name)
    assert_one_sentence(powerinfer("inspect", tmp_path), 1, str(tmp_path))


def test_models_that_cannot_be_computed(tmp_path: Path) -> None:
    missing = tiny_model(tmp_path / "missing.gguf", tensors={"blk.1.ffn_up.weight": None}).path
    assert_one_sentence(powerinfer("run", "-m", missing, "-p", "a"), 1, "missing.gguf", "blk.1.ffn_up.weight")
    foreign = tiny_model(tmp_path / "foreign.gguf", metadata={"general.architecture": None}).path
    data = foreign.read_bytes().replace(b"llama", b"lambd")
    foreign.write_bytes(data)
    assert_one_sentence(powerinfer("run", "-m", foreign, "-p", "a"), 1, "lambd", "falcon")
    inspected = powerinfer("inspect", foreign)
    assert inspected.returncode == 0
    assert "cannot be computed" in inspected.stdout and "lambd" in inspected.stdout


def test_prompts_that_are_not_utf8(tmp_path: Path, tiny: TinyModel) -> None:
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    for command in ("run", "perplexity"):
        done = powerinfer(command, "-m", tiny.path, "-f", tmp_path / "latin.txt")
        assert_one_sentence(done, 1, "latin.txt", "not UTF-8")
    argument = [*COMMAND, "run", "-m", str(tiny.path), "-p", b"\xff"]
    done = subprocess.run(argument, capture_output=True, text=True, check=False)
    assert_one_sentence(done, 1, "not UTF-8")


def test_version_and_help() -> None:
    assert powerinfer("--version").stdout.strip() == f"powerinfer {pi.__version__}"
    for command in ([], ["run"], ["inspect"], ["perplexity"]):
        done = powerinfer(*command, "--help")
        assert done.returncode == 0 and "Usage" in done.stdout
    assert "--n-predict" in powerinfer("run", "-h").stdout


# Signals and pipes.


def test_ctrl_c_is_exit_code_130(bundled: pi.Model) -> None:
    command = [*COMMAND, "run", "-p", "Once", "-n", "100000", "--ignore-eos", "-c", "100000", "-t", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.read(40)
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - start < 5
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_reader_that_leaves_is_no_drama(bundled: pi.Model) -> None:
    command = [*COMMAND, "run", "-p", "Once", "-n", "400", "--ignore-eos"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(5)
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=60) == 1
    assert "Traceback" not in errors and "Exception" not in errors and "Broken" not in errors
    process.stderr.close()


# inspect


def test_inspect(tmp_path: Path) -> None:
    tiny = tiny_model(
        tmp_path / "m.gguf", "llama", dtype="Q8_0", dtypes={"fc1.weight": "F16"}, predictor_rank=[64, 0],
        activation="fatrelu", activation_param=0.25,
    )  # fmt: skip
    facts = json.loads(powerinfer("inspect", tiny.path, "--json").stdout)
    assert facts["file"]["magic"] == "PWRI"
    assert facts["file"]["bytes"] == tiny.path.stat().st_size
    assert facts["file"]["kind"] == "PowerInfer model with predictors"
    assert facts["tensors"]["total"]["count"] == len(tiny.tensors)
    assert facts["tensors"]["by_type"]["F16"] == {"count": 1, "bytes": 2 * 64 * 256}
    assert facts["model"]["activation"] == "fatrelu:0.25"
    assert facts["model"]["predictor_ranks"] == [64, 0]
    assert facts["model"]["predictor_kinds"] == ["mlp", "none"]
    assert facts["model"]["default_sparsity"] == "predictor"
    assert not facts["model"]["modes"]["threshold"]["available"]
    assert facts["tokenizer"]["n_vocab"] == 512
    assert facts["metadata"]["tokenizer.ggml.tokens"] == "string[512]"
    text = powerinfer("inspect", "-m", tiny.path).stdout
    for part in ("Q8_0", "fatrelu:0.25", "hidden_activation", "mlp 64, none", "predictor by default", "transposed"):
        assert part in text
    assert_one_sentence(powerinfer("inspect", tiny.path, "-m", tiny.path), 2, "one file")


def test_inspect_says_what_a_conversion_would_bring(plain_path: Path) -> None:
    assumed = powerinfer("inspect", plain_path).stdout
    assert "assumed" in assumed and "silu" in assumed
    relu = powerinfer("inspect", plain_path, "--activation", "relu").stdout
    exact = next(line for line in relu.splitlines() if line.startswith("  exact"))
    assert "conversion" in exact and "ffn_down_t" in exact


@pytest.mark.parametrize("name", ["llama-spm", "gpt-2", "falcon", "phi-3"])
def test_inspect_of_vocabularies(name: str) -> None:
    done = powerinfer("inspect", shared_data("vocab", f"ggml-vocab-{name}.gguf"), "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["file"]["kind"] == "vocabulary only"
    assert facts["tokenizer"]["n_vocab"] > 30000
    assert not facts["model"]["computable"]


def test_inspect_of_a_split_file() -> None:
    path = shared_data("reference", "llama-hf", "ref.powerinfer.gguf.generated.gpuidx")
    facts = json.loads(powerinfer("inspect", path, "--json").stdout)
    assert "GPU split" in facts["file"]["kind"]


# perplexity


def test_perplexity_is_llama_cpps(tiny: TinyModel, tmp_path: Path) -> None:
    n_ctx = 64
    text = "once upon a time the little girl said that he was to play and they had it, " * 12
    (tmp_path / "t.txt").write_text(text, encoding="utf-8")
    done = powerinfer("perplexity", "-m", tiny.path, "-f", tmp_path / "t.txt", "-c", n_ctx, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)

    nlls, n_bytes = [], 0
    with pi.Model(tiny.path) as model, pi.Context(model, n_ctx=n_ctx) as context:
        tokens = model.tokenize(text)
        for begin in range(0, len(tokens) - n_ctx + 1, n_ctx):
            window = tokens[begin : begin + n_ctx]
            context.reset()
            logits = context.eval([model.tokenizer.bos, *window[1:]], all_logits=True).astype(np.float64)
            for i in range(n_ctx // 2, n_ctx - 1):
                row = logits[i]
                nlls.append(math.log(np.exp(row - row.max()).sum()) + row.max() - row[window[i + 1]])
                n_bytes += len(model.tokenizer.piece(window[i + 1], special=True))
    assert result["n_tokens"] == len(nlls) == (len(tokens) // n_ctx) * (n_ctx - n_ctx // 2 - 1)
    assert result["n_bytes"] == n_bytes
    mean = sum(nlls) / len(nlls)
    assert result["perplexity"] == pytest.approx(math.exp(mean), rel=1e-4)
    assert result["bits_per_byte"] == pytest.approx(sum(nlls) / math.log(2) / n_bytes, rel=1e-4)
    error = math.exp(mean) * math.sqrt((np.square(nlls).mean() - mean**2) / (len(nlls) - 1))
    assert result["error"] == pytest.approx(error, rel=1e-3)
    assert 0 < result["density"] < 1

    some = powerinfer("perplexity", "-m", tiny.path, "-f", tmp_path / "t.txt", "-c", n_ctx, "--chunks", 2)
    assert f"in 2 windows of {n_ctx}" in some.stdout and "bits per byte" in some.stdout


def test_a_text_too_short_for_perplexity(tiny: TinyModel, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("once upon", encoding="utf-8")
    done = powerinfer("perplexity", "-m", tiny.path, "-f", tmp_path / "t.txt", "-c", 64)
    assert_one_sentence(done, 1, "too few", "128")


def test_a_closed_stdout_is_quiet() -> None:
    command = f'"{sys.executable}" -m powerinfer_py --version >&-'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_names_from_files_cannot_command_the_terminal(tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "evil.gguf", "llama", n_ctx=64, metadata={"general.name": "evil\x1b[31m\nname"}).path
    for arguments in (["inspect", "-m", path], ["run", "-m", path, "-p", "a", "-n", 1]):
        done = powerinfer(*arguments)
        assert done.returncode == 0
        assert "\x1b" not in done.stdout + done.stderr


def test_a_prompt_longer_than_the_context_is_told_with_both_numbers() -> None:
    done = powerinfer("run", "-p", "Once upon a time there was", "-c", 3)
    assert done.returncode == 1
    assert "the context 3" in done.stderr


def test_perplexity_of_a_broken_model(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("once upon a time " * 50, encoding="utf-8")
    model = tiny_model(tmp_path / "broken.gguf", "llama", n_ctx=64)
    data = bytearray(model.path.read_bytes())
    norm = model.tensors["output_norm.weight"].tobytes()
    at = data.find(norm)
    data[at : at + len(norm)] = np.full(len(norm) // 4, np.nan, dtype=np.float32).tobytes()
    model.path.write_bytes(data)
    done = powerinfer("perplexity", "-m", model.path, "-f", text, "-c", 16)
    assert done.returncode == 1
    assert "not finite" in done.stderr

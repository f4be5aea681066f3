"""Commands that are killed at random moments: nothing partial under the final name, a new run gives the same bytes.

POWERINFER_KILLS=20 kills each command that many times (everyday: 3).
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import powerinfer_py as pi

N_KILLS = int(os.environ.get("POWERINFER_KILLS", "3"))
STARTUP = 0.3  # seconds in which nothing but imports happens
CARD = Path(pi.bundled_model_path()).parent / "MODEL_CARD.md"
TEXT = ["--text", str(CARD), "--ctx-size", "128"]


def command(name: str, source: Path, target: Path) -> list[str]:
    arguments = {
        "convert": ["convert", source, "-o", target, "--outtype", "f16", "--allow-requantize"],
        "profile": ["profile", source, *TEXT, "-o", target],
        "train-predictor": ["train-predictor", source, *TEXT, "-o", target, "--kind", "svd"],
        "quantize": ["quantize", source, target, "q4_0", "--allow-requantize"],
    }[name]
    return [sys.executable, "-m", "powerinfer_py", *map(str, arguments)]


def run(arguments: list[str]) -> None:
    done = subprocess.run(arguments, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("name", ["convert", "profile", "train-predictor", "quantize"])
def test_a_killed_run_is_repeated_to_the_same_bytes(name, tmp_path):
    source = pi.bundled_model_path()
    undisturbed, target = tmp_path / "undisturbed.gguf", tmp_path / "killed.gguf"
    begin = time.monotonic()
    run(command(name, source, undisturbed))
    seconds = time.monotonic() - begin
    expected = undisturbed.read_bytes()
    rng = random.Random(name)
    n_killed = 0
    for _ in range(N_KILLS):
        process = subprocess.Popen(command(name, source, target), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(STARTUP + rng.random() * max(0.1, seconds - STARTUP))
        process.kill()
        n_killed += process.wait() == -9
        if target.exists():
            assert target.read_bytes() == expected
            target.unlink()
    run(command(name, source, target))
    assert target.read_bytes() == expected
    assert n_killed, "no run was killed before it ended"
    leftovers = {path.name for path in tmp_path.iterdir()} - {"undisturbed.gguf", "killed.gguf"}
    assert not leftovers

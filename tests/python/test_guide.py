"""The commands of docs/make-a-sparse-model.md run as written, in order, on a toy model."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "make-a-sparse-model.md"


def commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def test_the_guide_names_every_tool():
    text = "\n".join(commands())
    for name in ("convert", "inspect", "profile", "reorder", "train-predictor", "evaluate-sparsity", "imatrix",
                 "quantize", "verify", "run"):  # fmt: skip
        assert f"powerinfer {name} " in text


def test_commands_run_as_written(tmp_path):
    for module in ("torch", "sentencepiece", "safetensors"):
        pytest.importorskip(module)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    texts = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    (tmp_path / "corpus.txt").write_text(
        "\n".join(path.read_text(encoding="utf-8") for path in texts), encoding="utf-8"
    )
    heldout = ROOT / "python" / "powerinfer_py" / "data" / "MODEL_CARD.md"
    (tmp_path / "heldout.txt").write_text(heldout.read_text(encoding="utf-8"), encoding="utf-8")
    scripts = tmp_path / "bin"
    scripts.mkdir()
    for name, call in (("python", ""), ("powerinfer", "-m powerinfer_py")):
        script = scripts / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        script.chmod(0o755)
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    for command in commands():
        done = subprocess.run(
            command, shell=True, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        if command.startswith("powerinfer"):
            assert done.stdout.strip(), command
    leftovers = [path.name for path in tmp_path.iterdir() if ".part" in path.name or path.name.endswith(".train")]
    assert not leftovers

"""The layering check itself: one made-up source tree per rule."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_layers.py"

TREE = {
    "include/powerinfer/api.h": "#pragma once\n#include <string>\n",
    "base/text.h": '#pragma once\n#include "powerinfer/api.h"\n',
    "base/env.cpp": "auto v = std::getenv(name);\n",
    "base/file_posix.cpp": "#include <unistd.h>\n",
    "quant/dtype.h": '#include "base/text.h"\n',
    "kernels/body.h": "#include <cstdint>\n",
    "kernels/isa/avx2.cpp": '#include <immintrin.h>\n#include "kernels/body.h"\n',
    "models/llama.cpp": '#include "models/llama.h"\n// #include "ops/x.h"\n/* getenv("X")\n#include <hip/a> */\n',
    "models/llama.h": "#pragma once\n",
    "engine/model.h": '#include "models/llama.h"\n',
    "bindings/common.h": "#include <pybind11/pybind11.h>\n",
    "bindings/module.cpp": '#include "common.h"\n#include "powerinfer/api.h"\n',
}


def check(root: Path, changes: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name, text in {**TREE, **changes}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return subprocess.run([sys.executable, SCRIPT, "--root", root], capture_output=True, text=True, check=False)


def test_accepts_a_tree_in_order(tmp_path: Path) -> None:
    result = check(tmp_path, {})
    assert result.returncode == 0, result.stdout
    assert f"{len(TREE)} files, 0 breaches" in result.stdout


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("include/powerinfer/api.h", '#include "base/text.h"\n', 1),
        ("include/powerinfer/api.h", "#pragma once\n#ifdef _WIN32\n#endif\n", 2),
        ("base/text.h", '\n\n#include "quant/dtype.h"\n', 3),
        ("models/llama.cpp", '#include "kernels/body.h"\n', 1),
        ("models/llama.cpp", '#include "engine/model.h"\n', 1),
        ("models/llama.cpp", '#include "tokenizer/bpe.h"\n', 1),
        ("models/llama.cpp", '#include "../engine/model.h"\n', 1),
        ("models/llama.cpp", "#include <pybind11/pybind11.h>\n", 1),
        ("models/llama.cpp", "#include <cuda_runtime.h>\n", 1),
        ("models/llama.cpp", "#include <sys/mman.h>\n", 1),
        ("models/llama.cpp", '\nauto v = getenv("X");\n', 2),
        ("base/file.cpp", "#include <windows.h>\n", 1),
        ("bindings/module.cpp", '#include "engine/model.h"\n', 1),
        ("kernels/isa/avx2.cpp", "#include <vector>\n", 1),
        ("kernels/body.h", "#include <cstdint>\n#include <cmath>\n", 2),
        ("stray/file.cpp", "\n", 1),
    ],
)
def test_names_the_breach(tmp_path: Path, name: str, text: str, line: int) -> None:
    result = check(tmp_path, {name: text})
    assert result.returncode == 1
    assert f"{tmp_path / name}:{line}: " in result.stdout


def test_an_empty_tree_is_an_error(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, SCRIPT, "--root", tmp_path], capture_output=True, text=True, check=False)
    assert result.returncode == 1

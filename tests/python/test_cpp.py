"""Builds the C++ tests and runs them, so that one command tests everything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_cpp() -> None:
    # cmake, ctest and ninja come with the extra [test] and lie beside the interpreter, which may not be on the path.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    for tool in ("cmake", "ctest", "ninja"):
        if shutil.which(tool, path=path) is None:
            pytest.skip(f"{tool} is missing; install the extra [test]")
    env = {**os.environ, "PATH": path}
    for command in (
        ["cmake", "--preset", "release"],
        ["cmake", "--build", "--preset", "release"],
        ["ctest", "--preset", "release"],
    ):
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-20000:]}\n{done.stderr[-5000:]}"

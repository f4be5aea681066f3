"""The hand-written stub of the extension says what is there."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_stub_equals_the_module() -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy.stubtest", "powerinfer_py._core"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

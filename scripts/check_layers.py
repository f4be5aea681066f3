#!/usr/bin/env python3
"""Checks who includes whom in src/cpp. Prints file:line for every breach and exits with 1 if there is one.

Rules: an include points to the same layer or one to its left; public headers include nothing internal; pybind11 is
included in bindings/ only, CUDA and HIP headers nowhere here; getenv is called in base/env.cpp only; POSIX and Windows
headers only in *_posix.cpp and *_win.cpp of base/; public headers have no #if; units of kernels/isa, with all that they
include, use no system header that leaves weak symbols.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# Folders of one line may not include each other; a folder may include itself and every line above it.
LAYERS = [
    ["powerinfer"],
    ["base"],
    ["quant"],
    ["kernels"],
    ["parallel"],
    ["tensor", "gguf"],
    ["backend"],
    ["ops"],
    ["placement"],
    ["models", "tokenizer"],
    ["engine"],
    ["bindings"],
]
RANK = {folder: rank for rank, folders in enumerate(LAYERS) for folder in folders}

# Closer than the layers say: models and what lies above see plans, not kernels.
FORBIDDEN = {("models", "kernels"), ("tokenizer", "kernels")}

# The C++ library over the public API alone.
PUBLIC_ONLY = {"bindings"}

INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
SYSTEM = re.compile(
    r"(windows|unistd|fcntl|sched|pthread|dlfcn|poll|signal|dirent)\.h$|(sys|linux|netinet)/|(win|ws2)\w+\.h$"
)
GPU = re.compile(r"cuda|cublas|hip/|rocblas", re.IGNORECASE)
ISA_SYSTEM = re.compile(r"(cstddef|cstdint|\w*intrin\.h|arm_neon\.h)$")
GETENV = re.compile(r"\b(?:secure_|_w|w)?getenv(?:_s)?\s*\(")


def code_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines without comments (good enough for includes and calls)."""
    in_comment = False
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        code = text
        if in_comment:
            _, end, code = code.partition("*/")
            in_comment = not end
        code, begin, _ = re.sub(r"/\*.*?\*/", " ", code).partition("/*")
        in_comment = in_comment or bool(begin)
        yield number, code.split("//", maxsplit=1)[0]


def layer_of(path: Path, root: Path) -> str | None:
    """The layer's folder; None for a file that is in none of them."""
    parts = path.relative_to(root).parts
    folder = "powerinfer" if parts[0] == "include" else parts[0]
    return folder if folder in RANK and len(parts) > 1 else None


def breach_of_own_include(layer: str, path: Path, included: str, root: Path) -> str | None:
    """What is wrong with including a file of ours; None: nothing."""
    if "/" not in included and (path.parent / included).is_file():
        return None
    folder = included.split("/", maxsplit=1)[0]
    if folder not in RANK or "/" not in included:
        return f'"{included}" is not named from src/cpp, as in "base/text.h"'
    inside = Path("include", included) if folder == "powerinfer" else Path(included)
    if not (root / inside).is_file():
        return f'"{included}" does not exist'
    if layer == folder:
        return None
    if RANK[folder] >= RANK[layer]:
        return f'{layer}/ includes "{included}": {folder}/ is not to its left'
    if layer in PUBLIC_ONLY and folder != "powerinfer":
        return f'{layer}/ includes "{included}": it may use the public API only'
    if (layer, folder) in FORBIDDEN:
        return f'{layer}/ may not see {folder}/: "{included}"'
    return None


def breach_of_system_include(layer: str, path: Path, included: str) -> str | None:
    """What is wrong with including a header of others; None: nothing."""
    if included.startswith("pybind11/") or included == "Python.h":
        return None if layer == "bindings" else f"<{included}> belongs to bindings/"
    if GPU.search(included):
        return f"<{included}> belongs to src/cuda/"
    if SYSTEM.search(included) and not (layer == "base" and path.stem.endswith(("_posix", "_win"))):
        return f"<{included}> belongs to base/*_posix.cpp or base/*_win.cpp"
    return None


def breaches(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Lines of a file that break a rule, and the rule."""
    layer = layer_of(path, root)
    if layer is None:
        yield 1, "the file lies in no layer"
        return
    for number, line in code_lines(path):
        if GETENV.search(line) and path.relative_to(root).as_posix() != "base/env.cpp":
            yield number, "environment variables are read in base/env.cpp only"
        if layer == "powerinfer" and re.match(r"\s*#\s*if", line):
            yield number, "public headers have no conditional code"
        match = INCLUDE.match(line)
        if match is None:
            continue
        if match[1] == "<":
            what = breach_of_system_include(layer, path, match[2])
        else:
            what = breach_of_own_include(layer, path, match[2], root)
        if what is not None:
            yield number, what


def isa_breaches(root: Path) -> Iterator[tuple[Path, int, str]]:
    """System headers that the units of kernels/isa reach through our own."""
    waiting = sorted((root / "kernels" / "isa").glob("*"))
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        for number, line in code_lines(path):
            match = INCLUDE.match(line)
            if match is None:
                continue
            if match[1] == "<" and not ISA_SYSTEM.match(match[2]):
                yield path, number, f"<{match[2]}> reaches kernels/isa: only <cstddef>, <cstdint> and intrinsics may"
            if match[1] == '"' and (root / match[2]).is_file() and root / match[2] not in seen:
                seen.add(root / match[2])
                waiting.append(root / match[2])


def main() -> int:
    """Check the tree, print what is found; the exit code is 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent / "src" / "cpp")
    root = parser.parse_args().root
    files = sorted(path for path in root.rglob("*") if path.suffix in {".h", ".cpp"})
    if not files:
        print(f"{root}: no sources here", file=sys.stderr)
        return 1
    found = [(path, number, what) for path in files for number, what in breaches(path, root)]
    found += isa_breaches(root)
    for path, number, what in found:
        print(f"{path}:{number}: {what}")
    print(f"{len(files)} files, {len(found)} breaches")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""The folder where training keeps what is finished, so that a killed run goes on there."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from powerinfer_py._core import InvalidArgument
from powerinfer_py.files import write_atomically
from powerinfer_py.files.lock import open_locked
from powerinfer_py.sparsity.activation import side_file_of
from powerinfer_py.sparsity.predictor.candidate import Recipe, restore
from powerinfer_py.sparsity.predictor.choose import pareto
from powerinfer_py.sparsity.predictor.curve import Curve, Truth
from powerinfer_py.sparsity.predictor.fit import FittedLayer, Tried
from powerinfer_py.sparsity.predictor.layer import FfnLayer

_CURVE = [field.name for field in fields(Curve)]
_TEMPORARY = r"(\.partial-\d+)?"
_UNMARKED = re.compile(r"lock|identity\.json\.partial-\d+")
_RESULTS = re.compile(
    rf"(layer_\d+\.(npz|[zxh]\.f16(\.partial)?)|trial\.gguf(\.part(\.json)?|\.activation\.npz)?){_TEMPORARY}"
)


class Workspace:
    """A folder for one model, text and set of options at a time; what is in it for another one is thrown away.

    Used as a context manager: it is locked meanwhile.

    Raises:
        InvalidArgument: the folder holds something else, or another process works in it.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self._identity = json.dumps(identity, sort_keys=True)
        self._marker = folder / "identity.json"

    def __enter__(self) -> Workspace:
        """The workspace, ready for this identity."""
        if self.folder.exists() and not self._is_ours():
            raise InvalidArgument(f"{self.folder}: exists and is no cache of this command; choose another --cache-dir")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = open_locked(self.folder / "lock")
        if self._stored_identity() != self._identity:
            self._unlink(_RESULTS)
            write_atomically(self._marker, lambda file: file.write(self._identity.encode()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Lets other processes in."""
        self._lock.close()

    def _is_ours(self) -> bool:
        """Marked, or as empty as a run leaves it that ends before it has marked it."""
        if not self.folder.is_dir():
            return False
        if all(_UNMARKED.fullmatch(path.name) for path in self.folder.iterdir()):
            return True
        with suppress(ValueError, AttributeError):
            return bool({"model", "windows", "options"} <= json.loads(self._stored_identity()).keys())
        return False

    def _unlink(self, names: re.Pattern[str]) -> None:
        for path in list(self.folder.iterdir()):
            if names.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _stored_identity(self) -> str:
        try:
            return self._marker.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return ""

    def remove(self) -> None:
        """Removes all that was kept, and the folder if nothing else is in it."""
        with suppress(OSError):
            self._unlink(_RESULTS)
            self._unlink(_UNMARKED)
            self._marker.unlink(missing_ok=True)
            self.folder.rmdir()

    @contextmanager
    def trial(self) -> Iterator[Path]:
        """The name of a model file that is written to be tried out, and is removed afterwards."""
        path = self.folder / "trial.gguf"
        try:
            yield path
        finally:
            for each in (path, side_file_of(path)):
                each.unlink(missing_ok=True)

    def _result(self, layer: int) -> Path:
        return self.folder / f"layer_{layer}.npz"

    def save(self, layer: int, fitted: FittedLayer, *, keep_all: bool) -> None:
        """Keeps a finished layer: all curves, and the tensors of the candidates that could be chosen, or all."""
        needed = set(range(len(fitted.tried))) if keep_all else _on_front(fitted)
        arrays: dict[str, Any] = {}
        recipes = []
        for index, tried in enumerate(fitted.tried):
            recipes.append(asdict(tried.candidate.recipe) | {"n_bytes": tried.candidate.n_bytes})
            arrays |= {f"{index}.curve.{name}": getattr(tried.curve, name) for name in _CURVE}
            if index in needed:
                arrays |= {f"{index}.state.{name}": array for name, array in tried.candidate.state().items()}
        arrays["facts"] = np.str_(json.dumps({"truth": asdict(fitted.truth), "recipes": recipes}))

        def write(file: BinaryIO) -> None:
            np.savez(file, **arrays)

        write_atomically(self._result(layer), write)

    def load(self, layer: int, ffn: FfnLayer) -> StoredLayer | None:
        """A layer that is finished, or None."""
        try:
            return StoredLayer(self._result(layer), ffn)
        except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile):
            return None


class StoredLayer:
    """A finished layer. Tensors stay on the disk until they are asked for."""

    def __init__(self, path: Path, ffn: FfnLayer) -> None:
        self._path, self.ffn = path, ffn
        with np.load(path, allow_pickle=False) as stored:
            facts = json.loads(str(stored["facts"]))
            self.truth = Truth(**facts["truth"])
            self.predictor_bytes = [int(each.pop("n_bytes")) for each in facts["recipes"]]
            self.recipes = [Recipe(**each) for each in facts["recipes"]]
            self.curves = [
                Curve(**{name: stored[f"{index}.curve.{name}"] for name in _CURVE})
                for index in range(len(self.recipes))
            ]

    def tried(self, index: int) -> Tried:
        """A candidate that was kept."""
        prefix = f"{index}.state."
        with np.load(self._path, allow_pickle=False) as stored:
            state = {name[len(prefix) :]: stored[name] for name in stored.files if name.startswith(prefix)}
        return Tried(restore(self.recipes[index], state, self.ffn), self.curves[index])


def _on_front(fitted: FittedLayer) -> set[int]:
    """Candidates that are the cheapest somewhere."""
    if not fitted.tried:
        return set()
    sizes = [len(tried.curve) for tried in fitted.tried]
    owners = np.repeat(np.arange(len(sizes)), sizes)
    missed = np.concatenate([fitted.truth.firing - tried.curve.hit for tried in fitted.tried])
    n_bytes = np.concatenate([tried.curve.bytes for tried in fitted.tried])
    return {int(owner) for owner in owners[pareto(n_bytes, missed)]}

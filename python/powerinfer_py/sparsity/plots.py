"""Figures about activation counts (extra [plot]); the same bytes for the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from powerinfer_py._arguments import AnyPath, file_path
from powerinfer_py._core import InvalidArgument, UnsupportedError
from powerinfer_py.files import write_atomically
from powerinfer_py.sparsity.activation import ActivationCounts
from powerinfer_py.sparsity.hot_sets import HOT_SHARE, MOST, cumulative, density, overlaps

_FORMATS: dict[str, dict[str, str | None]] = {"png": {"Software": None}, "svg": {"Date": None}}
"""Suffix -> the metadata that must not vary."""


def check_plot(path: AnyPath, *, force: bool = False) -> None:
    """Refuses what `save_figure` could not write, before the work that a figure is about.

    Raises:
        InvalidArgument: neither PNG nor SVG, it exists or is no regular file, or its folder does not exist.
        UnsupportedError: matplotlib is not installed.
    """
    path = file_path(path)
    if path.suffix.lower().lstrip(".") not in _FORMATS:
        raise InvalidArgument(f"{path}: a figure is a .png or .svg file; choose one of these endings")
    if path.exists() and not force:
        raise InvalidArgument(f"{path}: exists already; choose another name, or --force")
    if path.exists() and not path.is_file():
        raise InvalidArgument(f"{path}: is not a regular file; give the path of a file")
    if not path.parent.is_dir():
        raise InvalidArgument(f"{path}: the folder {path.parent} does not exist; make it first")
    new_figure(1, 1)


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib Figure of that many inches; needs no display."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise UnsupportedError("figures need matplotlib; pip install 'powerinfer_py[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: AnyPath) -> None:
    """Writes a figure; complete or not at all."""
    import matplotlib as mpl  # noqa: PLC0415

    path = file_path(path)
    kind = path.suffix.lower().lstrip(".")
    with mpl.rc_context({"svg.hashsalt": "powerinfer", "svg.fonttype": "path"}):
        write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=120, metadata=_FORMATS[kind]))


def plot_profile(path: AnyPath, profiles: Sequence[ActivationCounts]) -> None:
    """Density per layer, cumulative activations, and, of two profiles, the overlap of their hot neurons."""
    n_panels = 2 + (len(profiles) > 1)
    figure = new_figure(4.6 * n_panels, 3.8)
    panels = figure.subplots(1, n_panels)
    layers = np.arange(profiles[0].counts.shape[0])
    for profile, style in zip(profiles, ("-", "--"), strict=False):
        shares = 100 * density(profile.counts, profile.tokens)
        panels[0].plot(layers, shares, style, marker="o", markersize=3, label=Path(profile.source).name)
    panels[0].set(xlabel="layer", ylabel="density, % of neurons", title="Density per layer", ylim=(0, None))
    panels[0].legend(fontsize="small")
    _plot_cumulative(panels[1], profiles[0])
    if len(profiles) > 1:
        shared = 100 * overlaps(profiles[0].counts, profiles[1].counts)
        panels[2].bar(layers, shared)
        panels[2].axhline(100 * HOT_SHARE, linestyle=":", color="gray", label="by chance")
        title = f"Hottest {100 * HOT_SHARE:.0f} % in common"
        panels[2].set(xlabel="layer", ylabel="overlap, %", title=title, ylim=(0, 100))
        panels[2].legend(fontsize="small")
    save_figure(figure, path)


def _plot_cumulative(panel: Any, profile: ActivationCounts) -> None:
    n_layers, d_ff = profile.counts.shape
    share = 100 * np.arange(1, d_ff + 1) / d_ff
    for layer, counts in enumerate(profile.counts):
        label = f"layer {layer}" if layer in (0, n_layers - 1) else None
        panel.plot(share, 100 * cumulative(counts), linewidth=0.8, alpha=0.7, label=label)
    panel.axhline(100 * MOST, linestyle=":", color="gray")
    panel.set(xlabel="hottest neurons, %", ylabel="of all activations, %", title="Cumulative activations")
    panel.set(xlim=(0, 100), ylim=(0, 100))
    panel.legend(fontsize="small")

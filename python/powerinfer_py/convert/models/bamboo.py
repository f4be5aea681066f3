"""BambooForCausalLM: Mistral's shape with dReLU, relu(gate) * relu(up), whatever the configuration says."""

from __future__ import annotations

from collections.abc import Collection

from powerinfer_py.convert.activation import Activation
from powerinfer_py.convert.config import Config
from powerinfer_py.convert.models.gated_rms import plan_gated_rms
from powerinfer_py.convert.models.mistral import context_within_window
from powerinfer_py.convert.models.plan import ModelPlan


def plan(config: Config, names: Collection[str]) -> ModelPlan:
    """How the checkpoint becomes a file of architecture bamboo."""
    said = config.string("hidden_act", default="relu")
    n_ctx, notes = context_within_window(config)
    if said not in ("relu", "drelu"):
        notes += (f"the configuration says hidden_act {said!r}, but the class computes dReLU: that is used",)
    return plan_gated_rms(config, "bamboo", Activation("drelu"), n_ctx=n_ctx, notes=notes)

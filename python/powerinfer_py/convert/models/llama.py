"""LlamaForCausalLM: Llama 1 to 3, ReluLLaMA and whatever else is published in its shape."""

from __future__ import annotations

from collections.abc import Collection

from powerinfer_py.convert.activation import activation_by_name
from powerinfer_py.convert.config import Config
from powerinfer_py.convert.models.gated_rms import plan_gated_rms
from powerinfer_py.convert.models.plan import ModelPlan


def plan(config: Config, names: Collection[str]) -> ModelPlan:
    """How the checkpoint becomes a file of architecture llama."""
    activation = activation_by_name(config.string("hidden_act", default="silu"), config.where)
    return plan_gated_rms(config, "llama", activation, n_ctx=config.integer("max_position_embeddings", default=2048))

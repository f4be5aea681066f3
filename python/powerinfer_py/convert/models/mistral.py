"""MistralForCausalLM: llama with a sliding window, which the context length of the file stays within."""

from __future__ import annotations

from collections.abc import Collection

from powerinfer_py.convert.activation import activation_by_name
from powerinfer_py.convert.config import Config
from powerinfer_py.convert.models.gated_rms import plan_gated_rms
from powerinfer_py.convert.models.plan import ModelPlan


def plan(config: Config, names: Collection[str]) -> ModelPlan:
    """How the checkpoint becomes a file of architecture llama."""
    activation = activation_by_name(config.string("hidden_act", default="silu"), config.where)
    n_ctx, notes = context_within_window(config)
    return plan_gated_rms(config, "llama", activation, n_ctx=n_ctx, notes=notes)


def context_within_window(config: Config) -> tuple[int, tuple[str, ...]]:
    """Context length up to which a sliding window changes nothing, and a note where it is less than the trained one."""
    n_ctx = config.integer("max_position_embeddings", default=4096)
    window = config.integer("sliding_window", default=n_ctx)
    if window >= n_ctx:
        return n_ctx, ()
    note = f"attention sees {window} tokens back: the file's context length is {window}, not {n_ctx}"
    return window, (note,)

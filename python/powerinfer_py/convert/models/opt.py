"""OPTForCausalLM: LayerNorm first, learned positions with two extra rows, biases, ungated FFN, tied output."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from powerinfer_py._core import UnsupportedError
from powerinfer_py.convert.activation import activation_by_name
from powerinfer_py.convert.config import Config
from powerinfer_py.convert.models.plan import ModelPlan, Planned, both, norm, size_keys
from powerinfer_py.files import Value

_EXTRA_POSITIONS = 2  # position p reads row p + 2
_EPSILON = 1e-5  # the class knows no other


def plan(config: Config, names: Collection[str]) -> ModelPlan:
    """How the checkpoint becomes a file of architecture opt."""
    _refuse_variants(config)
    n_layers, d_model = config.integer("num_hidden_layers"), config.integer("hidden_size")
    d_ff, n_ctx = config.integer("ffn_dim"), config.integer("max_position_embeddings", default=2048)
    n_heads, n_vocab = config.integer("num_attention_heads"), config.integer("vocab_size")
    tied = config.flag("tie_word_embeddings", default=True)
    affine = config.flag("layer_norm_elementwise_affine", default=True)
    prefix = "decoder." if "decoder.embed_tokens.weight" in names else "model.decoder."
    keys = size_keys(
        "opt", n_ctx=n_ctx, d_model=d_model, d_ff=d_ff, n_layers=n_layers, n_heads=n_heads, n_kv_heads=n_heads
    )
    keys["opt.attention.layer_norm_epsilon"] = Value("f32", _EPSILON)

    def tensors() -> Iterator[Planned]:
        yield Planned("token_embd.weight", prefix + "embed_tokens.weight", (n_vocab, d_model))
        rows = n_ctx + _EXTRA_POSITIONS
        yield Planned("position_embd.weight", prefix + "embed_positions.weight", (rows, d_model))
        for layer in range(n_layers):
            yield from _layer(config, f"{prefix}layers.{layer}.", layer, d_model, d_ff, affine=affine)
        if affine:
            yield from norm("output_norm", prefix + "final_layer_norm", d_model, bias=True)
        if not tied:
            yield Planned("output.weight", "lm_head.weight", (n_vocab, d_model))

    return ModelPlan(
        architecture="opt",
        activation=activation_by_name(config.string("activation_function", default="relu"), config.where),
        n_layers=n_layers,
        d_model=d_model,
        d_ff=d_ff,
        n_vocab=n_vocab,
        keys=keys,
        tensors=list(tensors()),
        constants={} if affine else _plain_norms(n_layers, d_model),
        ignored=(r"lm_head\.weight",) if tied else (),
    )


def _refuse_variants(config: Config) -> None:
    d_model = config.integer("hidden_size")
    width = config.integer("word_embed_proj_dim", default=d_model)
    if width != d_model:
        raise UnsupportedError(f"{config.where}: word_embed_proj_dim {width}: projected embeddings are not supported")
    if not config.flag("do_layer_norm_before", default=True):
        raise UnsupportedError(f"{config.where}: 'do_layer_norm_before' false (norms last) is not supported")
    if config.flag("_remove_final_layer_norm", default=False):
        raise UnsupportedError(f"{config.where}: '_remove_final_layer_norm' true is not supported")


def _plain_norms(n_layers: int, d_model: int) -> dict[str, npt.NDArray[np.float32]]:
    """Norms without parameters, written out."""
    blocks = [f"blk.{layer}.{name}" for layer in range(n_layers) for name in ("attn_norm", "ffn_norm")]
    ones, zeros = np.ones(d_model, dtype=np.float32), np.zeros(d_model, dtype=np.float32)
    parts = {"weight": ones, "bias": zeros}
    return {f"{name}.{part}": values for name in (*blocks, "output_norm") for part, values in parts.items()}


def _layer(config: Config, theirs: str, layer: int, d_model: int, d_ff: int, *, affine: bool) -> Iterator[Planned]:
    ours = f"blk.{layer}."
    biased = config.flag("enable_bias", default=True)
    if affine:
        yield from norm(ours + "attn_norm", theirs + "self_attn_layer_norm", d_model, bias=True)
    for name, source in (("attn_q", "q_proj"), ("attn_k", "k_proj"), ("attn_v", "v_proj"), ("attn_output", "out_proj")):
        yield from both(ours + name, f"{theirs}self_attn.{source}", d_model, d_model, bias=biased)
    if affine:
        yield from norm(ours + "ffn_norm", theirs + "final_layer_norm", d_model, bias=True)
    yield from both(ours + "ffn_up", theirs + "fc1", d_ff, d_model, bias=biased)
    yield from both(ours + "ffn_down", theirs + "fc2", d_model, d_ff, bias=biased)

"""FalconForCausalLM: parallel block, fused qkv, ungated FFN; 7B style (one norm) and 40B style (two)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from powerinfer_py._core import FormatError, UnsupportedError
from powerinfer_py.convert.activation import activation_by_name
from powerinfer_py.convert.config import Config
from powerinfer_py.convert.models.plan import ModelPlan, Planned, both, norm, size_keys
from powerinfer_py.convert.models.rope import read_rope
from powerinfer_py.files import Value

_MASKS = r"transformer\.h\.\d+\.self_attention\.(masked_bias|bias|rotary_emb\.inv_freq|maybe_rotary\.inv_freq)"


def plan(config: Config, names: Collection[str]) -> ModelPlan:
    """How the checkpoint becomes a file of architecture falcon."""
    n_layers, d_model = config.integer("num_hidden_layers", "n_layer"), config.integer("hidden_size")
    n_heads, n_kv_heads = _heads(config, d_model)
    head_dim = d_model // n_heads
    d_ff = config.integer("ffn_hidden_size", default=4 * d_model)
    n_ctx = config.integer("max_position_embeddings", default=2048)
    rope = read_rope(config, "falcon", head_dim, n_ctx)
    if rope.attention_scale != 1.0:
        raise UnsupportedError(f"{config.where}: RoPE scaling yarn is not supported for this class")
    n_vocab = config.integer("vocab_size")
    tied = config.flag("tie_word_embeddings", default=True)
    keys = size_keys(
        "falcon", n_ctx=n_ctx, d_model=d_model, d_ff=d_ff, n_layers=n_layers, n_heads=n_heads, n_kv_heads=n_kv_heads
    )
    epsilon = config.number("layer_norm_epsilon", default=1e-5, above=0)
    keys |= {"falcon.attention.layer_norm_epsilon": Value("f32", epsilon), **rope.keys}

    def tensors() -> Iterator[Planned]:
        yield Planned("token_embd.weight", "transformer.word_embeddings.weight", (n_vocab, d_model))
        for layer in range(n_layers):
            yield from _layer(config, names, layer, d_model, d_ff, _qkv_rows(n_heads, n_kv_heads, head_dim))
        yield from norm("output_norm", "transformer.ln_f", d_model, bias=True)
        if not tied:
            yield Planned("output.weight", "lm_head.weight", (n_vocab, d_model))

    return ModelPlan(
        architecture="falcon",
        activation=activation_by_name(config.string("activation", default="gelu"), config.where),
        n_layers=n_layers,
        d_model=d_model,
        d_ff=d_ff,
        n_vocab=n_vocab,
        keys=keys,
        tensors=list(tensors()),
        constants={} if rope.factors is None else {"rope_freqs.weight": rope.factors},
        ignored=(_MASKS, *((r"lm_head\.weight",) if tied else ())),
        notes=rope.notes,
    )


def _heads(config: Config, d_model: int) -> tuple[int, int]:
    """(heads, key-value heads); refuses other blocks than the parallel, rotary one."""
    new = config.flag("new_decoder_architecture", default=False)
    if config.flag("alibi", default=False):
        raise UnsupportedError(f"{config.where}: ALiBi positions are not supported; only rotary ones are")
    if not new and not config.flag("parallel_attn", default=True):
        raise UnsupportedError(f"{config.where}: 'parallel_attn' false is not supported; only the parallel block is")
    n_heads = config.integer("num_attention_heads", "n_head")
    if d_model % n_heads:
        raise FormatError(f"{config.where}: hidden_size {d_model} is no multiple of num_attention_heads {n_heads}")
    if new:
        n_kv_heads = config.integer("num_kv_heads", "n_head_kv", default=n_heads)
    else:
        n_kv_heads = 1 if config.flag("multi_query", default=True) else n_heads
    if n_heads % n_kv_heads:
        raise FormatError(f"{config.where}: {n_heads} heads are no multiple of {n_kv_heads} key-value heads")
    return n_heads, n_kv_heads


def _qkv_rows(n_heads: int, n_kv_heads: int, head_dim: int) -> npt.NDArray[np.int64]:
    """Rows of the fused matrix from groups of (queries, key, value) to all Q, all K, all V."""
    per_group = n_heads // n_kv_heads
    rows = np.arange((n_heads + 2 * n_kv_heads) * head_dim, dtype=np.int64)
    groups = rows.reshape(n_kv_heads, per_group + 2, head_dim)
    parts = (groups[:, :per_group], groups[:, per_group], groups[:, per_group + 1])
    return np.concatenate([part.reshape(-1) for part in parts])


def _layer(
    config: Config, names: Collection[str], layer: int, d_model: int, d_ff: int, qkv_rows: npt.NDArray[np.int64]
) -> Iterator[Planned]:
    ours, theirs = f"blk.{layer}.", f"transformer.h.{layer}."
    biased = config.flag("bias", default=False)
    if f"{theirs}ln_attn.weight" in names:
        yield from norm(ours + "attn_norm", theirs + "ln_mlp", d_model, bias=True)
        yield from norm(ours + "attn_norm_2", theirs + "ln_attn", d_model, bias=True)
    else:
        yield from norm(ours + "attn_norm", theirs + "input_layernorm", d_model, bias=True)
    attention = theirs + "self_attention."
    for each in both(ours + "attn_qkv", attention + "query_key_value", len(qkv_rows), d_model, bias=biased):
        yield Planned(each.name, each.source, each.shape, rows=qkv_rows)
    yield from both(ours + "attn_output", attention + "dense", d_model, d_model, bias=biased)
    yield from both(ours + "ffn_up", theirs + "mlp.dense_h_to_4h", d_ff, d_model, bias=biased)
    yield from both(ours + "ffn_down", theirs + "mlp.dense_4h_to_h", d_model, d_ff, bias=biased)

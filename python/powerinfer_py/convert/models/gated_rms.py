"""What Llama, Mistral and their kin share: RMSNorm, rotary grouped-query attention, a gated FFN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from powerinfer_py._core import FormatError, UnsupportedError
from powerinfer_py.convert.activation import Activation
from powerinfer_py.convert.config import Config
from powerinfer_py.convert.models.plan import ModelPlan, Planned, both, interleaved_rows, norm, size_keys
from powerinfer_py.convert.models.rope import Rope, read_rope
from powerinfer_py.files import Value

_ROTARY_TABLES = r"model\.layers\.\d+\.self_attn\.rotary_emb\.(inv_freq|cos_cached|sin_cached)"


@dataclass(frozen=True)
class _Sizes:
    n_layers: int
    d_model: int
    d_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_vocab: int
    n_ctx: int


def plan_gated_rms(
    config: Config,
    architecture: str,
    activation: Activation,
    *,
    n_ctx: int,
    notes: tuple[str, ...] = (),
) -> ModelPlan:
    """A checkpoint of this shape with weights named `model.layers.{i}.*`.

    Args:
        config: of the checkpoint.
        architecture: of the file.
        activation: of the FFN.
        n_ctx: the context length of the file.
        notes: passed on.

    Raises:
        FormatError: the configuration contradicts itself. UnsupportedError: it asks for what is unknown.
    """
    sizes = _read_sizes(config, n_ctx)
    rope = read_rope(config, architecture, sizes.head_dim, n_ctx)
    tied = config.flag("tie_word_embeddings", default=False)
    return ModelPlan(
        architecture=architecture,
        activation=activation,
        n_layers=sizes.n_layers,
        d_model=sizes.d_model,
        d_ff=sizes.d_ff,
        n_vocab=sizes.n_vocab,
        keys=_keys(config, architecture, sizes, rope),
        tensors=list(_tensors(config, sizes, rope, tied=tied)),
        constants={} if rope.factors is None else {"rope_freqs.weight": rope.factors},
        ignored=(_ROTARY_TABLES, *((r"lm_head\.weight",) if tied else ())),
        notes=(*notes, *rope.notes),
    )


def _read_sizes(config: Config, n_ctx: int) -> _Sizes:
    d_model, n_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    n_kv_heads = config.integer("num_key_value_heads", default=n_heads)
    if n_heads % n_kv_heads:
        raise FormatError(
            f"{config.where}: num_attention_heads {n_heads} is no multiple of num_key_value_heads {n_kv_heads}"
        )
    if config.get("head_dim") is None and d_model % n_heads:
        raise FormatError(f"{config.where}: hidden_size {d_model} is no multiple of num_attention_heads {n_heads}")
    if config.number("partial_rotary_factor", default=1.0) != 1.0:
        raise UnsupportedError(f"{config.where}: partial_rotary_factor: only 1.0 is supported for this class")
    return _Sizes(
        n_layers=config.integer("num_hidden_layers"),
        d_model=d_model,
        d_ff=config.integer("intermediate_size"),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=config.integer("head_dim", default=d_model // n_heads),
        n_vocab=config.integer("vocab_size"),
        n_ctx=n_ctx,
    )


def _keys(config: Config, architecture: str, sizes: _Sizes, rope: Rope) -> dict[str, Value]:
    keys = size_keys(
        architecture, n_ctx=sizes.n_ctx, d_model=sizes.d_model, d_ff=sizes.d_ff, n_layers=sizes.n_layers,
        n_heads=sizes.n_heads, n_kv_heads=sizes.n_kv_heads,
    )  # fmt: skip
    if sizes.head_dim * sizes.n_heads != sizes.d_model:
        keys[f"{architecture}.attention.key_length"] = Value("u32", sizes.head_dim)
        keys[f"{architecture}.attention.value_length"] = Value("u32", sizes.head_dim)
    epsilon = config.number("rms_norm_eps", default=1e-6, above=0)
    return keys | {
        f"{architecture}.attention.layer_norm_rms_epsilon": Value("f32", epsilon),
        f"{architecture}.rope.dimension_count": Value("u32", sizes.head_dim),
        **rope.keys,
        f"{architecture}.vocab_size": Value("u32", sizes.n_vocab),
    }


def _tensors(config: Config, sizes: _Sizes, rope: Rope, *, tied: bool) -> Iterator[Planned]:
    yield Planned("token_embd.weight", "model.embed_tokens.weight", (sizes.n_vocab, sizes.d_model))
    for layer in range(sizes.n_layers):
        yield from _layer(config, sizes, rope, layer)
    yield from norm("output_norm", "model.norm", sizes.d_model, bias=False)
    if not tied:
        yield Planned("output.weight", "lm_head.weight", (sizes.n_vocab, sizes.d_model))


def _layer(config: Config, sizes: _Sizes, rope: Rope, layer: int) -> Iterator[Planned]:
    ours, theirs = f"blk.{layer}.", f"model.layers.{layer}."
    attention = theirs + "self_attn."
    d_model, d_ff = sizes.d_model, sizes.d_ff
    biased = config.flag("attention_bias", default=False)
    q_rows, kv_rows = (interleaved_rows(heads, sizes.head_dim) for heads in (sizes.n_heads, sizes.n_kv_heads))
    yield from norm(ours + "attn_norm", theirs + "input_layernorm", d_model, bias=False)
    for each in both(ours + "attn_q", attention + "q_proj", len(q_rows), d_model, bias=biased):
        yield replace(each, rows=q_rows, scale=rope.attention_scale)
    for each in both(ours + "attn_k", attention + "k_proj", len(kv_rows), d_model, bias=biased):
        yield replace(each, rows=kv_rows)
    yield from both(ours + "attn_v", attention + "v_proj", len(kv_rows), d_model, bias=biased)
    yield from both(ours + "attn_output", attention + "o_proj", d_model, len(q_rows), bias=biased)
    yield from norm(ours + "ffn_norm", theirs + "post_attention_layernorm", d_model, bias=False)
    biased = config.flag("mlp_bias", default=False)
    yield from both(ours + "ffn_gate", theirs + "mlp.gate_proj", d_ff, d_model, bias=biased)
    yield from both(ours + "ffn_up", theirs + "mlp.up_proj", d_ff, d_model, bias=biased)
    yield from both(ours + "ffn_down", theirs + "mlp.down_proj", d_model, d_ff, bias=biased)

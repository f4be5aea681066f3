"""Writes small `transformers` models as F32 GGUF with llama.cpp's names, for parity tests (no converter involved).

Rotary halves of llama models are permuted to adjacent pairs; falcon's fused qkv becomes all Q, all K, all V.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .tiny_model import write_gguf


def _permute(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows of each head from two halves to adjacent pairs."""
    head_dim = weight.shape[0] // n_heads
    pairs = weight.reshape(n_heads, 2, head_dim // 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _arrays(model: Any) -> dict[str, np.ndarray]:
    return {name: value.detach().float().numpy() for name, value in model.state_dict().items()}


def _common_keys(arch: str, config: Any, d_ff: int, n_kv_heads: int, n_ctx: int) -> dict[str, Any]:
    return {
        f"{arch}.context_length": n_ctx,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": d_ff,
        f"{arch}.block_count": config.num_hidden_layers,
        f"{arch}.attention.head_count": config.num_attention_heads,
        f"{arch}.attention.head_count_kv": n_kv_heads,
    }


def llama3_factors(scaling: dict[str, Any], base: float, head_dim: int) -> np.ndarray:
    """The divisors of RoPE frequencies that Llama 3's scaling stands for."""
    freqs = base ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    wavelength = 2 * np.pi / freqs
    old = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = (old / wavelength - low) / (high - low)
    blended = 1 / ((1 - smooth) / scaling["factor"] + smooth)
    factors = np.where(wavelength < old / high, 1.0, np.where(wavelength > old / low, scaling["factor"], blended))
    return factors.astype(np.float32)


def write_llama(model: Any, path: Path, *, transposed: bool) -> Path:
    """A LlamaForCausalLM (any activation, biases, tied or not, linear or llama3 RoPE scaling)."""
    config, state = model.config, _arrays(model)
    head_dim = config.head_dim
    rope = dict(config.rope_parameters)
    keys = _common_keys(
        "llama", config, config.intermediate_size, config.num_key_value_heads, config.max_position_embeddings
    )
    keys |= {
        "llama.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "llama.attention.key_length": head_dim,
        "llama.attention.value_length": head_dim,
        "llama.rope.dimension_count": head_dim,
        "llama.rope.freq_base": float(rope["rope_theta"]),
        "llama.hidden_activation": config.hidden_act,
    }
    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
    }
    if rope.get("rope_type") == "linear":
        keys |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": float(rope["factor"])}
    if rope.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(rope, rope["rope_theta"], head_dim)
    if not config.tie_word_embeddings:
        tensors["output.weight"] = state["lm_head.weight"]
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for layer in range(config.num_hidden_layers):
        for theirs, ours in names.items():
            for part in ("weight", "bias"):
                value = state.get(f"model.layers.{layer}.{theirs}.{part}")
                if value is None:
                    continue
                if ours in heads:
                    value = _permute(value, heads[ours])
                name = ours
                if ours == "ffn_down" and transposed:
                    name, value = "ffn_down_t", value.T if part == "weight" else value
                tensors[f"blk.{layer}.{name}.{part}"] = value
    return _write(path, "llama", keys, tensors, transposed)


def write_falcon(model: Any, path: Path, *, transposed: bool) -> Path:
    """A FalconForCausalLM, 7B style (multi_query) or 40B style (new_decoder_architecture), rotary, parallel."""
    config, state = model.config, _arrays(model)
    new = config.new_decoder_architecture
    n_heads = config.num_attention_heads
    n_kv = config.num_kv_heads if new else (1 if config.multi_query else n_heads)
    head_dim = config.hidden_size // n_heads
    keys = _common_keys("falcon", config, config.ffn_hidden_size, n_kv, 2048)
    keys |= {
        "falcon.attention.layer_norm_epsilon": float(config.layer_norm_epsilon),
        "falcon.hidden_activation": config.activation,
    }
    tensors = {
        "token_embd.weight": state["transformer.word_embeddings.weight"],
        "output_norm.weight": state["transformer.ln_f.weight"],
        "output_norm.bias": state["transformer.ln_f.bias"],
    }
    if not config.tie_word_embeddings:
        tensors["output.weight"] = state["lm_head.weight"]
    for layer in range(config.num_hidden_layers):
        prefix, blk = f"transformer.h.{layer}.", f"blk.{layer}."
        norms = (
            {"ln_attn": "attn_norm_2", "ln_mlp": "attn_norm"}
            if f"{prefix}ln_attn.weight" in state
            else {"input_layernorm": "attn_norm"}
        )
        for theirs, ours in norms.items():
            tensors |= {f"{blk}{ours}.{part}": state[f"{prefix}{theirs}.{part}"] for part in ("weight", "bias")}
        fused = state[f"{prefix}self_attention.query_key_value.weight"]
        groups = fused.reshape(n_kv, n_heads // n_kv + 2, head_dim, config.hidden_size)
        parts = [groups[:, :-2], groups[:, -2], groups[:, -1]]
        tensors[f"{blk}attn_qkv.weight"] = np.concatenate([part.reshape(-1, config.hidden_size) for part in parts])
        tensors[f"{blk}attn_output.weight"] = state[f"{prefix}self_attention.dense.weight"]
        tensors[f"{blk}ffn_up.weight"] = state[f"{prefix}mlp.dense_h_to_4h.weight"]
        down = state[f"{prefix}mlp.dense_4h_to_h.weight"]
        tensors[blk + ("ffn_down_t.weight" if transposed else "ffn_down.weight")] = down.T if transposed else down
    return _write(path, "falcon", keys, tensors, transposed)


def write_opt(model: Any, path: Path, *, transposed: bool) -> Path:
    """An OPTForCausalLM (pre-norm, no embedding projection)."""
    config, state = model.config, _arrays(model)
    keys = _common_keys("opt", config, config.ffn_dim, config.num_attention_heads, config.max_position_embeddings)
    keys["opt.hidden_activation"] = config.activation_function
    decoder = "model.decoder."
    tensors = {
        "token_embd.weight": state[decoder + "embed_tokens.weight"],
        "position_embd.weight": state[decoder + "embed_positions.weight"],
        "output_norm.weight": state[decoder + "final_layer_norm.weight"],
        "output_norm.bias": state[decoder + "final_layer_norm.bias"],
    }
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.out_proj": "attn_output",
        "fc1": "ffn_up",
        "fc2": "ffn_down",
        "self_attn_layer_norm": "attn_norm",
        "final_layer_norm": "ffn_norm",
    }
    for layer in range(config.num_hidden_layers):
        for theirs, ours in names.items():
            for part in ("weight", "bias"):
                value = state[f"{decoder}layers.{layer}.{theirs}.{part}"]
                name = ours
                if ours == "ffn_down" and transposed:
                    name, value = "ffn_down_t", value.T if part == "weight" else value
                tensors[f"blk.{layer}.{name}.{part}"] = value
    return _write(path, "opt", keys, tensors, transposed)


def _write(path: Path, arch: str, keys: dict[str, Any], tensors: dict[str, np.ndarray], transposed: bool) -> Path:
    f32 = {name: (np.ascontiguousarray(value, dtype=np.float32), "F32") for name, value in tensors.items()}
    write_gguf(path, arch, keys, f32, magic="PWRI" if transposed else "GGUF")
    return path

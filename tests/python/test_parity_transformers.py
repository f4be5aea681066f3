"""Logits of tiny random models against transformers' own forward pass, F32 weights and F32 cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from helpers.compare import spread_error  # noqa: E402
from helpers.hf_to_gguf import write_falcon, write_llama, write_opt  # noqa: E402

import powerinfer_py  # noqa: E402

N_TOKENS = 80
TOLERANCE = 1e-4  # of the spread of the witness's logits

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMA_CASES: dict[str, dict[str, Any]] = {
    "relu": {"hidden_act": "relu"},
    "silu": {"hidden_act": "silu"},
    "gelu": {"hidden_act": "gelu"},
    "mha": {"num_key_value_heads": 4},
    "mqa": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "attention-bias": {"attention_bias": True},
    "mlp-bias": {"mlp_bias": True, "hidden_act": "relu"},
    "head-dim": {"head_dim": 24},
    "rope-base": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "rope-linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "rope-llama3": {"rope_parameters": LLAMA3, "hidden_act": "relu"},
}
FALCON_CASES: dict[str, dict[str, Any]] = {
    "7b": {"multi_query": True, "new_decoder_architecture": False},
    "40b": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "40b-mha": {"new_decoder_architecture": True, "num_kv_heads": 4},
}


def randomize(model: Any) -> Any:
    """Weights large enough that every part matters, norms and biases not constant."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            if value.ndim == 2:
                value.copy_(noise / value.shape[1] ** 0.5)
            elif name.endswith("bias"):
                value.copy_(0.2 * noise)
            else:
                value.copy_(1 + 0.2 * noise)
    return model.eval()


def check(model: Any, path: Path, n_vocab: int) -> None:
    """Our logits, as one prompt and token by token, in every possible mode, against the model's."""
    tokens = np.random.default_rng(7).integers(0, n_vocab, N_TOKENS)
    with torch.no_grad():
        witness = model(torch.tensor(tokens)[None]).logits[0].double().numpy()
    with powerinfer_py.Model(path, n_threads=2) as ours:
        modes = [mode for mode in ("dense", "exact") if mode == "dense" or ours.activation.startswith("relu")]
        for mode in modes:
            with powerinfer_py.Context(ours, kv_type="f32", sparsity=mode) as context:
                prompt = context.eval(tokens, all_logits=True)
                context.reset()
                single = np.stack([context.eval([token]) for token in tokens])
            assert spread_error(prompt, witness) < TOLERANCE
            assert spread_error(single, witness) < TOLERANCE


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("case", LLAMA_CASES)
def test_llama(case: str, transposed: bool, tmp_path: Path) -> None:
    settings = {
        "hidden_size": 64,
        "intermediate_size": 176,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "max_position_embeddings": 256,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    } | LLAMA_CASES[case]
    model = randomize(transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)))
    check(model, write_llama(model, tmp_path / "m.gguf", transposed=transposed), 300)


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("case", FALCON_CASES)
def test_falcon(case: str, activation: str, transposed: bool, tmp_path: Path) -> None:
    config = transformers.FalconConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, vocab_size=300, ffn_hidden_size=192,
        activation=activation, alibi=False, parallel_attn=True, bias=False, **FALCON_CASES[case],
    )  # fmt: skip
    model = randomize(transformers.FalconForCausalLM(config))
    check(model, write_falcon(model, tmp_path / "m.gguf", transposed=transposed), 300)


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
def test_opt(transposed: bool, tmp_path: Path) -> None:
    config = transformers.OPTConfig(
        hidden_size=64, ffn_dim=192, num_hidden_layers=3, num_attention_heads=4, vocab_size=300,
        max_position_embeddings=128, word_embed_proj_dim=64, dropout=0.0,
    )  # fmt: skip
    model = randomize(transformers.OPTForCausalLM(config))
    check(model, write_opt(model, tmp_path / "m.gguf", transposed=transposed), 300)

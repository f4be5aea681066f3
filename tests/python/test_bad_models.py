"""Models that contradict themselves or ask for the unknown: a typed error that names file and key or tensor.

The container's own hostile kinds are tested in C++ (tests/cpp/gguf); here is what only loading a model notices.
"""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.tiny_model import tiny_model

import powerinfer_py as pi

ZERO_ROW = np.zeros((512, 256), np.float32)

# name of the case: (architecture, what is replaced, what the message must name)
KEY_CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "no embedding length": ("llama", {"llama.embedding_length": None}, "embedding_length"),
    "no block count": ("llama", {"llama.block_count": None}, "block_count"),
    "zero layers": ("llama", {"llama.block_count": 0}, "block_count"),
    "absurd layers": ("llama", {"llama.block_count": 2**32 - 1}, "block_count|blk"),
    "one layer too many": ("llama", {"llama.block_count": 3}, r"blk\.2\."),
    "one layer too few": ("llama", {"llama.block_count": 1}, r"blk\.1\."),
    "zero width": ("llama", {"llama.embedding_length": 0}, "embedding_length"),
    "wrong width": ("llama", {"llama.embedding_length": 512}, "token_embd|head|attn"),
    "width as text": ("llama", {"llama.embedding_length": "256"}, "embedding_length"),
    "width as float": ("llama", {"llama.embedding_length": 256.0}, "embedding_length"),
    "zero ffn": ("llama", {"llama.feed_forward_length": 0}, "feed_forward_length"),
    "wrong ffn": ("llama", {"llama.feed_forward_length": 500}, r"ffn_"),
    "zero heads": ("llama", {"llama.attention.head_count": 0}, "head_count"),
    "heads that do not divide": ("llama", {"llama.attention.head_count": 3}, "head"),
    "zero kv heads": ("llama", {"llama.attention.head_count_kv": 0}, "head_count_kv"),
    "kv heads that do not divide": ("llama", {"llama.attention.head_count_kv": 3}, "head_count_kv"),
    "more kv heads than heads": ("llama", {"llama.attention.head_count_kv": 8}, "head_count_kv|attn_k"),
    "zero context": ("llama", {"llama.context_length": 0}, "context_length"),
    "NaN epsilon": ("llama", {"llama.attention.layer_norm_rms_epsilon": math.nan}, "epsilon"),
    "negative epsilon": ("llama", {"llama.attention.layer_norm_rms_epsilon": -1.0}, "epsilon"),
    "NaN rope base": ("llama", {"llama.rope.freq_base": math.nan}, "freq_base"),
    "zero rope base": ("llama", {"llama.rope.freq_base": 0.0}, "freq_base"),
    "unknown rope scaling": ("llama", {"llama.rope.scaling.type": "yarn"}, "yarn"),
    "zero rope factor": (
        "llama",
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.0},
        "scaling",
    ),
    "odd rope dimensions": ("llama", {"llama.rope.dimension_count": 63}, "dimension_count"),
    "too many rope dimensions": ("llama", {"llama.rope.dimension_count": 128}, "dimension_count"),
    "unknown activation": ("llama", {"llama.hidden_activation": "swish"}, "swish"),
    "activation as number": ("llama", {"llama.hidden_activation": 3}, "hidden_activation"),
    "NaN fatrelu": (
        "llama",
        {"llama.hidden_activation": "fatrelu", "llama.hidden_activation_param": math.nan},
        "activation",
    ),
    "fatrelu without a cut": ("llama", {"llama.hidden_activation": "fatrelu"}, "hidden_activation_param"),
    "future version": ("llama", {"powerinfer.version": 2}, "powerinfer.version"),
    "NaN threshold": ("llama", {"powerinfer.sparse_threshold": math.nan}, "threshold"),
    "threshold as text": ("llama", {"powerinfer.sparse_threshold": "0"}, "sparse_threshold"),
    "NaN layer threshold": (
        "llama",
        {"powerinfer.predictor.threshold": np.array([0, math.nan], np.float32)},
        "threshold",
    ),
    "thresholds of other layers": ("llama", {"powerinfer.predictor.threshold": np.zeros(3, np.float32)}, "threshold"),
    "thresholds as integers": ("llama", {"powerinfer.predictor.threshold": np.zeros(2, np.int32)}, "threshold"),
    "predictor kind without tensors": ("llama", {"powerinfer.predictor.kind": "sign"}, "no layer .*ffn_gate_sign"),
    "layer kind without tensors": ("llama", {"powerinfer.predictor.kind": ["mlp", "sign"]}, r"blk\.1\.ffn_gate_sign"),
    "kinds of other layers": ("llama", {"powerinfer.predictor.kind": ["mlp"]}, "predictor.kind"),
    "unknown predictor kind": ("llama", {"powerinfer.predictor.kind": "tree"}, "tree"),
    "unknown predictor input": ("llama", {"powerinfer.predictor.input": "tea"}, "tea"),
    "vocabulary of another size": ("llama", {"tokenizer.ggml.tokens": ["a"] * 3}, "token"),
    "unknown tokenizer": ("llama", {"tokenizer.ggml.model": "wordpiece"}, "wordpiece"),
    "unknown pre-tokenizer": (
        "llama",
        {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "mystery", "tokenizer.ggml.merges": ["a b"]},
        "mystery",
    ),
    "falcon without epsilon": ("falcon", {"falcon.attention.layer_norm_epsilon": math.inf}, "epsilon"),
    "bamboo with silu": ("bamboo", {"bamboo.hidden_activation": "swiglu"}, "swiglu"),
}

TENSOR_CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "no embedding": ("llama", {"token_embd.weight": None}, "token_embd"),
    "no output norm": ("llama", {"output_norm.weight": None}, "output_norm"),
    "no gate": ("llama", {"blk.1.ffn_gate.weight": None}, r"blk\.1\.ffn_gate"),
    "no down": ("llama", {"blk.0.ffn_down_t.weight": None}, r"blk\.0\.ffn_down"),
    "half a predictor": ("llama", {"blk.0.fc2.weight": None}, r"blk\.0\.fc"),
    "predictor of another rank": (
        "llama",
        {"blk.0.fc2.weight": (np.zeros((512, 32), np.float32), "F32")},
        r"blk\.0\.fc",
    ),
    "predictor of other neurons": (
        "llama",
        {"blk.0.fc2.weight": (np.zeros((256, 64), np.float32), "F32")},
        r"blk\.0\.fc2",
    ),
    "transposed query": ("llama", {"blk.0.attn_k.weight": (np.zeros((256, 128), np.float32), "F32")}, "attn_k"),
    "norm of another length": ("llama", {"blk.0.attn_norm.weight": (np.ones(255, np.float32), "F32")}, "attn_norm"),
    "norm as matrix": ("llama", {"blk.0.attn_norm.weight": (np.ones((2, 128), np.float32), "F32")}, "attn_norm"),
    "integers as weights": ("llama", {"blk.0.ffn_up.weight": (ZERO_ROW, "I32")}, "ffn_up"),
    "tensor nobody asked for": ("llama", {"blk.0.mystery.weight": (ZERO_ROW, "F32")}, "mystery"),
    "both down layouts": ("llama", {"blk.0.ffn_down.weight": (ZERO_ROW.T.copy(), "F32")}, "ffn_down"),
    "fused qkv of another size": (
        "falcon",
        {"blk.0.attn_qkv.weight": (np.zeros((256, 256), np.float32), "F32")},
        "attn_qkv",
    ),
    "no position table": ("opt", {"position_embd.weight": None}, "position_embd"),
    "rope factors of another length": (
        "llama",
        {"rope_freqs.weight": (np.ones(5, np.float32), "F32")},
        "rope_freqs",
    ),
}


@pytest.mark.parametrize("name", KEY_CASES)
def test_bad_keys(name: str, tmp_path: Path) -> None:
    arch, keys, named = KEY_CASES[name]
    path = tiny_model(tmp_path / "bad.gguf", arch, predictor_rank=64, metadata=keys).path
    with pytest.raises((pi.FormatError, pi.UnsupportedError), match=named) as caught:
        pi.Model(path)
    assert "bad.gguf" in str(caught.value)


@pytest.mark.parametrize("name", TENSOR_CASES)
def test_bad_tensors(name: str, tmp_path: Path) -> None:
    arch, tensors, named = TENSOR_CASES[name]
    path = tiny_model(tmp_path / "bad.gguf", arch, predictor_rank=64, tensors=tensors).path
    with pytest.raises((pi.FormatError, pi.UnsupportedError), match=named) as caught:
        pi.Model(path)
    assert "bad.gguf" in str(caught.value)


def test_mutants_load_or_give_a_typed_error(tmp_path: Path) -> None:
    """2,000 seeded mutants of three small models, loaded and run in one process with bounded memory."""
    sizes = {"d_model": 32, "d_ff": 32, "n_layers": 1, "n_heads": 2, "n_vocab": 300, "n_ctx": 16, "predictor_rank": 32}
    paths = [tiny_model(tmp_path / f"{a}.gguf", a, **sizes).path for a in ("llama", "falcon", "opt")]  # type: ignore[arg-type]
    program = textwrap.dedent(
        """
        import random, sys
        from pathlib import Path
        import powerinfer_py as pi
        try:
            import resource
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        except ImportError:
            pass
        originals = [Path(name).read_bytes() for name in sys.argv[1:]]
        target = Path(sys.argv[1]).with_name("mutant.gguf")
        n_loaded = n_refused = 0
        for seed in range(2000):
            rng = random.Random(seed)
            data = bytearray(originals[seed % len(originals)])
            for _ in range(rng.choice([1, 1, 2, 4])):
                # Most damage goes where the header is.
                at = rng.randrange(len(data) if rng.random() < 0.2 else 16000)
                kind = rng.randrange(4)
                if kind == 0:
                    data[at] ^= 1 << rng.randrange(8)
                elif kind == 1:
                    data[at] = rng.choice([0, 1, 127, 128, 255])
                elif kind == 2:
                    data[at:at + 8] = rng.choice([0, 1, 2**31, 2**32, 2**63, 2**64 - 1]).to_bytes(8, "little")
                elif rng.random() < 0.2:
                    del data[at:]
                    break
            target.write_bytes(data)
            try:
                with pi.Model(target, n_threads=1) as model, pi.Context(model, n_ctx=4) as context:
                    context.eval([1, 2])
                    if model.has_tokenizer:
                        model.detokenize(model.tokenize("once \\xe9"))
                n_loaded += 1
            except pi.Error as error:
                assert str(error)
                n_refused += 1
        print(n_loaded, n_refused)
        """
    )
    command = [sys.executable, "-c", program, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    n_loaded, n_refused = map(int, done.stdout.split())
    assert n_loaded + n_refused == 2000
    assert n_refused > 50 and n_loaded > 50

"""A real trained llama (stories260K), read from its raw floats: greedy text word for word."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from helpers.compare import shared_data
from helpers.tiny_model import write_gguf

import powerinfer_py


def read_vocabulary(path: Path, n_vocab: int) -> tuple[list[bytes], list[float]]:
    """Pieces and scores of the raw tokenizer file."""
    data = path.read_bytes()
    pieces, scores, at = [], [], 4
    for _ in range(n_vocab):
        score, length = struct.unpack_from("<fi", data, at)
        pieces.append(data[at + 8 : at + 8 + length])
        scores.append(score)
        at += 8 + length
    return pieces, scores


def convert(folder: Path, target: Path) -> Path:
    """The raw file as an F32 GGUF (q and k rows are stored for adjacent pairs already)."""
    raw = (folder / "stories260K.bin").read_bytes()
    dim, d_ff, n_layers, n_heads, n_kv, n_vocab, n_ctx = struct.unpack_from("<7i", raw)
    floats = np.frombuffer(raw, dtype="<f4", offset=28)
    at = 0

    def take(*shape: int) -> np.ndarray:
        nonlocal at
        n = int(np.prod(shape))
        at += n
        return floats[at - n : at].reshape(shape)

    kv = dim // n_heads * n_kv
    values = {
        "token_embd": take(n_vocab, dim),
        "attn_norm": take(n_layers, dim),
        "attn_q": take(n_layers, dim, dim),
        "attn_k": take(n_layers, kv, dim),
        "attn_v": take(n_layers, kv, dim),
        "attn_output": take(n_layers, dim, dim),
        "ffn_norm": take(n_layers, dim),
        "ffn_gate": take(n_layers, d_ff, dim),
        "ffn_down": take(n_layers, dim, d_ff),
        "ffn_up": take(n_layers, d_ff, dim),
        "output_norm": take(dim),
    }
    tensors = {}
    for name, value in values.items():
        if name in ("token_embd", "output_norm"):
            tensors[f"{name}.weight"] = (value, "F32")
            continue
        tensors |= {f"blk.{i}.{name}.weight": (value[i], "F32") for i in range(n_layers)}
    pieces, scores = read_vocabulary(folder / "tok512.bin", n_vocab)
    texts = [piece.decode("utf-8", "replace") for piece in pieces]
    texts[:3] = ["<unk>", "<s>", "</s>"]
    kinds = [2, 3, 3] + [6 if text.startswith("<0x") else 1 for text in texts[3:]]
    keys = {
        "llama.context_length": n_ctx, "llama.embedding_length": dim, "llama.feed_forward_length": d_ff,
        "llama.block_count": n_layers, "llama.attention.head_count": n_heads, "llama.attention.head_count_kv": n_kv,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [text.replace(" ", "\u2581") for text in texts],
        "tokenizer.ggml.scores": np.array(scores, dtype=np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, dtype=np.int32),
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip
    write_gguf(target, "llama", keys, tensors)
    return target


def test_greedy_text_word_for_word(tmp_path: Path) -> None:
    folder = shared_data("stories260k")
    expected = (folder / "stories260K.greedy256.txt").read_text(encoding="utf-8").strip()
    with powerinfer_py.Model(convert(folder, tmp_path / "stories.gguf")) as model:
        assert model.activation == "silu"
        with powerinfer_py.Context(model, n_ctx=512, kv_type="f32") as context:
            pieces = context.generate("Once upon a time", max_tokens=256, temperature=0.0, ignore_eos=True)
            text = "Once upon a time" + "".join(str(piece) for piece in pieces)
    assert len(expected.split()) > 100
    assert text.startswith(expected)  # the witness stops after 256 tokens, prompt included

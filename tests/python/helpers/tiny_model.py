"""Random tiny models of all four architectures, written as GGUF in numpy.

    tiny = tiny_model(tmp_path / "m.gguf", "llama", dtype="Q8_0", predictor_rank=64, density=0.15)

Returns a TinyModel: `path`, `arch`, `config` (sizes) and `tensors` (name -> float32 array as stored, dequantized;
matrices [rows, cols] = GGUF shape reversed), so that a test can compute the same model its own way.

arch              "llama", "bamboo", "falcon" or "opt"
dtype             type of every 2-D tensor: F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q4_K Q5_K Q6_K (1-D tensors are F32)
dtypes            {tensor name or suffix: type} exceptions, e.g. {"fc1.weight": "F16", "token_embd.weight": "Q6_K"}
down              "transposed" (ffn_down_t, [d_ff, d_model]) or "plain" (ffn_down, [d_model, d_ff])
predictor_rank    0 = none, an int, or one per layer (0 = that layer has none; a "sign" layer has one where it is not 0)
predictor_kind    "mlp", "svd", "sign", "none", or one of these per layer
predictor_input, threshold, layer_thresholds, fc2_bias    the keys and tensor of the fact sheet
activation        value of `{arch}.hidden_activation` (None: no key), `activation_param` its parameter
magic             "auto" (PWRI iff transposed down or a predictor), "GGUF" or "PWRI"
d_model d_ff n_layers n_heads n_kv_heads head_dim n_vocab n_ctx    sizes; widths default to multiples of 256
falcon_style      "7b" or "40b" (attn_norm_2)
attn_bias, mlp_bias, tied    llama and bamboo: optional biases; output = token embedding
rope_base, rope_scale, rope_factors    freq_base, linear factor, Llama 3 factors [head_dim / 2]
density           about this share of h != 0, hottest neurons first (hidden dimension 0 is held constant and acts as
                  a per-neuron bias); None: plain random weights, half of a relu layer fires
vocab             "llama" writes a small SentencePiece vocabulary of n_vocab entries, None writes none
chat_template     text of `tokenizer.chat_template`
metadata          extra or replacing keys (value None removes one); tensors: the same for tensors
seed              of the numpy generator
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import gguf
import numpy as np

from .k_quants import quantize_q4_k, quantize_q5_k, quantize_q6_k

K_QUANTIZERS = {"Q4_K": quantize_q4_k, "Q5_K": quantize_q5_k, "Q6_K": quantize_q6_k}
DTYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K"]
ARCHITECTURES = ["llama", "bamboo", "falcon", "opt"]
GATED = {"llama": True, "bamboo": True, "falcon": False, "opt": False}


@dataclass
class TinyModel:
    """What was written: the file, its sizes and its values."""

    path: Path
    arch: str
    config: dict[str, Any]
    tensors: dict[str, np.ndarray] = field(repr=False)


def encode_tensor(values: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """(bytes as [rows, row bytes] or the float array itself, the float32 values they stand for)."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if dtype == "F32":
        return values, values
    if dtype == "F16":
        half = values.astype(np.float16)
        return half, half.astype(np.float32)
    kind = gguf.GGMLQuantizationType[dtype]
    if dtype in K_QUANTIZERS:
        data = K_QUANTIZERS[dtype](values).reshape(values.shape[0], -1)
    else:
        data = gguf.quants.quantize(values, kind).view(np.uint8)
    return data, gguf.quants.dequantize(data, kind).reshape(values.shape).astype(np.float32)


def write_gguf(
    path: Path,
    arch: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[np.ndarray, str]],
    *,
    magic: str = "GGUF",
) -> dict[str, np.ndarray]:
    """Writes keys and tensors ({name: (float32 values, type)}) and returns the values as stored.

    Python ints become u32, floats f32, bools bool, strings string, lists arrays; a numpy scalar or array keeps its
    own width. 1-D tensors whose type is not "I32" are written as F32.
    """
    writer = gguf.GGUFWriter(str(path), arch)
    for key, value in metadata.items():
        _add_key(writer, key, value)
    stored = {}
    for name, (values, dtype) in tensors.items():
        if dtype == "I32":
            stored[name] = np.ascontiguousarray(values, dtype=np.int32)
            writer.add_tensor(name, stored[name])
            continue
        data, stored[name] = encode_tensor(values, dtype if values.ndim > 1 else "F32")
        raw = None if values.ndim == 1 or dtype in ("F32", "F16") else gguf.GGMLQuantizationType[dtype]
        writer.add_tensor(name, data, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open(path, "r+b") as file:
        file.write(magic.encode())
    return stored


def _add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    types = gguf.GGUFValueType
    kinds = {
        "u1": types.UINT8, "i1": types.INT8, "u2": types.UINT16, "i2": types.INT16, "u4": types.UINT32,
        "i4": types.INT32, "u8": types.UINT64, "i8": types.INT64, "f4": types.FLOAT32, "f8": types.FLOAT64,
        "b1": types.BOOL,
    }  # fmt: skip
    if isinstance(value, np.generic):  # first: numpy's float64 is a Python float too
        writer.add_key_value(key, value.item(), kinds[value.dtype.str[1:]])
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, np.ndarray):
        writer.add_key_value(key, value.tolist(), types.ARRAY, sub_type=kinds[value.dtype.str[1:]])
    else:
        writer.add_array(key, list(value))


def spm_vocabulary(n_vocab: int = 512) -> dict[str, Any]:
    """Keys of a small SentencePiece-style vocabulary: <unk> <s> </s>, 256 bytes, letters, then common pieces."""
    if n_vocab < 259:
        raise ValueError("a vocabulary with byte fallback needs at least 259 entries")
    space = "\u2581"
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    types = [2, 3, 3] + [6] * 256
    singles = [space, *"etaoinshrdlucmfwypvbgkjqxzETAOINSHRDLUCMFWYPVBGKJQXZ.,!?'\"-0123456789", "\n"]
    words = re.findall(
        r"\w+", "the and was to of in he she it that his her said you they once upon a time little girl boy"
    )
    pieces = list(singles)
    for word in words:
        for whole in (word, space + word):
            pieces += [whole[:end] for end in range(2, len(whole) + 1)]
    pieces = list(dict.fromkeys(pieces))
    pieces += [f"{a}{b}" for a in "etaoinshrdlucm" for b in "etaoinshrdlucmfwyp" if f"{a}{b}" not in pieces]
    pieces += [f"<filler_{i}>" for i in range(max(0, n_vocab - 259 - len(pieces)))]
    pieces = pieces[: n_vocab - 259]
    tokens += pieces
    types += [1 if not p.startswith("<filler_") else 5 for p in pieces]
    # Longer pieces score higher, so that merges go on to whole words.
    scores = [0.0] * 259 + [-1000.0 / len(p) - i for i, p in enumerate(pieces)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
    }


def tiny_model(
    path: Path | str,
    arch: str = "llama",
    *,
    dtype: str = "F32",
    dtypes: Mapping[str, str] | None = None,
    down: str = "transposed",
    predictor_rank: int | Sequence[int] = 0,
    predictor_kind: str | Sequence[str] | None = None,
    predictor_input: str | None = None,
    threshold: float | None = None,
    layer_thresholds: Sequence[float] | None = None,
    fc2_bias: bool = False,
    activation: str | None = None,
    activation_param: float | None = None,
    magic: str = "auto",
    d_model: int = 256,
    d_ff: int = 512,
    n_layers: int = 2,
    n_heads: int = 4,
    n_kv_heads: int | None = None,
    head_dim: int | None = None,
    n_vocab: int = 512,
    n_ctx: int = 256,
    falcon_style: str = "7b",
    attn_bias: bool = False,
    mlp_bias: bool = False,
    tied: bool = False,
    rope_base: float | None = None,
    rope_scale: float | None = None,
    rope_factors: Sequence[float] | None = None,
    density: float | None = None,
    vocab: str | None = "llama",
    chat_template: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, tuple[np.ndarray, str] | None] | None = None,
    seed: int = 0,
) -> TinyModel:
    """Writes a random model; parameters at the top of this file."""
    path = Path(path)
    rng = np.random.default_rng(seed)
    if n_kv_heads is None:
        n_kv_heads = {"llama": max(1, n_heads // 2), "bamboo": max(1, n_heads // 2), "opt": n_heads}.get(
            arch, 1 if falcon_style == "7b" else max(1, n_heads // 2)
        )
    head_dim = head_dim or d_model // n_heads
    ranks = [predictor_rank] * n_layers if isinstance(predictor_rank, int) else list(predictor_rank)
    config = {
        "d_model": d_model, "d_ff": d_ff, "n_layers": n_layers, "n_heads": n_heads, "n_kv_heads": n_kv_heads,
        "head_dim": head_dim, "n_vocab": n_vocab, "n_ctx": n_ctx, "ranks": ranks,
        "falcon_style": falcon_style if arch == "falcon" else None,
    }  # fmt: skip

    builder = _Builder(rng, arch, config, density)
    builder.globals(tied=tied, rope_factors=rope_factors)
    for layer in range(n_layers):
        builder.attention(layer, attn_bias=attn_bias)
        builder.ffn(layer, plain_down=down == "plain", mlp_bias=mlp_bias)
        kind = predictor_kind if isinstance(predictor_kind, str) else (predictor_kind or ["mlp"] * n_layers)[layer]
        builder.predictor(layer, ranks[layer], kind, fc2_bias=fc2_bias)

    chosen: dict[str, tuple[np.ndarray, str]] = {}
    exceptions = dtypes or {}
    for name, values in builder.tensors.items():
        kind = next((t for suffix, t in exceptions.items() if name == suffix or name.endswith("." + suffix)), dtype)
        chosen[name] = (values, "I32" if values.dtype == np.int32 else kind)
    for name, replacement in (tensors or {}).items():
        if replacement is None:
            del chosen[name]
        else:
            chosen[name] = replacement

    keys = _hyperparameters(arch, config)
    if rope_base is not None:
        keys[f"{arch}.rope.freq_base"] = float(rope_base)
    if rope_scale is not None:
        keys[f"{arch}.rope.scaling.type"] = "linear"
        keys[f"{arch}.rope.scaling.factor"] = float(rope_scale)
    if activation is not None:
        keys[f"{arch}.hidden_activation"] = activation
    if activation_param is not None:
        keys[f"{arch}.hidden_activation_param"] = float(activation_param)
    if threshold is not None:
        keys["powerinfer.sparse_threshold"] = float(threshold)
    if layer_thresholds is not None:
        keys["powerinfer.predictor.threshold"] = np.array(layer_thresholds, np.float32)
    if predictor_kind is not None:
        keys["powerinfer.predictor.kind"] = predictor_kind
    if predictor_input is not None:
        keys["powerinfer.predictor.input"] = predictor_input
    if vocab == "llama":
        keys.update(spm_vocabulary(n_vocab))
    if chat_template is not None:
        keys["tokenizer.chat_template"] = chat_template
    for key, value in (metadata or {}).items():
        if value is None:
            keys.pop(key, None)
        else:
            keys[key] = value

    if magic == "auto":
        magic = "PWRI" if down == "transposed" or any(ranks) else "GGUF"
    return TinyModel(path, arch, config, write_gguf(path, arch, keys, chosen, magic=magic))


def _hyperparameters(arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "general.name": f"tiny {arch}",
        # The published opt files count the two extra rows of the position table.
        f"{arch}.context_length": config["n_ctx"] + (2 if arch == "opt" else 0),
        f"{arch}.embedding_length": config["d_model"],
        f"{arch}.block_count": config["n_layers"],
        f"{arch}.feed_forward_length": config["d_ff"],
        f"{arch}.attention.head_count": config["n_heads"],
        f"{arch}.attention.head_count_kv": config["n_kv_heads"],
    }
    if arch in ("llama", "bamboo"):
        keys[f"{arch}.attention.layer_norm_rms_epsilon"] = 1e-5
        keys[f"{arch}.rope.dimension_count"] = config["head_dim"]
        if config["head_dim"] * config["n_heads"] != config["d_model"]:
            keys[f"{arch}.attention.key_length"] = config["head_dim"]
            keys[f"{arch}.attention.value_length"] = config["head_dim"]
    if arch == "falcon":
        keys[f"{arch}.attention.layer_norm_epsilon"] = 1e-5
    return keys


class _Builder:
    """Draws the tensors of one model, as [rows, cols] arrays."""

    def __init__(self, rng: np.random.Generator, arch: str, config: Mapping[str, Any], density: float | None) -> None:
        self.rng, self.arch, self.config, self.density = rng, arch, config, density
        self.tensors: dict[str, np.ndarray] = {}

    def matrix(self, rows: int, cols: int, gain: float = 1.0) -> np.ndarray:
        return (self.rng.standard_normal((rows, cols)) * gain / np.sqrt(cols)).astype(np.float32)

    def norm(self, name: str, *, bias: bool) -> None:
        width = self.config["d_model"]
        self.tensors[f"{name}.weight"] = (1 + 0.1 * self.rng.standard_normal(width)).astype(np.float32)
        if bias:
            self.tensors[f"{name}.bias"] = (0.1 * self.rng.standard_normal(width)).astype(np.float32)

    def bias(self, name: str, width: int) -> None:
        self.tensors[name] = (0.1 * self.rng.standard_normal(width)).astype(np.float32)

    def globals(self, *, tied: bool, rope_factors: Sequence[float] | None) -> None:
        c = self.config
        embedding = self.rng.standard_normal((c["n_vocab"], c["d_model"])).astype(np.float32)
        if self.density is not None:
            embedding[:, 0] = 4.0
        self.tensors["token_embd.weight"] = embedding
        if self.arch == "opt":
            positions = 0.1 * self.rng.standard_normal((c["n_ctx"] + 2, c["d_model"])).astype(np.float32)
            if self.density is not None:
                positions[:, 0] = 0
            self.tensors["position_embd.weight"] = positions
        elif not tied:
            self.tensors["output.weight"] = self.matrix(c["n_vocab"], c["d_model"])
        self.norm("output_norm", bias=self.arch in ("falcon", "opt"))
        if rope_factors is not None:
            self.tensors["rope_freqs.weight"] = np.array(rope_factors, np.float32)

    def attention(self, layer: int, *, attn_bias: bool) -> None:
        c, prefix = self.config, f"blk.{layer}."
        layer_norm = self.arch in ("falcon", "opt")
        q_rows, kv_rows = c["n_heads"] * c["head_dim"], c["n_kv_heads"] * c["head_dim"]
        self.norm(prefix + "attn_norm", bias=layer_norm)
        if self.arch == "falcon":
            if c["falcon_style"] == "40b":
                self.norm(prefix + "attn_norm_2", bias=True)
            self.tensors[prefix + "attn_qkv.weight"] = self.matrix(q_rows + 2 * kv_rows, c["d_model"], 1.5)
        else:
            self.norm(prefix + "ffn_norm", bias=layer_norm)
            for name, rows in (("attn_q", q_rows), ("attn_k", kv_rows), ("attn_v", kv_rows)):
                self.tensors[f"{prefix}{name}.weight"] = self.matrix(rows, c["d_model"], 1.5)
                if attn_bias or self.arch == "opt":
                    self.bias(f"{prefix}{name}.bias", rows)
        output = self.matrix(c["d_model"], q_rows)
        if self.density is not None:
            output[0] = 0
        self.tensors[prefix + "attn_output.weight"] = output
        if attn_bias or self.arch == "opt":
            self.bias(prefix + "attn_output.bias", c["d_model"])
            if self.density is not None:
                self.tensors[prefix + "attn_output.bias"][0] = 0

    def ffn(self, layer: int, *, plain_down: bool, mlp_bias: bool) -> None:
        c, prefix = self.config, f"blk.{layer}."
        names = ["ffn_gate", "ffn_up"] if GATED[self.arch] else ["ffn_up"]
        for name in names:
            values = self.matrix(c["d_ff"], c["d_model"])
            if self.density is not None and name == names[0]:
                values[:, 0] = self._gate_shift()
            self.tensors[f"{prefix}{name}.weight"] = values
            if mlp_bias or self.arch == "opt":
                self.bias(f"{prefix}{name}.bias", c["d_ff"])
        down = self.matrix(c["d_ff"], c["d_model"], 2.0)  # one row per neuron
        if self.density is not None:
            down[:, 0] = 0
        name = "ffn_down" if plain_down else "ffn_down_t"
        self.tensors[f"{prefix}{name}.weight"] = np.ascontiguousarray(down.T) if plain_down else down
        if mlp_bias or self.arch == "opt":
            self.bias(f"{prefix}{name}.bias", c["d_model"])
            if self.density is not None:
                self.tensors[f"{prefix}{name}.bias"][0] = 0

    def _gate_shift(self) -> np.ndarray:
        """Weights of the constant dimension: neuron n fires with a probability that falls geometrically with n."""
        d_ff = self.config["d_ff"]
        falling = np.exp(-4.0 * np.arange(d_ff) / d_ff)
        chance = np.clip(falling * float(self.density or 0) / falling.mean(), 1e-4, 0.97)
        constant = 4.0 / np.sqrt(2.0)  # the constant's size after the norm, residual growth of a layer included
        return np.array([NormalDist().inv_cdf(float(p)) / constant for p in chance], np.float32)

    def predictor(self, layer: int, rank: int, kind: str, *, fc2_bias: bool) -> None:
        if rank == 0 or kind == "none":
            return
        c, prefix = self.config, f"blk.{layer}."
        if fc2_bias:
            self.bias(prefix + "fc2.bias", c["d_ff"])
        if kind == "sign":
            first = self.tensors[f"{prefix}{'ffn_gate' if GATED[self.arch] else 'ffn_up'}.weight"]
            bits = np.pad(first < 0, ((0, 0), (0, -first.shape[1] % 32)))
            words = np.packbits(bits, axis=1, bitorder="little").view("<i4")
            self.tensors[prefix + "ffn_gate_sign.weight"] = words
            return
        self.tensors[prefix + "fc1.weight"] = self.matrix(rank, c["d_model"])
        self.tensors[prefix + "fc2.weight"] = self.matrix(c["d_ff"], rank)

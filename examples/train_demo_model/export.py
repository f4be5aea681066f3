"""Write the trained demo model as one Q8_0 file in the PowerInfer layout.

    python export.py --work work --out story.powerinfer.gguf

Reads checkpoint.pt and tokenizer.model from --work. Two-dimensional tensors become Q8_0, norms stay F32.
"""

import argparse
import hashlib
import os
import struct
from pathlib import Path

import gguf
import numpy as np
import sentencepiece as spm
import torch
from corpus import BOS_ID, END_OF_TEXT, END_OF_TEXT_LINE, load_tokenizer
from model import DemoModel, ModelConfig

ARCHITECTURE = "llama"
MAGIC = b"PWRI"
FORMAT_VERSION = 1
Q8_0 = gguf.GGMLQuantizationType.Q8_0
F32 = gguf.GGMLQuantizationType.F32
LAYER_TENSORS = {
    "attn_norm": "attn_norm.weight",
    "attn_q": "attn.q.weight",
    "attn_k": "attn.k.weight",
    "attn_v": "attn.v.weight",
    "attn_output": "attn.o.weight",
    "ffn_norm": "ffn_norm.weight",
    "ffn_gate": "ffn.gate.weight",
    "ffn_up": "ffn.up.weight",
    "ffn_down_t": "ffn.down.weight",
}
DESCRIPTION = (
    "ReLU llama that writes short children's stories; trained from scratch on TinyStories (CDLA-Sharing-1.0), "
    "African Storybook and Pratham Books StoryWeaver (CC-BY), and public domain fairy tales and children's books"
)

FileTensors = dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]]


def load_checkpoint(path: Path) -> DemoModel:
    """The model of a checkpoint, in float32."""
    saved = torch.load(path, weights_only=True)
    model = DemoModel(ModelConfig(**saved["config"]))
    model.load_state_dict(saved["model"])
    return model.eval()


def parameter_names(n_layers: int) -> dict[str, str]:
    """Name in the file -> name of the torch parameter. `ffn_down_t` holds the transpose of its parameter."""
    names = {"token_embd.weight": "embed.weight", "output_norm.weight": "norm.weight"}
    for i in range(n_layers):
        names.update({f"blk.{i}.{ours}.weight": f"layers.{i}.{theirs}" for ours, theirs in LAYER_TENSORS.items()})
    return names


def file_tensors(model: DemoModel) -> FileTensors:
    """All tensors as they go into the file: name -> (values or quantized blocks, type).

    The query and key rows already have the order that rotation of adjacent pairs needs.
    """
    state = model.state_dict()
    tensors = {}
    for name, parameter in parameter_names(model.config.n_layers).items():
        values = state[parameter].float().numpy()
        if "ffn_down_t" in name:
            values = np.ascontiguousarray(values.T)  # [d_ff, d_model]: row n belongs to neuron n
        tensors[name] = (gguf.quants.quantize(values, Q8_0), Q8_0) if values.ndim == 2 else (values, F32)
    return tensors


def fingerprint(tensors: FileTensors) -> str:
    """BLAKE2b-128 over the tensors sorted by name: name, then type and shape as little-endian u64, then the data."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        data, dtype = tensors[name]
        shape = gguf.quant_shape_from_byte_shape(data.shape, dtype) if dtype == Q8_0 else data.shape
        digest.update(name.encode("utf-8"))
        digest.update(struct.pack(f"<{1 + len(shape)}Q", int(dtype), *reversed(shape)))
        digest.update(data.tobytes())
    return digest.hexdigest()


def add_model_keys(writer: gguf.GGUFWriter, config: ModelConfig, digest: str) -> None:
    """Everything but the tokenizer."""
    writer.add_name("PowerInfer demo story model")
    writer.add_description(DESCRIPTION)
    writer.add_license("mit")
    writer.add_languages(["en"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(config.n_vocab)
    writer.add_context_length(config.n_ctx)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.n_layers)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_string(f"{ARCHITECTURE}.hidden_activation", "relu")
    writer.add_uint32("powerinfer.version", FORMAT_VERSION)
    writer.add_string("powerinfer.fingerprint", digest)


def token_type(tokenizer: spm.SentencePieceProcessor, token: int) -> gguf.TokenType:
    """The GGUF type of a SentencePiece token; what has none of the other types and scores 0 is user-defined."""
    if tokenizer.is_unknown(token):
        return gguf.TokenType.UNKNOWN
    if tokenizer.is_control(token):
        return gguf.TokenType.CONTROL
    if tokenizer.is_byte(token):
        return gguf.TokenType.BYTE
    if tokenizer.id_to_piece(token) in (END_OF_TEXT, "\n", "\n\n"):
        return gguf.TokenType.USER_DEFINED
    return gguf.TokenType.NORMAL


def add_tokenizer_keys(writer: gguf.GGUFWriter, tokenizer: spm.SentencePieceProcessor) -> None:
    """The SentencePiece model in llama.cpp's terms."""
    ids = range(tokenizer.vocab_size())
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    pieces = {END_OF_TEXT: END_OF_TEXT_LINE}
    writer.add_token_list([pieces.get(tokenizer.id_to_piece(i), tokenizer.id_to_piece(i)) for i in ids])
    writer.add_token_scores([tokenizer.get_score(i) for i in ids])
    writer.add_token_types([token_type(tokenizer, i) for i in ids])
    writer.add_bos_token_id(BOS_ID)
    writer.add_eos_token_id(tokenizer.piece_to_id(END_OF_TEXT))
    writer.add_unk_token_id(tokenizer.unk_id())
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)


def export(model: DemoModel, tokenizer: spm.SentencePieceProcessor, path: Path) -> None:
    """Write the file under a temporary name, set its magic, and rename it."""
    tensors = file_tensors(model)
    temporary = path.with_name(path.name + ".tmp")
    writer = gguf.GGUFWriter(temporary, ARCHITECTURE)
    add_model_keys(writer, model.config, fingerprint(tensors))
    add_tokenizer_keys(writer, tokenizer)
    for name, (data, dtype) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with temporary.open("r+b") as file:
        file.write(MAGIC)
    os.replace(temporary, path)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder that train.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    args = parser.parse_args()
    export(load_checkpoint(args.work / "checkpoint.pt"), load_tokenizer(args.work / "tokenizer.model"), args.out)
    print(f"{args.out}: {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()

"""Writes a trained demo model as people publish models: a Hugging Face folder.

    python save_hf.py --work work --out story-hf

Reads checkpoint.pt and tokenizer.model from --work. `powerinfer convert story-hf -o story.gguf` goes on from there.
"""

import argparse
import json
import shutil
from pathlib import Path

import sentencepiece as spm
import torch
from corpus import END_OF_TEXT, load_tokenizer
from model import DemoModel, ModelConfig
from safetensors.torch import save_file

LAYER_NAMES = {
    "self_attn.q_proj": "attn.q",
    "self_attn.k_proj": "attn.k",
    "self_attn.v_proj": "attn.v",
    "self_attn.o_proj": "attn.o",
    "mlp.gate_proj": "ffn.gate",
    "mlp.up_proj": "ffn.up",
    "mlp.down_proj": "ffn.down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
ROTATED = ("self_attn.q_proj", "self_attn.k_proj")


def load_checkpoint(path: Path) -> DemoModel:
    """The model of a checkpoint, in float32."""
    saved = torch.load(path, weights_only=True)
    model = DemoModel(ModelConfig(**saved["config"]))
    model.load_state_dict(saved["model"])
    return model.eval()


def halves_from_pairs(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of queries or keys [n_heads * head_dim, d_model], from rotation of adjacent pairs to rotation of halves."""
    return weight.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2).contiguous()


def hf_tensors(model: DemoModel) -> dict[str, torch.Tensor]:
    """All tensors under their published names."""
    state = {name: tensor.float().contiguous() for name, tensor in model.state_dict().items()}
    tensors = {"model.embed_tokens.weight": state["embed.weight"], "model.norm.weight": state["norm.weight"]}
    for layer in range(model.config.n_layers):
        for theirs, ours in LAYER_NAMES.items():
            weight = state[f"layers.{layer}.{ours}.weight"]
            if theirs in ROTATED:
                weight = halves_from_pairs(weight, model.config.head_dim)
            tensors[f"model.layers.{layer}.{theirs}.weight"] = weight
    return tensors


def hf_config(config: ModelConfig, eos: int) -> dict[str, object]:
    """config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "relu",
        "vocab_size": config.n_vocab,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.n_ctx,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_base,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": eos,
    }


def save(model: DemoModel, tokenizer_file: Path, folder: Path, *, title: str, description: str) -> None:
    """Writes config, weights, vocabulary and a README with title and licence into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer: spm.SentencePieceProcessor = load_tokenizer(tokenizer_file)
    shutil.copyfile(tokenizer_file, folder / "tokenizer.model")
    settings = {"add_bos_token": True, "add_eos_token": False, "eos_token": END_OF_TEXT}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "README.md").write_text(
        f"---\nlicense: mit\nlanguage:\n- en\nmodel_name: {title}\n---\n\n# {title}\n\n{description}\n"
    )
    save_file(hf_tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    config = hf_config(model.config, tokenizer.piece_to_id(END_OF_TEXT))
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder that train.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    save(
        load_checkpoint(args.work / "checkpoint.pt"),
        args.work / "tokenizer.model",
        args.out,
        title="PowerInfer demo story model",
        description="ReLU llama that writes short children's stories; trained from scratch on TinyStories, African "
        "Storybook, Pratham Books StoryWeaver, and public domain fairy tales and children's books.",
    )


if __name__ == "__main__":
    main()

"""Small random checkpoints of every supported class, as folders, with a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

N_VOCAB = 320
TEXT = [
    f"The {a} {b} sat on {n} mats, and they've said: it isn't so!"
    for a in ("old", "big")
    for b in ("cat", "dog")
    for n in range(40)
]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"

_SIZES = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": N_VOCAB}
_GATED = _SIZES | {"intermediate_size": 192, "num_key_value_heads": 2, "max_position_embeddings": 128}


def make_model(name: str, **settings: Any) -> Any:
    """A model of a class of transformers with random weights, none of them at its default."""
    sizes = _GATED if name in ("Llama", "Mistral") else _SIZES
    if name == "Falcon":
        sizes = sizes | {"ffn_hidden_size": 192, "alibi": False, "parallel_attn": True, "bias": False}
    if name == "OPT":
        sizes = sizes | {"ffn_dim": 192, "word_embed_proj_dim": 64, "max_position_embeddings": 128, "dropout": 0.0}
    config = getattr(transformers, f"{name}Config")(**(sizes | settings))
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            if value.ndim == 2:
                value.copy_(noise / value.shape[1] ** 0.5)
            else:
                value.copy_(0.2 * noise + (0.0 if key.endswith("bias") else 1.0))
    return model.eval()


def save(model: Any, folder: Path, *, config: dict[str, Any] | None = None, **options: Any) -> Path:
    """The model and a byte-level tokenizer in a folder; `config` replaces values of config.json."""
    model.save_pretrained(folder, **options)
    change_config(folder, **(config or {}))
    add_bpe_tokenizer(folder)
    return folder


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def add_bpe_tokenizer(folder: Path, *, words: str = "gpt-2", n_vocab: int = N_VOCAB) -> None:
    """A byte-level BPE as tokenizer.json, with special tokens and a chat template."""
    import tokenizers  # noqa: PLC0415
    from tokenizers import Regex, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415

    from powerinfer_py.convert.tokenizers.pre_tokenizers import _WORDS_LLAMA3, _WORDS_QWEN2  # noqa: PLC0415

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    steps = {
        "gpt-2": [byte_level],
        "smollm": [pre_tokenizers.Digits(individual_digits=True), byte_level],
        "llama-bpe": [pre_tokenizers.Split(Regex(_WORDS_LLAMA3), "isolated"), plain],
        "qwen2": [pre_tokenizers.Split(Regex(_WORDS_QWEN2), "isolated"), plain],
        "falcon": [
            pre_tokenizers.Punctuation("contiguous"),
            byte_level,
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ],
    }[words]
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=words == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocab,
        special_tokens=["<s>", "</s>", "<|turn|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "chat_template": TEMPLATE,
            }
        )
    )


def train_sentencepiece(path: Path, **options: Any) -> None:
    """A SentencePiece BPE model with byte fallback."""
    import sentencepiece  # noqa: PLC0415

    settings = {"normalization_rule_name": "identity", "model_type": "bpe", "byte_fallback": True} | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_prefix=str(path.with_suffix("")),
        vocab_size=N_VOCAB,
        minloglevel=2,
        **settings,
    )

"""Trains a tiny ReLU llama on any text within seconds, as a Hugging Face folder: something to try the tools on.

    python tiny.py --text FILE... --out tiny-hf --steps 150

Two layers of 64 neurons width; it learns little more than which letters follow each other, but its neurons specialise
enough to be predicted. The same arguments give the same model on the same machine.
"""

import argparse
from pathlib import Path

import numpy as np
import sentencepiece as spm
import torch
from corpus import END_OF_TEXT
from model import DemoModel, ModelConfig
from save_hf import save
from torch.nn import functional

CONFIG = ModelConfig(n_vocab=384, d_model=64, d_ff=256, n_layers=2, n_heads=2, n_kv_heads=1, n_ctx=256)
WINDOWS, LENGTH = 16, 64
PENALTY = 0.05  # on the mean of relu(gate): half-way to a sparse model


def train_tokenizer(text: str, prefix: Path) -> Path:
    """A SentencePiece model of CONFIG.n_vocab pieces at `prefix`.model."""
    spm.SentencePieceTrainer.train(
        sentence_iterator=(line for line in text.splitlines() if line.strip()),
        model_prefix=str(prefix),
        model_type="bpe",
        vocab_size=CONFIG.n_vocab,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        user_defined_symbols=[END_OF_TEXT, "\n"],
        eos_id=-1,
        minloglevel=2,
    )
    return prefix.with_suffix(".model")


def train(tokens: np.ndarray, n_steps: int) -> DemoModel:
    """A model after `n_steps` steps over random windows of `tokens`."""
    torch.set_num_threads(1)  # matrices this small gain nothing from more
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    model = DemoModel(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(n_steps):
        starts = rng.integers(0, len(tokens) - LENGTH, size=WINDOWS)
        windows = torch.from_numpy(np.stack([tokens[start : start + LENGTH + 1] for start in starts]))
        logits, gate_means, _ = model(windows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()) + PENALTY * gate_means.sum()
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * (1 - step / n_steps)
        optimizer.step()
    return model.eval()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="UTF-8 text, some ten thousand words")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    text = "\n".join(path.read_text(encoding="utf-8") for path in args.text)
    tokenizer_file = train_tokenizer(text, args.out / "trained")
    tokens = np.array(spm.SentencePieceProcessor(model_file=str(tokenizer_file)).encode(text), dtype=np.int64)
    model = train(tokens, args.steps)
    save(model, tokenizer_file, args.out, title="Tiny ReLU llama", description="A toy for trying the tools.")
    for leftover in args.out.glob("trained.*"):
        leftover.unlink()


if __name__ == "__main__":
    main()

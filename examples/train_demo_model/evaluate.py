"""Held-out loss and density, by llama.cpp's definition of perplexity."""

import math
from dataclasses import asdict, dataclass

import sentencepiece as spm
import torch
from corpus import BOS_ID
from model import DemoModel
from torch.nn import functional

WINDOW = 256
BATCH = 16


@dataclass(frozen=True)
class HeldoutResult:
    """What was measured on the held-out text."""

    bits_per_byte: float
    perplexity: float
    density: float
    layer_densities: list[float]
    n_scored: int

    def to_dict(self) -> dict:
        """Plain dictionary with rounded numbers."""
        return {k: [round(x, 4) for x in v] if isinstance(v, list) else round(v, 4) for k, v in asdict(self).items()}


@torch.no_grad()
def evaluate_heldout(
    model: DemoModel, tokens: list[int], tokenizer: spm.SentencePieceProcessor, dtype: torch.dtype = torch.bfloat16
) -> HeldoutResult:
    """Measure the model on the tokens of the whole held-out file (without BOS, which is put in front here).

    Windows of 256 tokens; the first of each is replaced by BOS; the second half of each is scored. Bits per byte are
    per byte of the scored tokens; densities are over all positions.
    """
    ids = torch.tensor([BOS_ID, *tokens])
    n_windows = len(ids) // WINDOW
    windows = ids[: n_windows * WINDOW].view(n_windows, WINDOW)
    piece_bytes = torch.tensor([len(token_bytes(tokenizer, i)) for i in range(tokenizer.vocab_size())])
    first = WINDOW // 2
    targets = windows[:, first + 1 :]
    inputs = windows.clone()
    inputs[:, 0] = BOS_ID
    nll, densities = 0.0, torch.zeros(model.config.n_layers, dtype=torch.float64)
    for begin in range(0, n_windows, BATCH):
        batch = inputs[begin : begin + BATCH]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits, _, density = model(batch)
        scored = logits[:, first:-1].float().flatten(0, 1)
        nll += float(functional.cross_entropy(scored, targets[begin : begin + BATCH].flatten(), reduction="sum"))
        densities += density.double() * len(batch) / n_windows
    return HeldoutResult(
        bits_per_byte=nll / math.log(2) / int(piece_bytes[targets].sum()),
        perplexity=math.exp(nll / targets.numel()),
        density=float(densities.mean()),
        layer_densities=densities.tolist(),
        n_scored=targets.numel(),
    )


def token_bytes(tokenizer: spm.SentencePieceProcessor, token: int) -> bytes:
    """The bytes that a token stands for in the text."""
    if tokenizer.is_byte(token):
        return bytes([int(tokenizer.id_to_piece(token)[3:5], 16)])
    if tokenizer.is_control(token) or tokenizer.is_unknown(token):
        return b""
    return tokenizer.id_to_piece(token).replace("\u2581", " ").encode("utf-8")

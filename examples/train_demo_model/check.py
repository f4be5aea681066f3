"""Check and measure an exported demo model, from nothing but the file.

    python check.py --model story.powerinfer.gguf --corpus corpus --work work

Compares a plain numpy forward pass over the file with the torch model, llama.cpp's tokenization rule with the
SentencePiece library, and then measures held-out bits per byte, density, and sampled stories.
"""

import argparse
import re
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
import torch
from corpus import BOS_ID, END_OF_TEXT, HELDOUT, encode, load_tokenizer, read_part
from evaluate import evaluate_heldout
from export import fingerprint, parameter_names
from model import DemoModel, ModelConfig

STORY_PROMPTS = ("Once upon a time", "")
STORY_TOKENS = 256
STORY_SEEDS = range(1, 11)
# The engine's default sampler chain.
TOP_K, TOP_P, MIN_P, TEMPERATURE = 40, 0.95, 0.05, 0.8


class ModelFile:
    """Keys and tensors of an exported file."""

    def __init__(self, path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy.gguf"  # the gguf package refuses our magic
            copy.write_bytes(b"GGUF" + path.read_bytes()[4:])
            reader = gguf.GGUFReader(copy)
            self.keys = {name: field.contents() for name, field in reader.fields.items()}
            self.stored = {t.name: (np.array(t.data), t.tensor_type) for t in reader.tensors}
        self.tensors = {
            name: gguf.quants.dequantize(data, dtype).astype(np.float32) for name, (data, dtype) in self.stored.items()
        }

    def config(self) -> ModelConfig:
        """The model's shape, from the keys."""
        keys = self.keys
        return ModelConfig(
            n_vocab=len(keys["tokenizer.ggml.tokens"]),
            d_model=keys["llama.embedding_length"],
            d_ff=keys["llama.feed_forward_length"],
            n_layers=keys["llama.block_count"],
            n_heads=keys["llama.attention.head_count"],
            n_kv_heads=keys["llama.attention.head_count_kv"],
            n_ctx=keys["llama.context_length"],
            norm_eps=keys["llama.attention.layer_norm_rms_epsilon"],
            rope_base=keys["llama.rope.freq_base"],
        )

    def torch_model(self) -> DemoModel:
        """The torch model with the file's dequantized weights."""
        model = DemoModel(self.config())
        state = {}
        for name, parameter in parameter_names(model.config.n_layers).items():
            values = self.tensors[name]
            state[parameter] = torch.from_numpy(np.ascontiguousarray(values.T if "ffn_down_t" in name else values))
        model.load_state_dict(state)
        return model.eval()


def numpy_logits(file: ModelFile, tokens: list[int]) -> np.ndarray:
    """Logits [pos, n_vocab] by a slow, obvious double-precision forward pass that shares no code with the model."""
    c = file.config()
    w = {name: values.astype(np.float64) for name, values in file.tensors.items()}

    def norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + c.norm_eps) * gain

    def rotate(x: np.ndarray) -> np.ndarray:
        out = x.copy()  # [pos, head_dim]
        for pos in range(len(x)):
            for j in range(c.head_dim // 2):
                turn = np.exp(1j * pos * c.rope_base ** (-2 * j / c.head_dim))
                pair = (x[pos, 2 * j] + 1j * x[pos, 2 * j + 1]) * turn
                out[pos, 2 * j], out[pos, 2 * j + 1] = pair.real, pair.imag
        return out

    x = w["token_embd.weight"][tokens]
    for i in range(c.n_layers):
        layer = {name.split(".")[2]: values for name, values in w.items() if name.startswith(f"blk.{i}.")}
        z = norm(x, layer["attn_norm"])
        q, k, v = (z @ layer[name].T for name in ("attn_q", "attn_k", "attn_v"))
        heads = []
        for head in range(c.n_heads):
            kv = head * c.n_kv_heads // c.n_heads
            part, kv_part = (slice(n * c.head_dim, (n + 1) * c.head_dim) for n in (head, kv))
            scores = rotate(q[:, part]) @ rotate(k[:, kv_part]).T / np.sqrt(c.head_dim)
            scores[np.triu_indices(len(x), 1)] = -np.inf
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(scores / scores.sum(-1, keepdims=True) @ v[:, kv_part])
        x = x + np.concatenate(heads, -1) @ layer["attn_output"].T
        z = norm(x, layer["ffn_norm"])
        x = x + (np.maximum(z @ layer["ffn_gate"].T, 0) * (z @ layer["ffn_up"].T)) @ layer["ffn_down_t"]
    return norm(x, w["output_norm.weight"]) @ w["token_embd.weight"].T


def llama_cpp_encode(keys: dict, text: str) -> list[int]:
    """Token ids by llama.cpp's SentencePiece rule: user-defined tokens first, longest first; then greedy merges."""
    pieces, scores, types = (keys[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    ids = {piece: i for i, piece in enumerate(pieces)}
    user_defined = [p for p, kind in zip(pieces, types, strict=True) if kind == gguf.TokenType.USER_DEFINED]
    pattern = "|".join(re.escape(piece) for piece in sorted(user_defined, key=len, reverse=True))
    out = []
    for fragment in re.split(f"({pattern})", text):
        if fragment in user_defined:
            out.append(ids[fragment])
            continue
        symbols = list(fragment.replace(" ", "\u2581"))
        while True:
            pairs = [ids.get(a + b) for a, b in pairwise(symbols)]
            candidates = [(-scores[token], at) for at, token in enumerate(pairs) if token is not None]
            if not candidates:
                break
            at = min(candidates)[1]
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        for symbol in symbols:
            out += [ids[symbol]] if symbol in ids else [ids[f"<0x{b:02X}>"] for b in symbol.encode("utf-8")]
    return out


def check_tokenization(keys: dict, tokenizer: object, text: str) -> int:
    """Compare both tokenizers line by line and on odd strings; returns the number of strings compared."""
    odd = [
        "",
        " ",
        "  two  spaces ",
        "\n",
        "\n\n\n",
        "a\n\nb\n",
        f"x{END_OF_TEXT}\ny",
        "caf\u00e9 \u4e2d\U0001f600",
        "\t1234",
    ]
    odd += ["\u2581", "Once upon a time", " Once", "<s>", "<0x41>", "<unk>", "\x00\x7f", "a" * 60]
    odd += ["wow!!!!! ...---"]
    strings = [*odd, *text.splitlines(keepends=True)]
    for string in strings:
        ours, theirs = llama_cpp_encode(keys, string), encode(tokenizer, string)
        if ours != theirs:
            raise SystemExit(f"tokenization differs on {string!r}: {ours} and {theirs}")
        if tokenizer.decode(tokenizer.encode(string)) != string and "\u2581" not in string:
            raise SystemExit(f"decoding does not give back {string!r}")
    return len(strings)


@torch.no_grad()
def sample_story(model: DemoModel, prompt: list[int], end: int, seed: int) -> list[int]:
    """Sample up to STORY_TOKENS tokens with the default chain: top-k, top-p, min-p, temperature."""
    generator = torch.Generator().manual_seed(seed)
    tokens = [BOS_ID, *prompt]
    for _ in range(STORY_TOKENS):
        logits = model(torch.tensor([tokens]))[0][0, -1]
        top, ids = logits.topk(TOP_K)
        probabilities = top.softmax(-1)
        kept = (probabilities.cumsum(-1) - probabilities < TOP_P) & (probabilities >= MIN_P * probabilities[0])
        choice = torch.multinomial((top[kept] / TEMPERATURE).softmax(-1), 1, generator=generator)
        token = int(ids[kept][choice])
        if token == end:
            break
        tokens.append(token)
    return tokens[1:]


def most_repeated(words: list[str], n: int = 4) -> int:
    """How often the most frequent n-gram occurs."""
    return max(Counter(zip(*(words[i:] for i in range(n)), strict=False)).values(), default=0)


def report_stories(model: DemoModel, tokenizer: object) -> None:
    """Sample stories for every prompt and print them with their statistics."""
    end = tokenizer.piece_to_id(END_OF_TEXT)
    for prompt in STORY_PROMPTS:
        lengths, repeats = [], []
        for seed in STORY_SEEDS:
            text = tokenizer.decode(sample_story(model, tokenizer.encode(prompt), end, seed))
            lengths.append(len(text.split()))
            repeats.append(most_repeated(text.lower().split()))
            print(f"--- prompt {prompt!r}, seed {seed}\n{text}\n")
        print(f"prompt {prompt!r}: words {lengths}, mean {np.mean(lengths):.1f}; most frequent 4-gram {repeats}\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="file that export.py wrote")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder with tokenizer.model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-stories", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    file = ModelFile(args.model)
    tokenizer = load_tokenizer(args.work / "tokenizer.model")
    model = file.torch_model()
    heldout = read_part(args.corpus, HELDOUT)

    if fingerprint(file.stored) != file.keys["powerinfer.fingerprint"]:
        raise SystemExit("the fingerprint does not fit the tensors")
    print(f"parameters {sum(t.size for t in file.tensors.values())}, file {args.model.stat().st_size} bytes")
    print(f"tokenization agrees on {check_tokenization(file.keys, tokenizer, heldout)} strings")
    tokens = encode(tokenizer, heldout)
    probe = [BOS_ID, *tokens[:63]]
    with torch.no_grad():
        difference = np.abs(model(torch.tensor([probe]))[0][0].numpy() - numpy_logits(file, probe)).max()
    print(f"numpy and torch logits differ by at most {difference:.2e}")
    print(evaluate_heldout(model, tokens, tokenizer, dtype=torch.float32).to_dict())
    if not args.no_stories:
        report_stories(model, tokenizer)


if __name__ == "__main__":
    main()

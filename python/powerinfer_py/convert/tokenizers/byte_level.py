"""Byte-level BPE: tokenizer.json, or the older vocab.json with merges.txt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from powerinfer_py._core import FormatError, UnsupportedError
from powerinfer_py.convert.config import read_json
from powerinfer_py.convert.tokenizers.pre_tokenizers import pre_tokenizer_name
from powerinfer_py.convert.tokenizers.report import TokenType, Vocabulary
from powerinfer_py.convert.tokenizers.sentence_piece import Pieces, merge_pairs
from powerinfer_py.files import Value


def read_json_bpe(model: dict[str, Any], tokenizer: dict[str, Any], where: str) -> Pieces:
    """Vocabulary, merges and pre-tokenizer of a tokenizer.json.

    Raises:
        FormatError: damaged. UnsupportedError: names the part that the engine does not have.
    """
    for name in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(name):
            raise UnsupportedError(f"{where}: model.{name} {model[name]!r} cannot be represented")
    notes = _check_normalizer(tokenizer.get("normalizer"), where)
    name = pre_tokenizer_name(tokenizer.get("pre_tokenizer"), where)
    if model.get("ignore_merges") and name != "llama-bpe":
        raise UnsupportedError(f"{where}: model.ignore_merges with pre-tokenizer {name} cannot be represented")
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not all(isinstance(token, int) for token in vocab.values()):
        raise FormatError(f"{where}: model.vocab: expected texts and ids")
    return _pieces(vocab, merge_pairs(model, where), name, notes)


def read_vocab_and_merges(folder: Path) -> Pieces:
    """vocab.json and merges.txt, as GPT-2 and OPT have them.

    Raises:
        FormatError: damaged. UnsupportedError: another kind of tokenizer in the same two files.
    """
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    if config.get("add_prefix_space") or str(config.get("tokenizer_class", "")).startswith("CLIP"):
        raise UnsupportedError(
            f"{path}: add_prefix_space {config.get('add_prefix_space')}, class {config.get('tokenizer_class')}: "
            "vocab.json and merges.txt are read as GPT-2's only; save the checkpoint with its tokenizer.json"
        )
    vocab = read_json(folder / "vocab.json")
    if not all(isinstance(token, int) for token in vocab.values()):
        raise FormatError(f"{folder / 'vocab.json'}: expected texts and ids")
    try:
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"{folder / 'merges.txt'}: not UTF-8 at byte {error.start}") from None
    merges = [line for line in lines if line.strip() and not line.startswith("#version")]
    return _pieces(vocab, merge_pairs({"merges": merges}, str(folder / "merges.txt")), "gpt-2", [])


def _pieces(vocab: dict[str, int], merges: list[tuple[str, str]], pre_tokenizer: str, notes: list[str]) -> Pieces:
    vocabulary = Vocabulary()
    for text, token in vocab.items():
        vocabulary.add(token, text, TokenType.NORMAL)
    keys = {
        "tokenizer.ggml.pre": Value("string", pre_tokenizer),
        "tokenizer.ggml.merges": Value("[string]", [f"{left} {right}" for left, right in merges]),
    }
    return Pieces(vocabulary, keys, notes)


def _check_normalizer(normalizer: Any, where: str) -> list[str]:
    if normalizer is None:
        return []
    if not isinstance(normalizer, dict):
        raise FormatError(f"{where}: normalizer: expected an object, got {normalizer!r}")
    if normalizer.get("type") == "Sequence":
        return [note for step in normalizer.get("normalizers", []) for note in _check_normalizer(step, where)]
    if normalizer.get("type") == "NFC":
        return [f"{where}: the normalizer NFC is left out; texts are expected in that form, as almost all are"]
    raise UnsupportedError(f"{where}: normalizer {normalizer} changes the text and cannot be represented")

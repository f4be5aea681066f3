"""SentencePiece models: `tokenizer.model`, and the same as a tokenizer.json with byte fallback."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerinfer_py._core import FormatError, UnsupportedError
from powerinfer_py.convert.tokenizers.report import TokenType, Vocabulary
from powerinfer_py.files import Value

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_BPE = 2
_COMPATIBILITY_FORMS = ("nfkc", "nmt_nfkc")
"""They replace what few texts hold: ligatures, fractions, the dots of an ellipsis."""
_UNMERGED = -1e6
"""Score of tokens of a JSON that no merge makes."""


@dataclass(frozen=True)
class Pieces:
    """What the engine's SentencePiece tokenizer needs."""

    vocabulary: Vocabulary
    keys: dict[str, Value]
    notes: list[str]
    normalizes: bool = False
    """Whether the tokenizer changes the characters of a text first, which the engine does not."""


def read_sentencepiece(path: Path) -> Pieces | None:
    """The pieces of a `tokenizer.model`; None if it is a file of another kind.

    Raises:
        UnsupportedError: a model type or normalization that the engine does not have, or sentencepiece is missing.
    """
    try:
        from google.protobuf.message import DecodeError  # noqa: PLC0415
        from sentencepiece import sentencepiece_model_pb2  # noqa: PLC0415
    except ImportError as error:
        raise UnsupportedError(f"{path}: reading it needs {error.name}: pip install 'powerinfer_py[convert]'") from None
    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError:
        return None
    if not model.pieces:
        return None
    if model.trainer_spec.model_type != _BPE:
        raise UnsupportedError(
            f"{path}: SentencePiece model type {model.trainer_spec.model_type}: only BPE (2) can be represented"
        )
    normalizer = model.normalizer_spec
    normalizes = bool(normalizer.precompiled_charsmap)
    if normalizes and normalizer.name not in _COMPATIBILITY_FORMS:
        raise UnsupportedError(
            f"{path}: normalization {normalizer.name!r} changes the text before it is split, which no GGUF "
            f"tokenizer of this kind can say; known: identity, {', '.join(_COMPATIBILITY_FORMS)}"
        )
    if not normalizer.escape_whitespaces or model.trainer_spec.treat_whitespace_as_suffix:
        raise UnsupportedError(
            f"{path}: white space must become {SPACE} in front of words; this model has another rule"
        )
    vocabulary = Vocabulary()
    for token, piece in enumerate(model.pieces):
        vocabulary.add(token, piece.piece, TokenType(piece.type), piece.score)
    keys = {"tokenizer.ggml.add_space_prefix": Value("bool", bool(normalizer.add_dummy_prefix))}
    if normalizer.remove_extra_whitespaces:
        keys["tokenizer.ggml.remove_extra_whitespaces"] = Value("bool", True)
    notes = []
    if normalizes:
        notes.append(f"{path}: the normalization {normalizer.name} is left out; texts are expected in that form (NFKC)")
    return Pieces(vocabulary, keys, notes, normalizes)


def read_json_pieces(model: dict[str, Any], tokenizer: dict[str, Any], where: str) -> Pieces:
    """The same of a tokenizer.json whose BPE falls back to bytes; scores follow the ranks of the merges.

    Raises:
        FormatError: no such vocabulary. UnsupportedError: a rule that the engine does not have.
    """
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not all(isinstance(token, int) for token in vocab.values()):
        raise FormatError(f"{where}: model.vocab: expected texts and ids")
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merge_pairs(model, where)):
        ranks.setdefault(left + right, rank)
    vocabulary = Vocabulary()
    unknown = model.get("unk_token")
    for text, token in vocab.items():
        kind = TokenType.BYTE if _is_byte(text) else TokenType.UNKNOWN if text == unknown else TokenType.NORMAL
        vocabulary.add(token, text, kind, -float(ranks[text]) if text in ranks else _UNMERGED)
    return Pieces(vocabulary, {"tokenizer.ggml.add_space_prefix": Value("bool", _has_prefix(tokenizer, where))}, [])


def merge_pairs(model: dict[str, Any], where: str) -> list[tuple[str, str]]:
    """The merges of a BPE model, in order: written as "a b" or as [a, b]."""
    pairs = []
    for rank, merge in enumerate(model.get("merges") or []):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise FormatError(f"{where}: model.merges, number {rank}: expected a pair of tokens, got {merge!r}")
        pairs.append((pair[0], pair[1]))
    return pairs


def _is_byte(text: str) -> bool:
    return len(text) == 6 and text.startswith("<0x") and text.endswith(">")


def _has_prefix(tokenizer: dict[str, Any], where: str) -> bool:
    """Whether a space is put before the text; refuses everything else that changes it."""
    prefix = False
    normalizers = _steps(tokenizer.get("normalizer"), "normalizers")
    for step in normalizers:
        if step == {"type": "Prepend", "prepend": SPACE}:
            prefix = True
        elif step != {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}:
            raise UnsupportedError(f"{where}: normalizer {step} cannot be represented")
    for step in _steps(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") != "Metaspace" or step.get("replacement", SPACE) != SPACE or step.get("split") is True:
            raise UnsupportedError(
                f"{where}: pre-tokenizer {step} cannot be represented with a SentencePiece vocabulary"
            )
        prefix = prefix or step.get("prepend_scheme", "always") != "never"
    return prefix


def _steps(value: Any, inner: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    return (
        [each for step in value[inner] for each in _steps(step, inner)] if value.get("type") == "Sequence" else [value]
    )

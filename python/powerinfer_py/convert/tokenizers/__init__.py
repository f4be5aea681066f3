"""The tokenizer of a Hugging Face folder as GGUF keys, checked by encoding a text with both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from powerinfer_py._core import FormatError, UnsupportedError
from powerinfer_py.convert.config import read_json
from powerinfer_py.convert.tokenizers.byte_level import read_json_bpe, read_vocab_and_merges
from powerinfer_py.convert.tokenizers.probe import Encode, engine_of, probe_ids
from powerinfer_py.convert.tokenizers.report import TokenizerReport
from powerinfer_py.convert.tokenizers.sentence_piece import SPACE, Pieces, read_json_pieces, read_sentencepiece
from powerinfer_py.convert.tokenizers.special import Extras
from powerinfer_py.files import Value

__all__ = ["TokenizerReport", "read_tokenizer"]


def read_tokenizer(folder: Path, *, n_vocab: int) -> TokenizerReport:
    """Vocabulary, merges, pre-tokenizer, special tokens and chat template.

    A text is encoded with the tokenizer's own library and with the engine, and differences are refused.

    Args:
        folder: with `tokenizer.model`, `tokenizer.json`, or `vocab.json` and `merges.txt`; and the small files beside.
        n_vocab: rows of the embedding; the vocabulary is filled up to it.

    Raises:
        FormatError: there is no tokenizer, or it is damaged, or has more tokens than the model.
        UnsupportedError: a part that cannot be represented, or a package is not installed.
    """
    path = folder / "tokenizer.json"
    tokenizer = read_json(path) if path.is_file() else {}
    try:
        return _read(folder, tokenizer, n_vocab)
    except (AttributeError, KeyError, TypeError, IndexError) as error:  # JSON of another shape than the libraries write
        raise FormatError(f"{folder}: the tokenizer's files are damaged: {type(error).__name__}: {error}") from None


def _read(folder: Path, tokenizer: dict[str, Any], n_vocab: int) -> TokenizerReport:
    name, pieces = _pieces(folder, tokenizer)
    extras = Extras(folder, tokenizer)
    extras.add_tokens(pieces.vocabulary)
    where = str(folder / name)
    n_tokens = pieces.vocabulary.n_tokens
    if n_tokens > n_vocab:
        raise FormatError(
            f"{where}: has {n_tokens} tokens, the model's embedding {n_vocab} rows; does it belong to another model?"
        )
    is_byte_level = "tokenizer.ggml.merges" in pieces.keys
    keys = {"tokenizer.ggml.model": Value("string", "gpt2" if is_byte_level else "llama")}
    keys |= (
        pieces.keys
        | pieces.vocabulary.keys(n_vocab, with_scores=not is_byte_level)
        | extras.keys(pieces.vocabulary, is_byte_level=is_byte_level)
    )
    notes = list(pieces.notes)
    if is_byte_level and "tokenizer.ggml.eos_token_id" not in keys:
        notes.append(f"{folder}: no end-of-text token is named; engines will guess one and may stop at another")
    keys |= _further_ends(keys, extras.ends)
    added = extras.added if name == "tokenizer.json" else []
    normalize = _normalization(folder / name) if pieces.normalizes else str
    unlike = probe_ids(keys, _reference(folder, name, tokenizer), where, added, normalize)
    if unlike:
        notes.append(f"{where}: text beside {', '.join(map(repr, unlike[:4]))} is encoded in another way by engines")
    return TokenizerReport(keys, n_vocab, name, notes)


def _further_ends(keys: dict[str, Value], ends: list[int]) -> dict[str, Value]:
    """Names those tokens that end a generation and that engines would not know by themselves, as far as keys go."""
    engine = engine_of(keys)
    names = (f"tokenizer.ggml.{role}_token_id" for role in ("eot", "eom"))
    unknown = (token for token in dict.fromkeys(ends) if not engine.is_end_of_generation(token))
    return {name: Value("u32", token) for name, token in zip(names, unknown, strict=False)}


def _pieces(folder: Path, tokenizer: dict[str, Any]) -> tuple[str, Pieces]:
    """(file, what is in it)."""
    sentencepiece = folder / "tokenizer.model"
    if sentencepiece.is_file():
        pieces = read_sentencepiece(sentencepiece)
        if pieces is not None:
            return "tokenizer.model", pieces
        if not tokenizer:
            raise UnsupportedError(
                f"{sentencepiece}: no SentencePiece model; give the tokenizer.json of the same checkpoint"
            )
    if tokenizer:
        where = str(folder / "tokenizer.json")
        model = tokenizer.get("model")
        if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
            kind = model.get("type") if isinstance(model, dict) else model
            raise UnsupportedError(f"{where}: model type {kind!r} cannot be represented; only BPE can")
        read = read_json_pieces if model.get("byte_fallback") else read_json_bpe
        return "tokenizer.json", read(model, tokenizer, where)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return "vocab.json", read_vocab_and_merges(folder)
    raise FormatError(
        f"{folder}: no tokenizer in it; expected tokenizer.model, tokenizer.json, or vocab.json with merges.txt"
    )


def _normalization(path: Path) -> Callable[[str], str]:
    """What a SentencePiece model makes of the characters of a text."""
    import sentencepiece  # noqa: PLC0415

    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return lambda text: processor.normalize(text).replace(SPACE, " ").strip()


def _reference(folder: Path, name: str, tokenizer: dict[str, Any]) -> Encode:
    """The library that the checkpoint was published for."""
    try:
        if name == "tokenizer.model":
            import sentencepiece  # noqa: PLC0415

            processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
            return lambda text: list(processor.encode(text))
        import tokenizers  # noqa: PLC0415
    except ImportError as error:
        raise UnsupportedError(
            f"{folder}: checking the tokenizer needs {error.name}: pip install 'powerinfer_py[convert]'"
        ) from None
    if tokenizer:
        try:
            own = tokenizers.Tokenizer.from_str(json.dumps(tokenizer))
        except Exception as error:  # the library has no type of its own
            raise FormatError(f"{folder / name}: {error}") from None
        own.no_truncation()
        own.no_padding()
    else:
        try:
            files = (str(folder / "vocab.json"), str(folder / "merges.txt"))
            own = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(*files))
        except Exception as error:  # as above
            raise FormatError(f"{folder / name}: {error}") from None
        own.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return lambda text: list(own.encode(text, add_special_tokens=False).ids)

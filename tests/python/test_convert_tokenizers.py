"""Tokenizers of checkpoints: the ids that their own libraries give, or a refusal that names the part."""

from __future__ import annotations

import json
import lzma
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from helpers.checkpoints import N_VOCAB, TEMPLATE, add_bpe_tokenizer, train_sentencepiece  # noqa: E402

import powerinfer_py as pi  # noqa: E402
from powerinfer_py import _core  # noqa: E402
from powerinfer_py.convert.tokenizers import probe, read_tokenizer  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("POWERINFER_SHARED", REPOSITORY.parent / "shared/data"))
N_LINES = 1000


def corpus_lines() -> list[str]:
    """1,000 lines of the corpus where it is at hand, else of the project's own pages."""
    texts = [lzma.decompress(path.read_bytes()).decode() for path in sorted(SHARED.rglob("heldout.txt.xz"))[:1]]
    texts += [path.read_text() for path in sorted((REPOSITORY / "docs").glob("*.md"))]
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    return random.Random(1).sample(lines, min(N_LINES, len(lines)))


def engine_of(folder: Path) -> _core.Tokenizer:
    return probe.engine_of(read_tokenizer(folder, n_vocab=N_VOCAB + 8).metadata)


@pytest.mark.parametrize("words", ["gpt-2", "smollm", "llama-bpe", "qwen2", "falcon"])
def test_byte_level(words: str, tmp_path: Path) -> None:
    add_bpe_tokenizer(tmp_path, words=words)
    ours = engine_of(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert ours.pre_tokenizer == words
    for line in (*corpus_lines(), "<s>a<|turn|> b</s>", ""):
        assert ours.encode(line, False, True) == theirs.encode(line, add_special_tokens=False).ids, line
    assert (ours.bos, ours.eos, ours.add_bos) == (0, 1, False)
    assert ours.text(N_VOCAB) == f"[PAD{N_VOCAB}]"
    assert read_tokenizer(tmp_path, n_vocab=N_VOCAB).metadata["tokenizer.chat_template"].value == TEMPLATE


@pytest.mark.parametrize("options", [{}, {"add_dummy_prefix": False}, {"remove_extra_whitespaces": False}], ids=str)
def test_sentencepiece(options: dict[str, bool], tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    train_sentencepiece(tmp_path / "tokenizer.model", **options)
    ours = engine_of(tmp_path)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    for line in (*corpus_lines(), "  two  spaces  ", " ", ""):
        assert ours.encode(line, False) == theirs.encode(line), line


def test_normalization_is_left_out_and_told(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    train_sentencepiece(tmp_path / "tokenizer.model", normalization_rule_name="nmt_nfkc")
    assert "nmt_nfkc" in read_tokenizer(tmp_path, n_vocab=N_VOCAB).notes[0]
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    ours = engine_of(tmp_path)
    for line in (line for line in corpus_lines() if line.isascii() and line.isprintable()):
        assert ours.encode(line, False) == theirs.encode(line), line
    train_sentencepiece(tmp_path / "tokenizer.model", normalization_rule_name="nmt_nfkc_cf")
    with pytest.raises(pi.UnsupportedError, match="nmt_nfkc_cf"):
        read_tokenizer(tmp_path, n_vocab=N_VOCAB)


def test_gpt2_in_two_files(tmp_path: Path) -> None:
    add_bpe_tokenizer(tmp_path)
    whole = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    whole.model.save(str(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    ours = engine_of(tmp_path)
    for line in corpus_lines():
        assert ours.encode(line, False) == whole.encode(line, add_special_tokens=False).ids, line


def _edit(folder: Path, change: Callable[[dict], None]) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda t: t.update(normalizer={"type": "Lowercase"}), "Lowercase"),
        (lambda t: t["model"].update(type="WordPiece"), "WordPiece"),
        (lambda t: t.update(pre_tokenizer={"type": "Whitespace"}), "Whitespace"),
        (lambda t: t["model"].update(end_of_word_suffix="</w>"), "end_of_word_suffix"),
        (lambda t: t.update(pre_tokenizer=None), "pre_tokenizer"),
    ],
)
def test_what_cannot_be_represented_is_named(change: Callable[[dict], None], part: str, tmp_path: Path) -> None:
    add_bpe_tokenizer(tmp_path)
    _edit(tmp_path, change)
    with pytest.raises(pi.UnsupportedError, match=part):
        read_tokenizer(tmp_path, n_vocab=N_VOCAB)


def test_a_difference_is_found_by_encoding(tmp_path: Path) -> None:
    add_bpe_tokenizer(tmp_path, words="smollm")
    report = read_tokenizer(tmp_path, n_vocab=N_VOCAB)
    with pytest.raises(pi.UnsupportedError, match="other ids"):
        probe.probe_ids(report.metadata, lambda text: [1, 2, 3], "here")


def test_no_tokenizer_and_too_large_ones(tmp_path: Path) -> None:
    with pytest.raises(pi.FormatError, match=r"tokenizer\.json"):
        read_tokenizer(tmp_path, n_vocab=N_VOCAB)
    add_bpe_tokenizer(tmp_path)
    with pytest.raises(pi.FormatError, match="embedding"):
        read_tokenizer(tmp_path, n_vocab=100)


def _template(tokenizer: dict) -> None:
    special = {"id": "<|turn|>", "ids": [2], "tokens": ["<|turn|>"]}
    single = [{"SpecialToken": {"id": "<|turn|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    tokenizer.update(
        post_processor={
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|turn|>": special},
        }
    )


def test_what_the_template_puts_in_front_is_put_in_front(tmp_path: Path) -> None:
    add_bpe_tokenizer(tmp_path)
    _edit(tmp_path, _template)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert engine_of(tmp_path).encode("The cat") == theirs.encode("The cat").ids


def _strip(tokenizer: dict) -> None:
    tokenizer["added_tokens"][2].update(rstrip=True)


def test_added_tokens_that_take_in_spaces_are_named(tmp_path: Path) -> None:
    add_bpe_tokenizer(tmp_path)
    assert not read_tokenizer(tmp_path, n_vocab=N_VOCAB).notes
    _edit(tmp_path, _strip)
    (note,) = read_tokenizer(tmp_path, n_vocab=N_VOCAB).notes
    assert "<|turn|>" in note and "<s>" not in note


def test_chat_templates_of_every_place(tmp_path: Path) -> None:
    add_bpe_tokenizer(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["chat_template"] = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))

    def templates() -> dict[str, object]:
        keys = read_tokenizer(tmp_path, n_vocab=N_VOCAB).metadata
        return {key.removeprefix("tokenizer."): keys[key].value for key in keys if "chat_template" in key}

    named = {"chat_templates": ["tool_use"], "chat_template.tool_use": "T"}
    assert templates() == {"chat_template": "D"} | named
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert templates() == {"chat_template": "J"} | named
    (tmp_path / "chat_template.jinja").write_text("F")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/rag.jinja").write_text("R")
    assert templates() == {
        "chat_template": "F",
        "chat_templates": ["rag", "tool_use"],
        "chat_template.rag": "R",
        "chat_template.tool_use": "T",
    }


def test_every_end_of_a_text_ends_it(tmp_path: Path) -> None:
    add_bpe_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2, 40, True, 10**6]}))
    assert engine_of(tmp_path).end_of_generation == [1, 2, 40]


def test_limits_of_length_do_not_matter(tmp_path: Path) -> None:
    add_bpe_tokenizer(tmp_path)
    limit = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    _edit(tmp_path, lambda t: t.update(truncation=limit))
    read_tokenizer(tmp_path, n_vocab=N_VOCAB)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.update(added_tokens=["a"]),
        lambda t: t.update(added_tokens=5),
        lambda t: t.update(normalizer=[1]),
        lambda t: t["model"].update(merges=[["nothing", "here"]]),
    ],
)
def test_damaged_files_give_typed_errors(change: Callable[[dict], None], tmp_path: Path) -> None:
    add_bpe_tokenizer(tmp_path)
    _edit(tmp_path, change)
    with pytest.raises(pi.FormatError):
        read_tokenizer(tmp_path, n_vocab=N_VOCAB)


def test_other_tokenizers_in_gpt2s_files(tmp_path: Path) -> None:
    add_bpe_tokenizer(tmp_path)
    tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).model.save(str(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))
    with pytest.raises(pi.UnsupportedError, match="add_prefix_space"):
        read_tokenizer(tmp_path, n_vocab=N_VOCAB)

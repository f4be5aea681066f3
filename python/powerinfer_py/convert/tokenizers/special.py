"""Added tokens, special ids and the chat template of a tokenizer: everything beside its vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from powerinfer_py._core import FormatError, UnsupportedError
from powerinfer_py.convert.config import read_json
from powerinfer_py.convert.tokenizers.report import TokenType, Vocabulary
from powerinfer_py.files import Value

_ROLES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",  # as the format spells it
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}
_CONFIG_IDS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}


class Extras:
    """The small files of a tokenizer's folder.

    Raises:
        FormatError: one of them is no JSON object, or no UTF-8.
    """

    def __init__(self, folder: Path, tokenizer: dict[str, Any]) -> None:
        self._folder, self._tokenizer = folder, tokenizer
        self.ends: list[int] = []
        """All tokens that the configurations name as the end of a text; filled by `keys`."""
        self._config = self._optional("tokenizer_config.json")
        self._special_map = self._optional("special_tokens_map.json")
        entries = self._tokenizer.get("added_tokens") or []
        decoder = self._config.get("added_tokens_decoder") or {}
        if not isinstance(entries, list) or not isinstance(decoder, dict):
            raise FormatError(f"{folder}: added_tokens must be a list, added_tokens_decoder an object")
        if not all(isinstance(each, dict) for each in (*entries, *decoder.values())):
            raise FormatError(f"{folder}: added_tokens: expected objects with 'id' and 'content'")

    def _optional(self, name: str) -> dict[str, Any]:
        path = self._folder / name
        return read_json(path) if path.is_file() else {}

    def add_tokens(self, vocabulary: Vocabulary) -> None:
        """Puts the added tokens in; the roles of the special ones make them control tokens.

        Raises:
            FormatError: an id is no number >= 0.
        """
        special = {self._text(name) for name in _ROLES} - {None}
        for name, entries in self._lists():
            for token, text, is_special in entries:
                if not isinstance(token, int) or isinstance(token, bool) or token < 0 or not isinstance(text, str):
                    raise FormatError(f"{self._folder / name}: added token {text!r}: expected a text and an id >= 0")
                known = vocabulary.types.get(token)
                if vocabulary.texts.get(token) == text and known not in (TokenType.NORMAL, TokenType.USER_DEFINED):
                    continue
                kind = TokenType.CONTROL if is_special or text in special else TokenType.USER_DEFINED
                vocabulary.add(token, text, kind, vocabulary.scores.get(token, 0.0))
        for token, text in vocabulary.texts.items():
            if text in special and vocabulary.types[token] == TokenType.NORMAL:
                vocabulary.types[token] = TokenType.CONTROL

    @property
    def added(self) -> list[str]:
        """Texts of the added tokens of tokenizer.json."""
        return [each["content"] for each in self._tokenizer.get("added_tokens") or []]

    def _lists(self) -> list[tuple[str, list[tuple[Any, Any, bool]]]]:
        """(file, (id, text, special) of its added tokens); what comes later wins."""
        plain = self._optional("added_tokens.json").items()
        decoder = self._config.get("added_tokens_decoder") or {}
        own = self._tokenizer.get("added_tokens") or []
        return [
            ("added_tokens.json", [(token, text, False) for text, token in plain]),
            (
                "tokenizer_config.json",
                [
                    (int(token) if token.isdecimal() else token, each.get("content"), bool(each.get("special")))
                    for token, each in decoder.items()
                ],
            ),
            ("tokenizer.json", [(each.get("id"), each.get("content"), bool(each.get("special"))) for each in own]),
        ]

    def _text(self, role: str) -> str | None:
        """The text of the token with a role."""
        for source in (self._config, self._special_map):
            value = source.get(role)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                return value
        return None

    def keys(self, vocabulary: Vocabulary, *, is_byte_level: bool) -> dict[str, Value]:
        """Special ids, what is added to a text, the chat template.

        What a byte-level tokenizer.json puts at the ends decides about these, not the configuration beside it.
        """
        ids: dict[str, int] = {}
        for role, name in _ROLES.items():
            text = self._text(role)
            token = None if text is None else vocabulary.id_of(text)
            if token is not None:
                ids[name] = token
        for file in ("generation_config.json", "config.json"):
            for key, name in _CONFIG_IDS.items():
                stated = self._optional(file).get(key)
                named = [
                    each
                    for each in (stated if isinstance(stated, list) else [stated])
                    if isinstance(each, int) and not isinstance(each, bool) and each in vocabulary.texts
                ]
                if named:
                    ids.setdefault(name, named[0])
                if name == "eos":
                    self.ends += named
        edges = self._edges()
        ids |= edges
        rules = bool(self._tokenizer) and is_byte_level
        keys = {f"tokenizer.ggml.{name}_token_id": Value("u32", token) for name, token in ids.items()}
        for end in ("bos", "eos"):
            stated = None if rules else self._config.get(f"add_{end}_token")
            added = stated if isinstance(stated, bool) else end in edges if self._tokenizer else None
            if added is not None:
                keys[f"tokenizer.ggml.add_{end}_token"] = Value("bool", added and end in ids)
        templates = self._chat_templates()
        if "default" in templates:
            keys["tokenizer.chat_template"] = Value("string", templates.pop("default"))
        if templates:
            keys["tokenizer.chat_templates"] = Value("[string]", sorted(templates))
            keys |= {f"tokenizer.chat_template.{name}": Value("string", templates[name]) for name in sorted(templates)}
        return keys

    def _edges(self) -> dict[str, int]:
        """The tokens that the tokenizer.json puts at the begin ("bos") and the end ("eos") of a text.

        Raises:
            UnsupportedError: it puts them by a rule that is not known.
        """
        edges = {}
        for step in self._post_processors(self._tokenizer.get("post_processor")):
            single = step.get("single") or [{}]
            texts = [at for at, part in enumerate(single) if "Sequence" in part]
            if texts and (texts[0] > 1 or len(single) - texts[-1] > 2):
                raise UnsupportedError(
                    f"{self._folder / 'tokenizer.json'}: post_processor puts several tokens at one end of a text, "
                    "which cannot be represented"
                )
            for name, part in (("bos", single[0]), ("eos", single[-1])):
                text = part.get("SpecialToken", {}).get("id")
                ids = step.get("special_tokens", {}).get(text, {}).get("ids", [])
                if len(ids) == 1:
                    edges[name] = ids[0]
        return edges

    def _post_processors(self, step: Any) -> list[dict[str, Any]]:
        if not isinstance(step, dict):
            return []
        if step.get("type") == "Sequence":
            return [each for inner in step.get("processors", []) for each in self._post_processors(inner)]
        if step.get("type") not in ("TemplateProcessing", "ByteLevel"):
            raise UnsupportedError(
                f"{self._folder / 'tokenizer.json'}: post_processor {step.get('type')} cannot be represented"
            )
        return [step] if step["type"] == "TemplateProcessing" else []

    def _chat_templates(self) -> dict[str, str]:
        """Templates by name; the usual one is "default". Files of their own win over what the configuration says."""
        stated = self._config.get("chat_template")
        if isinstance(stated, list):
            named = {each.get("name"): each.get("template") for each in stated if isinstance(each, dict)}
        else:
            named = {"default": stated}
        named |= {"default": self._optional("chat_template.json").get("chat_template", named.get("default"))}
        files = {"default": self._folder / "chat_template.jinja"}
        files |= {path.stem: path for path in sorted(self._folder.glob("additional_chat_templates/*.jinja"))}
        named |= {name: _read_template(path) for name, path in files.items() if path.is_file()}
        return {
            name: template for name, template in named.items() if isinstance(name, str) and isinstance(template, str)
        }


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 at byte {error.start}") from None

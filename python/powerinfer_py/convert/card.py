"""What a checkpoint says about itself, as `general.*` keys: name, source, licence, and who made the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf

from powerinfer_py import _core
from powerinfer_py.convert.config import Config
from powerinfer_py.files import Value

MADE_BY_KEY = "general.converted_by"
FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "BF16": gguf.LlamaFileType.MOSTLY_BF16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "Q4_1": gguf.LlamaFileType.MOSTLY_Q4_1,
    "Q5_0": gguf.LlamaFileType.MOSTLY_Q5_0,
    "Q4_K": gguf.LlamaFileType.MOSTLY_Q4_K_S,
    "Q5_K": gguf.LlamaFileType.MOSTLY_Q5_K_S,
    "Q6_K": gguf.LlamaFileType.MOSTLY_Q6_K,
}
"""`general.file_type` of a file whose matrices are of a type."""


def general_keys(folder: Path, config: Config, architecture: str) -> dict[str, Value]:
    """Name, origin and licence of a checkpoint."""
    origin = config.get("_name_or_path")
    origin = origin if isinstance(origin, str) and origin.count("/") == 1 and not Path(origin).is_absolute() else None
    keys = {
        "general.architecture": Value("string", architecture),
        "general.type": Value("string", "model"),
    }
    card = _model_card(folder)
    name = origin.split("/")[1] if origin else card.get("model_name")
    if isinstance(name, str):  # else none: the folder's is no part of the model
        keys["general.name"] = Value("string", name)
    if origin:
        keys["general.source.huggingface.repository"] = Value("string", origin)
    for name, key in (("license", "license"), ("license_name", "license.name"), ("license_link", "license.link")):
        if isinstance(card.get(name), str):
            keys[f"general.{key}"] = Value("string", card[name])
    languages = card.get("language")
    languages = [languages] if isinstance(languages, str) else languages
    if isinstance(languages, list) and languages and all(isinstance(each, str) for each in languages):
        keys["general.languages"] = Value("[string]", languages)
    return keys


def type_keys(type_name: str) -> dict[str, Value]:
    """How the matrices are stored, and by what the file was made."""
    return {
        "general.file_type": Value("u32", int(FILE_TYPES[type_name])),
        "general.quantization_version": Value("u32", gguf.GGML_QUANT_VERSION),
        MADE_BY_KEY: Value("string", f"powerinfer_py {_core.version()}"),
        "powerinfer.version": Value("u32", 1),
    }


def _model_card(folder: Path) -> dict[str, Any]:
    try:
        card = gguf.Metadata.load_model_card(folder)
    except Exception:  # whatever a README holds, the weights are fine
        return {}
    return card if isinstance(card, dict) else {}

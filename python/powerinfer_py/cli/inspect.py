"""`powerinfer inspect`: what a file is, and what this engine makes of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from powerinfer_py import Error, GgufFile, Model, TensorInfo, Tokenizer, bundled_model_path
from powerinfer_py.cli.common import (
    ActivationOption,
    ModelOption,
    ThreadsOption,
    UsageProblem,
    printable,
    terminal_progress,
    thread_count,
    warn,
)
from powerinfer_py.sparsity.probe import probe_activation

_KIND_SPLIT = "generic.gpu_index"
_SHORT_ARRAY = 16


def inspect(
    path: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="As -m.")] = None,
    model: ModelOption = None,
    activation: ActivationOption = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Measure which activation fits the model: perplexities of a built-in text.")
    ] = False,
    n_threads: ThreadsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON, metadata included.")] = False,
) -> None:
    """Show what a model file is and how it can be run."""
    if path is not None and model is not None:
        raise UsageProblem("name one file, either as an argument or with -m")
    file = path or model or bundled_model_path()
    facts = gather(file, activation=activation)
    if probe:
        facts["probe"] = _probe(file, facts, activation, thread_count(n_threads))
    if as_json:
        print(json.dumps(facts, ensure_ascii=False, indent=2))
    else:
        _print_facts(facts)
    if probe and facts["probe"].get("warning"):
        warn(facts["probe"]["warning"])


def gather(path: Path, *, activation: str | None = None) -> dict[str, Any]:
    """Everything known about a file, as JSON types. Raises only when the file itself cannot be read."""
    file = GgufFile(path)
    metadata = file.metadata
    tensors = file.tensors
    return {
        "file": {
            "path": str(path),
            "bytes": file.n_bytes,
            "gguf_version": file.version,
            "magic": "PWRI" if file.has_powerinfer_magic else "GGUF",
            "kind": _kind(file, metadata, tensors),
            "name": metadata.get("general.name"),
            "architecture": metadata.get("general.architecture"),
        },
        "tensors": _tensor_types(tensors),
        "tokenizer": _tokenizer(path, metadata),
        "model": _model(path, tensors, activation),
        "metadata": {key: _to_json(value) for key, value in metadata.items()},
    }


def _probe(path: Path, facts: dict[str, Any], activation: str | None, n_threads: int | None) -> dict[str, Any]:
    if not facts["model"]["computable"]:
        return {"problem": "the model cannot be computed"}
    try:
        found = probe_activation(path, activation=activation, n_threads=n_threads, progress=terminal_progress())
    except Error as error:
        return {"problem": str(error)}
    return {
        "assumed": found.assumed,
        "best": found.best,
        "perplexity": {name: value if math.isfinite(value) else None for name, value in found.perplexity.items()},
        "n_tokens": found.n_tokens,
        "warning": found.warning,
    }


def _kind(file: GgufFile, metadata: dict[str, Any], tensors: list[TensorInfo]) -> str:
    if metadata.get("general.architecture") == _KIND_SPLIT:
        return "cached GPU split of another file, no model"
    if not tensors:
        return "vocabulary only"
    names = [tensor.name for tensor in tensors]
    if any(name.endswith((".fc1.weight", ".ffn_gate_sign.weight")) for name in names):
        return "PowerInfer model with predictors"
    if file.has_powerinfer_magic:
        return "PowerInfer model without predictors"
    return "plain GGUF model"


def _tensor_types(tensors: list[TensorInfo]) -> dict[str, Any]:
    types: dict[str, dict[str, int]] = {}
    for tensor in tensors:
        entry = types.setdefault(tensor.type, {"count": 0, "bytes": 0})
        entry["count"] += 1
        entry["bytes"] += tensor.n_bytes
    total = {"count": len(tensors), "bytes": sum(tensor.n_bytes for tensor in tensors)}
    return {"total": total, "by_type": dict(sorted(types.items(), key=lambda item: -item[1]["bytes"]))}


def _tokenizer(path: Path, metadata: dict[str, Any]) -> dict[str, Any] | None:
    if "tokenizer.ggml.model" not in metadata:
        return None
    try:
        tokenizer = Tokenizer(path)
    except Error as error:
        return {"model": _to_json(metadata["tokenizer.ggml.model"]), "problem": str(error)}
    return {
        "model": tokenizer.model,
        "pre_tokenizer": tokenizer.pre_tokenizer,
        "n_vocab": tokenizer.n_vocab,
        "bos": tokenizer.bos,
        "eos": tokenizer.eos,
        "add_bos": tokenizer.add_bos,
        "add_eos": tokenizer.add_eos,
        "end_of_generation": [f"{token} {tokenizer.text(token)!r}" for token in tokenizer.end_of_generation],
        "chat_template": "tokenizer.chat_template" in metadata,
    }


def _model(path: Path, tensors: list[TensorInfo], activation: str | None) -> dict[str, Any]:
    if not tensors:
        return {"computable": False, "problem": "the file holds no tensors"}
    try:
        model = Model(path, activation=activation)
    except Error as error:
        return {"computable": False, "problem": str(error)}
    with model:
        return {
            "computable": True,
            "n_params": model.n_params,
            "weight_bytes": model.weight_bytes,
            "n_layers": model.n_layers,
            "d_model": model.d_model,
            "d_ff": model.d_ff,
            "n_heads": model.n_heads,
            "n_kv_heads": model.n_kv_heads,
            "head_dim": model.head_dim,
            "n_vocab": model.n_vocab,
            "n_ctx_train": model.n_ctx_train,
            "activation": model.activation,
            "activation_source": model.activation_source,
            "down_is_transposed": model.has_transposed_down,
            "default_sparsity": model.sparsity,
            "default_sparsity_note": model.mode_summary(),
            "modes": {mode.name: {"available": mode.available, "note": mode.note} for mode in model.modes},
            "hot_neurons": _to_numbers(model.metadata.get("powerinfer.hot_neurons")),
            "predictor_kinds": [layer.predictor_kind for layer in model.layers],
            "predictor_ranks": [layer.predictor_rank for layer in model.layers],
            "predictor_thresholds": [
                layer.predictor_threshold for layer in model.layers if layer.predictor_kind != "none"
            ],
        }


def _to_numbers(value: Any) -> list[int] | None:
    return None if value is None else [int(item) for item in value]


def _to_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if len(value) <= _SHORT_ARRAY:
            return [_to_json(item) for item in value.tolist()]
        return f"{value.dtype.name}[{len(value)}]"
    if isinstance(value, list):
        return value if len(value) <= _SHORT_ARRAY else f"string[{len(value)}]"
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.2f} MB"


def _print_facts(facts: dict[str, Any]) -> None:
    def line(name: str, text: object) -> None:
        print(f"{name:<14}{printable(str(text))}")

    file, tensors = facts["file"], facts["tensors"]
    line("file", f"{file['path']}, {_size(file['bytes'])}, GGUF v{file['gguf_version']}, magic {file['magic']}")
    line("kind", file["kind"])
    line("name", f"{file['name'] or '-'} ({file['architecture'] or 'no architecture'})")
    types = ", ".join(f"{name} {e['count']} ({_size(e['bytes'])})" for name, e in tensors["by_type"].items())
    line("tensors", f"{tensors['total']['count']}" + (f": {types}" if types else ""))
    _print_tokenizer(facts["tokenizer"], line)
    model = facts["model"]
    if not model["computable"]:
        line("model", f"cannot be computed: {model['problem']}")
        return
    line(
        "model",
        f"{model['n_params'] / 1e6:.2f} M parameters, {model['n_layers']} layers, width {model['d_model']}, "
        f"FFN {model['d_ff']}, {model['n_heads']} heads ({model['n_kv_heads']} kv) of {model['head_dim']}",
    )
    line("context", f"{model['n_ctx_train']} tokens (trained)")
    line("activation", f"{model['activation']} ({model['activation_source']})")
    line(
        "ffn_down", "transposed, one row per neuron" if model["down_is_transposed"] else "plain, one column per neuron"
    )
    if model["hot_neurons"]:
        line("hot neurons", f"{' '.join(map(str, model['hot_neurons']))}, the rest of a cold type")
    line("predictor", _predictor_text(model["predictor_kinds"], model["predictor_ranks"]))
    line("sparsity", f"{model['default_sparsity']} by default: {model['default_sparsity_note']}")
    for name, mode in model["modes"].items():
        line(f"  {name}", mode["note"] if mode["available"] else f"not available: {mode['note']}")
    if "probe" in facts:
        _print_probe(facts["probe"], line)


def _print_probe(probe: dict[str, Any], line: Any) -> None:
    if "problem" in probe:
        line("probe", probe["problem"])
        return
    verdict = "fits" if probe["warning"] is None else f"does not fit: {probe['best']} is better"
    line("probe", f"{probe['assumed']} {verdict}; perplexities of {probe['n_tokens']} tokens of a built-in text:")
    for name, value in probe["perplexity"].items():
        line(f"  {name}", "not finite" if value is None else f"{value:.4g}")


def _predictor_text(kinds: list[str], ranks: list[int]) -> str:
    """ "mlp, ranks 64 64", "sign", or each layer's own: "svd 64, sign, none"."""
    if len(set(kinds)) > 1:
        return ", ".join(f"{kind} {rank}" if rank else kind for kind, rank in zip(kinds, ranks, strict=True))
    return f"{kinds[0]}, ranks {' '.join(map(str, ranks))}" if any(ranks) else kinds[0]


def _print_tokenizer(tokenizer: dict[str, Any] | None, line: Any) -> None:
    if tokenizer is None:
        line("tokenizer", "none")
    elif "problem" in tokenizer:
        line("tokenizer", f"{tokenizer['model']}: {tokenizer['problem']}")
    else:
        pre = f", pre-tokenizer {tokenizer['pre_tokenizer']}" if tokenizer["pre_tokenizer"] else ""
        ends = ", ".join(tokenizer["end_of_generation"])
        bos = "adds BOS" if tokenizer["add_bos"] else "no BOS"
        chat = "chat template" if tokenizer["chat_template"] else "no chat template"
        line("tokenizer", f"{tokenizer['model']}{pre}, {tokenizer['n_vocab']} tokens, {bos}, ends at {ends}, {chat}")

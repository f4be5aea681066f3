"""A model: the weights, sizes and tokenizer of one file."""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, SupportsIndex

from powerinfer_py import _core
from powerinfer_py._arguments import file_path, optional_count, thresholds
from powerinfer_py.chat import render_chat_template

Sparsity = Literal["auto", "dense", "exact", "predictor", "threshold"]


class ModeInfo(NamedTuple):
    """One execution mode and what it means for this model."""

    name: str
    available: bool
    note: str
    """What the mode skips, or why it is not available."""


class LayerInfo(NamedTuple):
    """The predictor of one layer."""

    predictor_kind: str
    """"mlp", "svd", "sign" or "none"."""
    predictor_rank: int
    """Width of its inner layer; 0: none, or of kind "sign"."""
    predictor_threshold: float


def bundled_model_path() -> Path:
    """Path of the small model that comes with the package."""
    path = Path(str(importlib.resources.files("powerinfer_py") / "data" / "demo.powerinfer.gguf"))
    if not path.is_file():
        raise _core.InvalidArgument(f"{path}: the bundled model is not installed; name a model file instead")
    return path


class Model:
    """Loaded, validated weights. Immutable; any number of contexts and threads may share it.

    Args:
        path: a GGUF file, plain or PowerInfer; None: the bundled model.
        sparsity: "dense" skips nothing; "exact" skips neurons whose true gate is zero; "predictor" skips what the
            file's predictor says; "auto" takes predictor, exact or dense, whichever the model can do, in that order.
        threshold: cut of the predictor, one number or one per layer; None: the file's.
        activation: overrides the FFN activation, e.g. "relu" or "fatrelu:0.01"; None: the file's.
        n_threads: default of the contexts; None: the physical cores this process may use.
        device: "auto" or "cpu".
        weights: "mmap" maps the file, "read" reads it into memory first.

    Raises:
        FormatError: the file is damaged or contradicts itself.
        UnsupportedError: the file or the mode is something this build cannot compute.
        InvalidArgument: unreadable path, unknown option.
        OutOfMemoryError: the weights do not fit.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        sparsity: Sparsity = "auto",
        threshold: float | Sequence[float] | None = None,
        activation: str | None = None,
        n_threads: SupportsIndex | None = None,
        device: Literal["auto", "cpu"] = "auto",
        weights: Literal["auto", "mmap", "read"] = "auto",
    ) -> None:
        chosen = bundled_model_path() if path is None else file_path(path)
        self._open: _core.Model | None = _core.Model(
            chosen,
            sparsity=sparsity,
            threshold=thresholds(threshold),
            activation=activation or "",
            n_threads=optional_count("n_threads", n_threads),
            device=device,
            weights=weights,
        )
        self.path = chosen

    @property
    def _handle(self) -> _core.Model:
        if self._open is None:
            raise _core.StateError(f"{self.path}: the model is closed")
        return self._open

    def close(self) -> None:
        """Lets go of the weights; contexts that are still open keep them until they are closed."""
        self._open = None
        self.__dict__.pop("metadata", None)

    def __enter__(self) -> Model:
        """The model itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the model."""
        self.close()

    def __repr__(self) -> str:
        """Name, architecture and size, or that it is closed."""
        if self._open is None:
            return f"Model({str(self.path)!r}, closed)"
        return f"Model({str(self.path)!r}, {self.architecture}, {self.n_params / 1e6:.1f} M parameters)"

    # What the file says.

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """All keys of the file; numeric arrays as numpy arrays, arrays of strings as lists."""
        return self._handle.file.metadata

    @property
    def file(self) -> _core.GgufFile:
        """The opened file."""
        return self._handle.file

    @property
    def tensors(self) -> list[_core.TensorInfo]:
        """Name, type and shape (GGUF order: columns first) of every tensor."""
        return self._handle.file.tensors

    @property
    def architecture(self) -> str:
        """ "llama", "bamboo", "falcon" or "opt"."""
        return self._handle.architecture

    @property
    def name(self) -> str:
        """The name in the file, or the file's name."""
        return self._handle.name

    @property
    def n_vocab(self) -> int:
        """Tokens of the vocabulary: the length of a row of logits."""
        return self._handle.n_vocab

    @property
    def n_ctx_train(self) -> int:
        """Positions the model was trained with."""
        return self._handle.n_ctx_train

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self._handle.d_model

    @property
    def d_ff(self) -> int:
        """Neurons of a layer's FFN."""
        return self._handle.d_ff

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return self._handle.n_layers

    @property
    def n_heads(self) -> int:
        """Attention heads of a layer."""
        return self._handle.n_heads

    @property
    def n_kv_heads(self) -> int:
        """Key and value heads of a layer."""
        return self._handle.n_kv_heads

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self._handle.head_dim

    @property
    def n_params(self) -> int:
        """Weights of the model, predictors left out."""
        return self._handle.n_params

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors in the file."""
        return self._handle.weight_bytes

    # What is computed.

    @property
    def activation(self) -> str:
        """The FFN activation, e.g. "relu", "silu", "fatrelu:0.01"."""
        return self._handle.activation

    @property
    def activation_source(self) -> str:
        """Why: the file's key, the override, or an assumption and its reason."""
        return self._handle.activation_source

    @property
    def has_transposed_down(self) -> bool:
        """True when an inactive neuron's output weights lie together and are skipped too."""
        return self._handle.has_transposed_down

    @property
    def sparsity(self) -> str:
        """The mode that contexts use by default; never "auto"."""
        return self._handle.default_sparsity

    @property
    def modes(self) -> list[ModeInfo]:
        """Every mode, whether this model can do it, and what it would skip or why it cannot."""
        return [ModeInfo(*mode) for mode in self._handle.modes]

    @property
    def layers(self) -> list[LayerInfo]:
        """Predictor kind, rank and threshold of every layer [n_layers]."""
        return [LayerInfo(*layer) for layer in self._handle.layers]

    def mode_summary(self, mode: str | None = None) -> str:
        """What a mode (None: the default) can lose and how to avoid it, one sentence."""
        return self._handle.mode_summary(mode or self.sparsity)

    # Text and tokens.

    @property
    def has_tokenizer(self) -> bool:
        """False for files without a vocabulary; they take and give token ids only."""
        return self._handle.has_tokenizer

    @property
    def tokenizer(self) -> _core.Tokenizer:
        """The tokenizer. Raises UnsupportedError when the file has none."""
        return self._handle.tokenizer

    def tokenize(self, text: str | bytes, *, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            text: str, or bytes in UTF-8; what is not UTF-8 becomes U+FFFD.
            add_bos: add the begin (and end) tokens that the file asks for.
            special: read control tokens that are written out in the text, such as "<|im_start|>".
        """
        return self.tokenizer.encode(text, add_special=add_bos, parse_special=special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Text of token ids; control tokens are shown only when `special`. Broken UTF-8 becomes U+FFFD."""
        return self.tokenizer.decode(tokens, special=special).decode("utf-8", errors="replace")

    @property
    def chat_template(self) -> str | None:
        """The file's chat template (jinja2), or None."""
        template = self.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Text of a conversation in the form the model was trained on, by the file's own template.

        Tokenize it with `special=True`, and with `add_bos=False` if it begins with the BOS token already.

        Args:
            messages: dicts with "role" and "content".
            add_generation_prompt: end with the beginning of the assistant's answer.
            variables: more variables of the template, e.g. `tools`.

        Raises:
            UnsupportedError: the file has no template.
            FormatError, InvalidArgument: as `render_chat_template`.
        """
        template = self.chat_template
        if template is None:
            raise _core.UnsupportedError(f"{self.path}: the file has no chat template; use a plain prompt")
        tokenizer = self.tokenizer
        tokens = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos, "unk_token": tokenizer.unknown}
        texts = {name: tokenizer.text(token) if token >= 0 else "" for name, token in tokens.items()}
        return render_chat_template(
            template, messages, add_generation_prompt=add_generation_prompt, **{**texts, **variables}
        )

    def tokenize_chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """Token ids of a conversation: `apply_chat_template`, then `tokenize` without a second BOS."""
        text = self.apply_chat_template(messages, **variables)
        bos = self.tokenizer.bos
        written_out = bos >= 0 and text.startswith(self.tokenizer.text(bos))
        return self.tokenize(text, add_bos=not written_out, special=True)

"""Runs GGUF language models on the machine you own, skipping the FFN neurons that a token does not need.

    import powerinfer_py as pi

    with pi.Model() as model, pi.Context(model) as context:
        for piece in context.generate("Once upon a time", max_tokens=64):
            print(piece, end="", flush=True)

`Model` is a file's weights and tokenizer, shared by any number of `Context`s; a context holds the state of one or
several sequences and is used by one thread at a time. The package logs to `logging.getLogger("powerinfer_py")`.
"""

from powerinfer_py._core import (
    ActivationCounter,
    CancelledError,
    DeviceError,
    Error,
    FormatError,
    GgufFile,
    InvalidArgument,
    OutOfMemoryError,
    RowRecorder,
    SquareSums,
    StateError,
    StreamDecoder,
    TensorInfo,
    Tokenizer,
    UnsupportedError,
    dequantize,
)
from powerinfer_py._core import version as _version
from powerinfer_py.chat import render_chat_template
from powerinfer_py.context import Context, LayerAudit, Piece, Stats
from powerinfer_py.log import set_log_callback
from powerinfer_py.model import LayerInfo, ModeInfo, Model, bundled_model_path
from powerinfer_py.sampler import Sampled, Sampler

__version__ = _version()

__all__ = [
    "ActivationCounter",
    "CancelledError",
    "Context",
    "DeviceError",
    "Error",
    "FormatError",
    "GgufFile",
    "InvalidArgument",
    "LayerAudit",
    "LayerInfo",
    "ModeInfo",
    "Model",
    "OutOfMemoryError",
    "Piece",
    "RowRecorder",
    "Sampled",
    "Sampler",
    "SquareSums",
    "StateError",
    "Stats",
    "StreamDecoder",
    "TensorInfo",
    "Tokenizer",
    "UnsupportedError",
    "bundled_model_path",
    "dequantize",
    "render_chat_template",
    "set_log_callback",
]

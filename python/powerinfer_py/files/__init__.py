"""Model files as tools read and write them: bounded memory, complete files only, resumable."""

from powerinfer_py.files.disk import (
    check_free_disk,
    refuse_input_as_output,
    remove_written,
    telling_full_disk,
    write_atomically,
)
from powerinfer_py.files.fingerprint import fingerprint_of, is_side_tensor
from powerinfer_py.files.gguf_input import GgufInput, Value
from powerinfer_py.files.gguf_output import GgufOutput, OutputReport, TensorSpec
from powerinfer_py.files.progress import Progress
from powerinfer_py.files.torch_state import load_torch_state

__all__ = [
    "GgufInput",
    "GgufOutput",
    "OutputReport",
    "Progress",
    "TensorSpec",
    "Value",
    "check_free_disk",
    "fingerprint_of",
    "is_side_tensor",
    "load_torch_state",
    "refuse_input_as_output",
    "remove_written",
    "telling_full_disk",
    "write_atomically",
]

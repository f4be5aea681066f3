"""From Hugging Face checkpoints and GGUF files to PowerInfer GGUF files."""

from powerinfer_py.convert.models import SUPPORTED_CLASSES
from powerinfer_py.convert.pipeline import OUTTYPES, ConvertReport, convert

__all__ = ["OUTTYPES", "SUPPORTED_CLASSES", "ConvertReport", "convert"]

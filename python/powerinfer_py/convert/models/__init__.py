"""The classes of checkpoints that can be converted: one file each, one line here."""

from __future__ import annotations

from collections.abc import Callable, Collection

from powerinfer_py._core import UnsupportedError
from powerinfer_py.convert.config import Config
from powerinfer_py.convert.models import bamboo, falcon, llama, mistral, opt, sparse_llama
from powerinfer_py.convert.models.plan import ModelPlan, Planned

__all__ = ["SUPPORTED_CLASSES", "ModelPlan", "Planned", "plan_model"]

_PLANS: dict[str, Callable[[Config, Collection[str]], ModelPlan]] = {
    "LlamaForCausalLM": llama.plan,
    "MistralForCausalLM": mistral.plan,
    "SparseLlamaForCausalLM": sparse_llama.plan,
    "BambooForCausalLM": bamboo.plan,
    "FalconForCausalLM": falcon.plan,
    "OPTForCausalLM": opt.plan,
}
_OTHER_NAMES = {"RWForCausalLM": "FalconForCausalLM"}  # Falcon before transformers had it

SUPPORTED_CLASSES = tuple(_PLANS)


def plan_model(config: Config, names: Collection[str]) -> ModelPlan:
    """How a checkpoint becomes a file. Its class, `architectures`, decides; never a name.

    Args:
        config: config.json.
        names: of the checkpoint's tensors.

    Raises:
        UnsupportedError: an unknown class, or an option of a known one. FormatError: the configuration is wrong.
    """
    classes = config.get("architectures")
    if not isinstance(classes, list) or len(classes) != 1 or not isinstance(classes[0], str):
        raise UnsupportedError(
            f"{config.where}: 'architectures' must name the model's class, got {classes!r}; "
            f"supported: {', '.join(SUPPORTED_CLASSES)}"
        )
    name = _OTHER_NAMES.get(classes[0], classes[0])
    if name not in _PLANS:
        raise UnsupportedError(
            f"{config.where}: class {classes[0]!r} is not supported; supported: {', '.join(SUPPORTED_CLASSES)}"
        )
    return _PLANS[name](config, names)

"""SparseLlamaForCausalLM (ProSparse): llama with FATReLU, x where x is at least a cut, else 0."""

from __future__ import annotations

from collections.abc import Collection

from powerinfer_py._core import FormatError, UnsupportedError
from powerinfer_py.convert.activation import Activation
from powerinfer_py.convert.config import Config
from powerinfer_py.convert.models.gated_rms import plan_gated_rms
from powerinfer_py.convert.models.plan import ModelPlan


def plan(config: Config, names: Collection[str]) -> ModelPlan:
    """How the checkpoint becomes a file of architecture llama."""
    activation, notes = _activation(config)
    n_ctx = config.integer("max_position_embeddings", default=2048)
    return plan_gated_rms(config, "llama", activation, n_ctx=n_ctx, notes=notes)


def _activation(config: Config) -> tuple[Activation, tuple[str, ...]]:
    """The class decides: fatrelu, unless the configuration names another ReLU."""
    name = config.string("hidden_act", default="fatrelu")
    if name == "relu":
        return Activation("relu"), ()
    if name == "shiftrelu":
        raise UnsupportedError(f"{config.where}: activation 'shiftrelu' is not supported; known here: fatrelu, relu")
    if config.get("hidden_act_param") is None:
        raise FormatError(f"{config.where}: 'hidden_act_param', the cut of this class's fatrelu, is missing")
    cut = config.number("hidden_act_param")
    if cut < 0:
        raise FormatError(f"{config.where}: 'hidden_act_param': expected a cut of at least 0, got {cut}")
    note = f"the configuration says hidden_act {name!r}, but the class computes fatrelu with cut {cut}: that is used"
    return Activation("fatrelu", cut), () if name == "fatrelu" else (note,)

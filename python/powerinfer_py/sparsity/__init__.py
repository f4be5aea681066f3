"""What tools measure and make of a model's activation sparsity, as functions; `powerinfer_py.convert` makes the models.

from powerinfer_py.sparsity import profile_model, reorder_model, train_predictor

profile_model("model.gguf", ["text.txt"])
reorder_model("model.gguf", "ordered.gguf")
train_predictor("ordered.gguf", ["text.txt"], "sparse.gguf", target_recall=0.97)
"""

from powerinfer_py.sparsity.activation import ActivationCounts, load_counts
from powerinfer_py.sparsity.evaluate import SparsityTable, evaluate_sparsity, plot_sparsity
from powerinfer_py.sparsity.imatrix import Imatrix, ImatrixReport, collect_imatrix, read_imatrix
from powerinfer_py.sparsity.plots import plot_profile
from powerinfer_py.sparsity.predictor import LayerChoice, Totals, TrainReport, train_predictor
from powerinfer_py.sparsity.probe import Probe, probe_activation
from powerinfer_py.sparsity.profile import ProfileReport, profile_model
from powerinfer_py.sparsity.quantize import QuantizeReport, quantize
from powerinfer_py.sparsity.reorder import ReorderReport, reorder_model
from powerinfer_py.sparsity.text import load_windows
from powerinfer_py.sparsity.verify import Bounds, VerifyReport, verify_model

__all__ = [
    "ActivationCounts",
    "Bounds",
    "Imatrix",
    "ImatrixReport",
    "LayerChoice",
    "Probe",
    "ProfileReport",
    "QuantizeReport",
    "ReorderReport",
    "SparsityTable",
    "Totals",
    "TrainReport",
    "VerifyReport",
    "collect_imatrix",
    "evaluate_sparsity",
    "load_counts",
    "load_windows",
    "plot_profile",
    "plot_sparsity",
    "probe_activation",
    "profile_model",
    "quantize",
    "read_imatrix",
    "reorder_model",
    "train_predictor",
    "verify_model",
]

"""Predictors of neurons: what `powerinfer train-predictor` does, as functions."""

from powerinfer_py.sparsity.predictor.selection import LayerChoice, Totals
from powerinfer_py.sparsity.predictor.train import TrainReport, train_predictor

__all__ = ["LayerChoice", "Totals", "TrainReport", "train_predictor"]

"""Train the bundled demo model: a small ReLU llama that writes children's stories, with few active neurons.

    python train.py --corpus corpus --out work --minutes 100

The folder --out receives tokenizer.model, the token caches, checkpoint.pt (rewritten every few minutes) and train.log.
Started again, the training goes on from its checkpoint. Schedules follow the elapsed time, so that it ends on time on
a busy machine too. build.py runs this and everything after it.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from corpus import (
    BOOKS_PART,
    END_OF_TEXT,
    HELDOUT,
    PART_WEIGHTS,
    WindowSampler,
    encode_cached,
    load_tokenizer,
    train_tokenizer,
)
from evaluate import evaluate_heldout
from model import DemoModel, ModelConfig
from torch import Tensor
from torch.nn import functional

TOKENS_PER_STEP = 8192
WARMUP = 0.02  # share of the time
FINAL_LR = 0.03  # share of the peak
LONG_WINDOWS_FROM = 0.85  # share of the time after which windows are n_ctx long instead of 256
SHORT_WINDOW = 256
# The wanted share of active neurons falls linearly from the first to the second value between these shares of the time.
DENSITY = (0.40, 0.105)
DENSITY_RAMP = (0.05, 0.60)
# The sparsity penalty is steered by a PI controller on the ratio of the density to the wanted one.
CONTROL_POWER = 4.0
CONTROL_GAIN = 0.02  # per step, of the logarithm of the penalty, at an error of 100 %
MAX_PENALTY = (0.50, 1.00)  # of the integral part, and of what is applied: more would drown the language loss
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # quintic coefficients of Jordan et al., "Muon", 2024


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised (Jordan et al. 2024), scaled to AdamW's step size (Liu et al. 2025).

    Matrices of equal shape (up to transposition) are stacked and done as one batch.
    """

    def __init__(self, parameters: list[Tensor], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Apply one update from the gradients present."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, int], list[Tensor]] = {}
            for parameter in group["params"]:
                by_shape.setdefault(tuple(sorted(parameter.shape)), []).append(parameter)
            for shape, parameters in by_shape.items():
                updates = [self._momentum_step(parameter, group["momentum"]) for parameter in parameters]
                scale = group["lr"] * 0.2 * shape[1] ** 0.5
                for parameter, update in zip(parameters, orthogonalise(torch.stack(updates)), strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update if parameter.shape[0] <= parameter.shape[1] else update.T, alpha=-scale)

    def _momentum_step(self, parameter: Tensor, momentum: float) -> Tensor:
        """Nesterov momentum of one matrix, lying on its long side."""
        state = self.state[parameter]
        average = state.setdefault("momentum", torch.zeros_like(parameter))
        average.lerp_(parameter.grad, 1 - momentum)
        update = parameter.grad.lerp(average, momentum)
        return update if parameter.shape[0] <= parameter.shape[1] else update.T


def orthogonalise(x: Tensor) -> Tensor:
    """Bring all singular values of the matrices x [n, rows, cols], rows <= cols, near 1 by Newton-Schulz iterations."""
    a, b, c = NEWTON_SCHULZ
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.float()


class DropoutPool:
    """Dropout factors cut at random places out of one pool: drawing fresh numbers would slow a CPU down too much."""

    def __init__(self, rate: float, n_layers: int, d_model: int) -> None:
        self.shape = (n_layers, 2, -1, d_model)
        self.n_used = n_layers * 2 * TOKENS_PER_STEP * d_model
        self.pool = (torch.rand(self.n_used + 4_000_000) >= rate).bfloat16() / (1 - rate)

    def cut(self, n_windows: int) -> Tensor:
        """Factors [n_layers, 2, n_windows, pos, d_model]."""
        first = 64 * int(torch.randint((len(self.pool) - self.n_used) // 64, ()))
        n_layers, branches, _, d_model = self.shape
        return self.pool[first : first + self.n_used].view(n_layers, branches, n_windows, -1, d_model)


def learning_rate(progress: float, peak: float) -> float:
    """Linear warm-up, then linear decay to FINAL_LR of the peak."""
    if progress < WARMUP:
        return peak * (0.01 + 0.99 * progress / WARMUP)
    return peak * (1 - (1 - FINAL_LR) * min(1.0, (progress - WARMUP) / (1 - WARMUP)))


def wanted_density(progress: float) -> float:
    """The density that the controller steers to."""
    begin, end = DENSITY_RAMP
    return DENSITY[0] + (DENSITY[1] - DENSITY[0]) * min(1.0, max(0.0, (progress - begin) / (end - begin)))


class Trainer:
    """Model, optimizers and the state that a checkpoint keeps."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.args = args
        self.out: Path = args.out
        self.tokenizer = load_tokenizer(self.out / "tokenizer.model")
        self.config = ModelConfig(
            n_vocab=self.tokenizer.vocab_size(), d_ff=args.d_ff, n_layers=args.layers, n_ctx=args.ctx
        )
        self.model = DemoModel(self.config)
        matrices = [p for n, p in self.model.named_parameters() if p.ndim == 2 and not n.startswith("embed")]
        others = [p for n, p in self.model.named_parameters() if p.ndim == 1 or n.startswith("embed")]
        self.optimizers = [
            Muon(matrices, lr=args.lr, weight_decay=args.weight_decay),
            torch.optim.AdamW(others, lr=args.lr, betas=(0.9, 0.95), weight_decay=args.weight_decay, fused=True),
        ]
        self.progress_state = {"step": 0, "tokens": 0, "elapsed_s": 0.0, "penalty": 1e-3, "density": 0.5}
        if (self.out / "checkpoint.pt").exists():
            self._resume()
        self.compiled_loss = torch.compile(self._loss, dynamic=False)

    def _resume(self) -> None:
        saved = torch.load(self.out / "checkpoint.pt", weights_only=True)
        self.model.load_state_dict(saved["model"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.progress_state = saved["progress"]

    def save(self) -> None:
        """Write checkpoint.pt in one go."""
        saved = {
            "config": self.config.to_dict(),
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": self.progress_state,
        }
        torch.save(saved, self.out / "checkpoint.tmp")
        os.replace(self.out / "checkpoint.tmp", self.out / "checkpoint.pt")

    def _loss(self, windows: Tensor, penalty: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Loss with the sparsity penalty, plain cross-entropy, and the densities [n_layers]."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, gate_means, densities = self.model(windows[:, :-1], keep)
        cross_entropy = functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())
        return cross_entropy + penalty * gate_means.sum(), cross_entropy.detach(), densities.detach()

    def step(self, windows: Tensor, progress: float, dropout: DropoutPool | None) -> float:
        """One optimizer step; returns the cross-entropy. Also adapts the sparsity penalty."""
        state = self.progress_state
        wanted = wanted_density(progress)
        ratio = min(2.0, max(0.5, state["density"] / wanted))
        state["penalty"] = min(MAX_PENALTY[0], max(1e-4, state["penalty"] * (1 + CONTROL_GAIN * (ratio - 1))))
        penalty = torch.tensor(min(MAX_PENALTY[1], state["penalty"] * ratio**CONTROL_POWER))
        keep = dropout.cut(len(windows)) if dropout else None
        loss, cross_entropy, densities = self.compiled_loss(windows, penalty, keep)
        loss.backward()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(progress, self.args.lr)
            optimizer.step()
            optimizer.zero_grad()
        state["density"] += 0.1 * (float(densities.mean()) - state["density"])
        state["step"] += 1
        state["tokens"] += windows.numel() - len(windows)
        return float(cross_entropy)

    def run(self, sampler: WindowSampler, heldout: list[int]) -> None:
        """Train until the time is used up, measuring and saving every `args.every` minutes."""
        args, state = self.args, self.progress_state
        dropout = DropoutPool(args.dropout, self.config.n_layers, self.config.d_model) if args.dropout else None
        budget_s = args.minutes * 60
        tick = time.monotonic()
        next_save_s = state["elapsed_s"] + args.every * 60
        average = None
        while state["elapsed_s"] < budget_s:
            progress = state["elapsed_s"] / budget_s
            n_ctx = SHORT_WINDOW if progress < LONG_WINDOWS_FROM else self.config.n_ctx
            windows = torch.from_numpy(sampler.draw(TOKENS_PER_STEP // n_ctx, n_ctx, progress))
            loss = self.step(windows, progress, dropout)
            average = loss if average is None else 0.98 * average + 0.02 * loss
            now = time.monotonic()
            state["elapsed_s"] += now - tick
            tick = now
            if state["step"] % 50 == 0:
                self.log(loss=average, lr=learning_rate(progress, args.lr), wanted=wanted_density(progress))
            if state["elapsed_s"] >= next_save_s or state["elapsed_s"] >= budget_s:
                next_save_s += args.every * 60
                self.save()
                self.log(heldout=evaluate_heldout(self.model, heldout, self.tokenizer).to_dict())

    def log(self, **values: object) -> None:
        """Append one JSON line to train.log and print it."""
        rounded = {k: round(v, 5) if isinstance(v, float) else v for k, v in {**self.progress_state, **values}.items()}
        line = json.dumps(rounded)
        print(line, flush=True)
        with (self.out / "train.log").open("a") as file:
            file.write(line + "\n")


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="folder with the *.txt.xz parts")
    parser.add_argument("--out", type=Path, required=True, help="folder for everything written")
    parser.add_argument("--minutes", type=float, default=100, help="training time, all runs together")
    parser.add_argument("--every", type=float, default=5, help="minutes between checkpoints")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.15, help="on the output of attention and FFN")
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--d-ff", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Tokenizer, token caches, training."""
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "tokens").mkdir(exist_ok=True)
    if not (args.out / "tokenizer.model").exists():
        train_tokenizer(args.corpus, args.out / "tokenizer", args.vocab)
    trainer = Trainer(args)
    streams = {
        part: encode_cached(args.corpus, part, trainer.tokenizer, args.out / "tokens")
        for part in (*PART_WEIGHTS, BOOKS_PART, HELDOUT)
    }
    sampler = WindowSampler(
        streams, trainer.tokenizer.piece_to_id(END_OF_TEXT), seed=args.seed + trainer.progress_state["step"]
    )
    trainer.run(sampler, streams[HELDOUT].tolist())


if __name__ == "__main__":
    main()

"""The bundled demo model: a small ReLU llama in plain PyTorch.

Everything that decides what the exported file must compute is here: RMSNorm, rotary embedding on adjacent pairs (so
that the query and key rows need no permutation on export), grouped-query attention, h = relu(gate x) * (up x), and an
output matrix tied to the token embedding. No biases.
"""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the model. Every width is a multiple of 256, the longest quantization block."""

    n_vocab: int = 2048
    d_model: int = 256
    d_ff: int = 1024
    n_layers: int = 6
    n_heads: int = 4
    n_kv_heads: int = 2
    n_ctx: int = 512
    norm_eps: float = 1e-5
    rope_base: float = 10000.0

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.n_heads

    def to_dict(self) -> dict:
        """Plain dictionary, as kept in checkpoints."""
        return asdict(self)


def rope_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles, both [n_ctx, head_dim / 2]; pair j turns by pos * base^(-2j/head_dim)."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.outer(torch.arange(config.n_ctx, dtype=torch.float64), config.rope_base**-exponents)
    return angles.cos().float(), angles.sin().float()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate adjacent pairs of x [batch, pos, head, head_dim] by the tables [pos, head_dim / 2]."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learnt gain, computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of x."""
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


class Attention(nn.Module):
    """Causal grouped-query attention.

    Written out as two batched products: on a CPU, under `torch.compile` and at windows this short, that is much faster
    than `scaled_dot_product_attention`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        kv_width = config.n_kv_heads * config.head_dim
        self.q = nn.Linear(config.d_model, config.d_model, bias=False)
        self.k = nn.Linear(config.d_model, kv_width, bias=False)
        self.v = nn.Linear(config.d_model, kv_width, bias=False)
        self.o = nn.Linear(config.d_model, config.d_model, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend within x [batch, pos, d_model]; returns the same shape."""
        n_batch, n_pos, _ = x.shape
        n_kv_heads, head_dim = self.config.n_kv_heads, self.config.head_dim
        groups = self.config.n_heads // n_kv_heads
        q = apply_rope(self.q(x).unflatten(-1, (-1, head_dim)), cos, sin)
        k = apply_rope(self.k(x).unflatten(-1, (-1, head_dim)), cos, sin)
        v = self.v(x).unflatten(-1, (-1, head_dim))
        # The query heads of one kv head are stacked along the positions, so that keys and values are not repeated.
        q = q.transpose(1, 2).reshape(n_batch * n_kv_heads, groups * n_pos, head_dim)
        k = k.transpose(1, 2).reshape(n_batch * n_kv_heads, n_pos, head_dim)
        v = v.transpose(1, 2).reshape(n_batch * n_kv_heads, n_pos, head_dim)
        scores = torch.bmm(q, k.transpose(1, 2)).view(n_batch * n_kv_heads, groups, n_pos, n_pos) * head_dim**-0.5
        positions = torch.arange(n_pos, device=x.device)
        scores = scores.masked_fill(positions[None, :] > positions[:, None], float("-inf"))
        weights = torch.softmax(scores.float(), -1).to(v.dtype).view(n_batch * n_kv_heads, groups * n_pos, n_pos)
        y = torch.bmm(weights, v).view(n_batch, -1, n_pos, head_dim)
        return self.o(y.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """Gated feed-forward network whose gate is a ReLU: most of h is exactly zero."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.up = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the output [batch, pos, d_model], the mean of relu(gate x) and the share of h that is not zero."""
        gate = functional.relu(self.gate(x))
        h = gate * self.up(x)
        return self.down(h), gate.float().mean(), (h != 0).float().mean()


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(config.d_model, config.norm_eps)
        self.attn = Attention(config)
        self.ffn_norm = RMSNorm(config.d_model, config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the new residual and the two statistics of the feed-forward network.

        keep [2, batch, pos, d_model]: dropout factors of the two branches, or None.
        """
        y = self.attn(self.attn_norm(x), cos, sin)
        x = x + (y if keep is None else y * keep[0])
        y, gate_mean, density = self.ffn(self.ffn_norm(x))
        return x + (y if keep is None else y * keep[1]), gate_mean, density


class DemoModel(nn.Module):
    """Token ids to logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.n_vocab, config.d_model)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        cos, sin = rope_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._init_weights()

    def _init_weights(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scale = (2 * self.config.n_layers) ** -0.5 if name.endswith(("attn.o.weight", "ffn.down.weight")) else 1
                nn.init.normal_(parameter, std=0.02 if parameter is self.embed.weight else scale * 0.6 / 16)

    def forward(self, tokens: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Run tokens [batch, pos]; keep [n_layers, 2, batch, pos, d_model]: dropout factors, or None.

        Returns logits [batch, pos, n_vocab] and, per layer [n_layers], the mean of relu(gate) and the true density.
        """
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        x = self.embed(tokens)
        gate_means, densities = [], []
        for i, layer in enumerate(self.layers):
            x, gate_mean, density = layer(x, cos, sin, None if keep is None else keep[i])
            gate_means.append(gate_mean)
            densities.append(density)
        logits = functional.linear(self.norm(x), self.embed.weight)
        return logits, torch.stack(gate_means), torch.stack(densities)

"""Three fields of a user, none of which the fused kernels know: a small MLP, two convolutions, and attention with an MLP.

    ltnode bench --field benchmarks/fields.py:Convolutions --state 64,8,8

`benchmarks/own_fields.py` measures all of them, `diffrax_fields.py` has the same in JAX.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class MLP(nn.Module):
    """64 - 256 - 256 - 64 with tanh; states (B, 64)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 64))

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        """Compute dh/dt."""
        return self.net(h)


class Convolutions(nn.Module):
    """Two 3 x 3 convolutions of 64 channels, each after GroupNorm and SiLU; states (B, 64, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        norms = [nn.GroupNorm(8, 64) for _ in range(2)]
        convs = [nn.Conv2d(64, 64, 3, padding=1) for _ in range(2)]
        self.net = nn.Sequential(norms[0], nn.SiLU(), convs[0], norms[1], nn.SiLU(), convs[1])

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        """Compute dh/dt."""
        return self.net(h)


class Attention(nn.Module):
    """Self-attention with four heads next to an MLP, each after LayerNorm; states (B, 64 tokens, 128)."""

    def __init__(self, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        """Compute dh/dt."""
        batch, tokens, width = h.shape
        parts = self.qkv(self.norm1(h)).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(batch, tokens, width)
        return self.out(mixed) + self.mlp(self.norm2(h))

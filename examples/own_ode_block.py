"""Give a custom convolutional ODE block a latent end-time, and train it in a custom loop.

The images are small pictures of horizontal and vertical stripes.

    python examples/own_ode_block.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import ltnode


class ConvBlock(nn.Module):
    """The field dh/dt = f(t, h): any module with this signature and an output of the shape of h."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)  # not BatchNorm: predictions must not depend on the rest of the batch
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.conv(self.norm(h)))


def stripes(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images (n, 1, 8, 8) of noisy stripes, and whether they are vertical."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=generator)
    phase = 6.28 * torch.rand(n, 1, generator=generator)
    wave = torch.sin(1.6 * torch.arange(8) + phase)
    x = torch.where(y[:, None, None] == 1, wave[:, None, :].expand(n, 8, 8), wave[:, :, None].expand(n, 8, 8))
    return (x + 0.5 * torch.randn(n, 8, 8, generator=generator))[:, None], y


def main() -> None:
    torch.manual_seed(0)
    model = ltnode.LatentTimeODE(
        stem=nn.Conv2d(1, 8, 3, stride=2, padding=1),
        field=ConvBlock(8),
        head=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)),
        end_time=ltnode.GammaTime(),
        task="classification",
    )
    x, y = stripes(512, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(151):
        batch = torch.randint(len(x), (64,))
        loss = model.loss(x[batch], y[batch], n_data=len(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.after_step()  # clamps the parameters of the posterior to their range
        if step % 50 == 0 and (parts := model.loss_parts):
            print(f"step {step:3d}: log-likelihood {parts.expected_log_likelihood:.3f}, KL {parts.kl:.3f}")
    model.finish_training(x, y)  # fits the prediction grid

    x_test, y_test = stripes(200, seed=1)
    p = model.predict(x_test)
    print(f"test error {ltnode.metrics.error(p.probs, y_test):.3f}; ", end="")
    print(f"{p.member_probs.shape[0]} members from one solve: {p.stats}")
    print(f"mutual information of label and end-time: {p.epistemic.mean():.4f} nats on stripes, ", end="")
    print(f"{model.predict(3 * torch.randn(200, 1, 8, 8)).epistemic.mean():.4f} on noise")


if __name__ == "__main__":
    main()

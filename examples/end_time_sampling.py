"""Compare sampling schemes of end-times: stratified or independent in training, quantiles or random in prediction.

Training evaluates the likelihood at S times on the window; their randomness adds noise to the gradient of the posterior.
Prediction averages members at S times of the posterior; their randomness adds noise to the prediction.

    python examples/end_time_sampling.py
"""

from __future__ import annotations

import torch
from torch import Tensor

import ltnode

SAMPLES = (3, 10, 30)
SETS = 1000
WINDOW = (0.0, 3.0)


def cross_entropy(t: Tensor) -> Tensor:
    """Cross-entropy of a network that fits best at T = 1.2."""
    return 0.3 + 0.25 * (t - 1.2) ** 2


def member(t: Tensor) -> Tensor:
    """Prediction of the member at time t."""
    return torch.sigmoid(3 * (t - 1.3))


def gradient_variance(scheme: str, samples: int) -> Tensor:
    """Variance of the gradient of (b - a)/S sum_s q(T_s) CE(T_s) in (alpha, beta), over many sets of times."""
    end_time = ltnode.GammaTime(2.0, 1.0, window=WINDOW).double()
    generator = torch.Generator().manual_seed(0)
    gradients = []
    for _ in range(SETS):
        times = end_time.training_times(samples, scheme=scheme, generator=generator)
        loss = (WINDOW[1] - WINDOW[0]) * (end_time().log_prob(times).exp() * cross_entropy(times)).mean()
        gradients.append(torch.stack(torch.autograd.grad(loss, (end_time.alpha, end_time.beta))))
    return torch.stack(gradients).var(dim=0)


def prediction_error(samples: int) -> tuple[float, float]:
    """Standard deviation of the predictive mean with random draws, and its error with quantiles."""
    q = ltnode.GammaTime(3.5, 1.3, window=WINDOW).double()
    with torch.no_grad():
        t = torch.linspace(1e-9, WINDOW[1], 200_001, dtype=torch.float64)
        exact = torch.trapezoid(q.log_prob(t).exp() * member(t), t)
        random = member(q.sample(SETS * samples, generator=torch.Generator().manual_seed(0))).reshape(SETS, samples).mean(1)
        levels = (torch.arange(samples, dtype=torch.float64) + 0.5) / samples
        return random.std().item(), (member(q.quantile(levels)).mean() - exact).abs().item()


def main() -> None:
    print("ratio of gradient variances, independent / stratified training times")
    print("   S    in alpha    in beta")
    for samples in SAMPLES:
        alpha, beta = (gradient_variance("iid", samples) / gradient_variance("grid", samples)).tolist()
        print(f"{samples:4d} {alpha:11.0f} {beta:10.0f}")
    print("\npredictive mean: std over sets of random draws, error with quantiles (deterministic)")
    print("   S      random   quantile")
    for samples in SAMPLES:
        random, quantile = prediction_error(samples)
        print(f"{samples:4d} {random:11.4f} {quantile:10.5f}")


if __name__ == "__main__":
    main()

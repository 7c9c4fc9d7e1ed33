"""Draw the figures of the README and the documentation: ``python docs/figures/draw.py [objective|gap] [--demo FOLDER]``.

``objective`` takes seconds and needs no models. ``gap`` shows the models that ``ltnode demo`` saved in FOLDER.
Each figure is written as NAME.svg for light and NAME-dark.svg for dark pages.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import ltnode
from ltnode.data import gap_data, gap_grid
from ltnode.demo.gaussian_process import fit_gaussian_process
from ltnode.report.style import DARK, LIGHT, Theme, new_figure, panel_title, themed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent
PRIOR = (2.0, 0.5)
WINDOW = (0.0, 3.0)
END = WINDOW[1]
DASHES = (0, (4, 3))
SHARES = {"density": 1 / (WINDOW[1] - WINDOW[0]), "integral": 1.0, "normalised": 0.0}
"""A constant cross-entropy c contributes ``c * share * P(T < 3)`` to the expected objective, up to a constant."""
CROSS_ENTROPIES = [0.05 * m for m in range(21)]


def save(name: str, draw: Callable[[Theme], Figure]) -> None:
    """Write a figure for light and for dark pages."""
    for theme, suffix in ((LIGHT, ""), (DARK, "-dark")):
        with themed(theme):
            # Without a date, the same figure has the same bytes.
            draw(theme).savefig(FOLDER / f"{name}{suffix}.svg", metadata={"Date": None})


# -- the objective -----------------------------------------------------------------------------------------------------


def optimum(weighting: str, cross_entropy: float, kl_weight: float, start: tuple[float, float] = PRIOR) -> ltnode.GammaTime:
    """The untruncated posterior that minimises the expected objective of a cross-entropy that is constant in T."""
    q = ltnode.GammaTime(*start, prior=PRIOR, window=WINDOW, truncate=False).double()
    optimizer = torch.optim.LBFGS(
        q.parameters(), max_iter=200, tolerance_grad=1e-11, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        inside = 1 - q.tail(END)
        loss = cross_entropy * SHARES[weighting] * inside + kl_weight * q.kl()
        loss.backward()
        return loss

    optimizer.step(objective)
    return q


@cache
def beyond(weighting: str, kl_weight: float) -> list[float]:
    """P(T > 3) of the optimum for each of `CROSS_ENTROPIES`, starting each search at the previous optimum."""
    shares, start = [], PRIOR
    for value in CROSS_ENTROPIES:
        q = optimum(weighting, value, kl_weight, start)
        start = (q.alpha.item(), q.beta.item())
        shares.append(q.tail(END).item())
    return shares


def tempered(cross_entropy: Tensor, t: Tensor, kl_weight: float) -> Tensor:
    """The density ``p(T) exp(-CE(T) / kl_weight)`` on the window, normalised on the grid t."""
    log_density = ltnode.GammaTime(*PRIOR, prior=PRIOR, window=WINDOW).double().log_prob(t).detach() - cross_entropy / kl_weight
    density = torch.exp(log_density - log_density.max())
    return density / torch.trapezoid(density, t)


def objective_figure(theme: Theme) -> Figure:
    """Mass of the optimal q beyond the window, optimal densities, and the effect of the weight of the KL."""
    figure = new_figure(11.4, 3.3)
    left, middle, right = figure.subplots(1, 3)

    lines = (("density", 0.1, "-", 1), ("density", 0.05, "--", 1), ("integral", 0.1, "-", 3), ("normalised", 0.1, "-", 2))
    for weighting, kl_weight, style, hue in lines:
        label = f"{weighting}, κ = {kl_weight:g}" if weighting != "normalised" else "normalised (the prior's)"
        left.plot(CROSS_ENTROPIES, beyond(weighting, kl_weight), style, color=theme.hues[hue], label=label)
    left.plot((0, 1), (0, 0), color=theme.hues[0], label="truncated (default)")
    left.set(xlabel="cross-entropy on the window", ylabel="P(T > 3)", ylim=(-0.03, 1.03), xlim=(0, 1))
    left.legend(loc="center right", bbox_to_anchor=(1.0, 0.26))
    panel_title(left, "Mass beyond the window")

    t = torch.linspace(1e-3, 12.0, 600, dtype=torch.float64)
    middle.axvspan(*WINDOW, color=theme.shade, lw=0, label="window (0, 3)")
    prior = ltnode.GammaTime(*PRIOR, truncate=False).double()
    middle.plot(t, prior.log_prob(t).exp().detach(), ls=DASHES, color=theme.faint, label="prior Gamma(2, 0.5)")
    for value, opacity in ((0.1, 0.4), (0.3, 0.7), (1.0, 1.0)):
        q = optimum("density", value, 0.1)
        label = f"q at cross-entropy {value:g}"
        middle.plot(t, q.log_prob(t).exp().detach(), color=theme.hues[1], alpha=opacity, label=label)
    middle.set(xlabel="end-time T", ylabel="density", xlim=(0, 12), ylim=(0, 0.33))
    middle.legend(loc="upper right")
    panel_title(middle, "Density weights, κ = 0.1")

    t = torch.linspace(1e-4, END, 4000, dtype=torch.float64)
    curve = 0.3 + 0.25 * (t - 1.2) ** 2
    for kl_weight, opacity in ((1.0, 0.35), (0.1, 0.55), (0.01, 0.75), (0.001, 1.0)):
        density = tempered(curve, t, kl_weight)
        mean = torch.trapezoid(density * t, t)
        std = torch.trapezoid(density * (t - mean) ** 2, t).sqrt()
        right.plot(t, density, color=theme.hues[0], alpha=opacity, label=f"κ = {kl_weight:g}: std {std:.2f}")
    right.set(xlabel="end-time T", ylabel="density", xlim=(0, END), ylim=(0, None))
    right.legend(loc="upper right")
    panel_title(right, "p(T) exp(−CE(T)/κ)")
    return figure


# -- the gap -----------------------------------------------------------------------------------------------------------


def gap_figure(theme: Theme, runs: Path) -> Figure:
    """Predictions of LT-NODE and ALT-NODE on data with a gap, and the posterior of LT-NODE."""
    figure = new_figure(11.4, 3.3)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 1.25, 1))
    data, grid = gap_data(300, 0), gap_grid()[::4]
    for axes, name, title in ((left, "lt-node", "LT-NODE"), (middle, "alt-node", "ALT-NODE")):
        _prediction(axes, theme, ltnode.load(runs / name), name, data.train.x[:, 0], data.train.y, grid)
        panel_title(axes, title, "mean, ±1 and ±2 std")
    left.set_ylabel("y")

    model = ltnode.load(runs / "lt-node")
    assert isinstance(model, ltnode.LatentTimeODE)
    assert isinstance(model.end_time, ltnode.GammaTime)
    q = model.end_time
    alpha, beta = q.get_buffer("prior").tolist()
    prior = ltnode.GammaTime(alpha, beta, window=q.window, truncate=q.truncate)
    t = torch.linspace(0.01, q.window[1] * (1 - 1e-6), 200)
    density, colour = q.log_prob(t).exp().detach(), theme.of_model("lt-node")
    right.plot(t, prior.log_prob(t).exp().detach(), ls=DASHES, color=theme.faint, label="prior p(T)")
    right.plot(t, density, color=colour, label="posterior q(T)")
    right.fill_between(t, 0, density, color=colour, alpha=0.16, lw=0)
    right.set(xlabel="end-time T", ylabel="density", xlim=q.window, ylim=(0, 1.35 * float(density.max())))
    right.legend(loc="upper left")
    panel_title(right, "LT-NODE: q(T)")
    return figure


def _prediction(axes: Axes, theme: Theme, model: ltnode.Model, name: str, x: Tensor, y: Tensor, grid: Tensor) -> None:
    p, line, colour = model.predict(grid), grid[:, 0], theme.of_model(name)
    for low, high in ((-1.0, -0.7), (0.5, 1.0)):
        axes.axvspan(low, high, color=theme.shade, lw=0)
    for width, opacity in ((2, 0.18), (1, 0.32)):
        spread = width * p.total_std
        axes.fill_between(line, p.mean - spread, p.mean + spread, color=colour, alpha=opacity, lw=0)
    mean, std = fit_gaussian_process(x[:, None], y).predict(grid)
    for sign, label in ((-1, None), (1, "±2 std of a Gaussian process")):
        axes.plot(line, mean + sign * 2 * std, color=theme.text, lw=0.7, alpha=0.7, label=label)
    axes.legend(loc="lower left")
    axes.plot(line, torch.cos(4 * line + 0.8), ls=DASHES, lw=1.1, color=theme.faint)
    axes.plot(x, y, ".", ms=2.6, mew=0, color=theme.point, alpha=0.6)
    axes.plot(line, p.mean, color=colour)
    axes.set(xlabel="x", xlim=(-2, 2), ylim=(-2.4, 2.4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", nargs="*", default=["objective"], help="objective (default), gap")
    parser.add_argument("--demo", type=Path, default=Path("demo"), help="output folder of `ltnode demo`, for gap")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    draw: dict[str, Callable[[Theme], Figure]] = {
        "objective": objective_figure,
        "gap": lambda theme: gap_figure(theme, arguments.demo / "runs"),
    }
    for name in arguments.figures:
        save(name, draw[name])


if __name__ == "__main__":
    main()

"""The objective: `model.loss` against the written formula, computed here with scipy and plain loops.

The formula is that of `ltnode.objective`; its two published special cases are the losses of the paper's code, LT-NODE

    L = (1/S) sum_s q(T_s) (1/B) sum_i CE_i(T_s) + lambda KL(q || p)

and ALT-NODE, with one end-time per point, ``L = (1/B) sum_i [q_i(T_i) CE_i(T_i) + lambda KL_i]``.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor, nn

import ltnode
from ltnode import AmortizedGammaTime, EndTime, FixedTime, GammaMixtureTime, GammaTime, LatentTimeODE, UniformTime
from ltnode.models import InputSpec, ObjectiveOptions, SolverOptions
from ltnode.objective import Gaussian, MeanSquare, Weighting, resolve_kl_weight, time_weights

# The solver at 1e-9 leaves errors far below the tolerance of the comparisons, 1e-6.
TIGHT = SolverOptions(rtol=1e-9, atol=1e-9, training="adaptive")
WINDOW = (0.25, 2.5)  # a width other than 1 and a start other than 0, so that neither can be forgotten
PRIOR = (2.0, 0.5)
WEIGHTINGS = [w.value for w in Weighting]
TASKS = ["classification", "regression"]


# -- a model whose trajectory is known in closed form -------------------------------------------------------------------------


class Decay(nn.Module):
    """dh/dt = -rate h, so that h(T) = h(0) exp(-rate T)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.linspace(0.2, 1.1, width))

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        return -self.rate * h


def closed_form_model(task: str, end_time: EndTime, **objective: object) -> LatentTimeODE:
    head = nn.Linear(4, 3 if task == "classification" else 1)
    likelihood = None if task == "classification" else Gaussian(0.6)
    options = ObjectiveOptions(**objective)  # type: ignore[arg-type]
    model = LatentTimeODE(nn.Linear(2, 4), Decay(4), head, end_time, task, likelihood=likelihood, solver=TIGHT, objective=options)
    return model.double()


def batch(task: str, n: int = 5) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 2, dtype=torch.float64)
    return x, torch.randint(3, (n,)) if task == "classification" else torch.randn(n, dtype=torch.float64)


def posterior(kind: str, truncate: bool) -> EndTime:
    if kind == "lt":
        return GammaTime(1.7, 0.9, PRIOR, WINDOW, truncate)
    if kind == "mixture":
        return GammaMixtureTime(2, PRIOR, WINDOW, truncate)
    return AmortizedGammaTime(nn.Linear(2, 2), PRIOR, WINDOW, truncate)


def training_times(kind: str, samples: int, n: int) -> Tensor:
    shape = (samples, n) if kind == "alt" else (samples,)
    return WINDOW[0] + (WINDOW[1] - WINDOW[0]) * torch.rand(shape, dtype=torch.float64)


# -- the formula, written out again -------------------------------------------------------------------------------------------


class Density:
    """A Gamma, or a mixture of several, optionally restricted to the window, by scipy's quadrature."""

    def __init__(self, components: list[tuple[float, float, float]], window: tuple[float, float] | None) -> None:
        self.low, self.high = window or (1e-12, 150.0)
        self.parts = []
        for weight, alpha, beta in components:
            constant = special.gammaln(alpha) - alpha * math.log(beta)
            part = (alpha, beta, weight * math.exp(-constant))
            self.parts.append(part)
            if window:
                mass = integrate.quad(lambda t, part=part: self._term(part, t), self.low, self.high, epsabs=1e-13)[0] / weight
                self.parts[-1] = (alpha, beta, part[2] / mass)

    @staticmethod
    def _term(part: tuple[float, float, float], t: float) -> float:
        alpha, beta, factor = part
        return factor * t ** (alpha - 1) * math.exp(-beta * t)

    def __call__(self, t: float) -> float:
        return sum(self._term(part, t) for part in self.parts) if self.low <= t <= self.high else 0.0

    def kl(self, prior: Density) -> float:
        def integrand(t: float) -> float:
            q = self(t)
            return q * (math.log(q) - math.log(prior(t))) if q > 1e-300 else 0.0

        points = [1.0, 10.0] if self.high > 10 else None
        return integrate.quad(integrand, self.low, self.high, epsabs=1e-10, limit=400, points=points)[0]


def densities_of(model: LatentTimeODE, x: Tensor) -> tuple[list[Density], Density]:
    """q of every input, and the prior, from the raw parameters."""
    end_time = model.end_time
    window = end_time.window if end_time.truncate else None
    if isinstance(end_time, AmortizedGammaTime):
        raw = end_time.encoder(x).detach().exp().tolist()
        return [Density([(1.0, a, b)], window) for a, b in raw], Density([(1.0, *PRIOR)], window)
    if isinstance(end_time, GammaMixtureTime):
        weights = torch.softmax(end_time.logits.detach(), dim=0).tolist()
        columns = [weights, end_time.alpha.tolist(), end_time.beta.tolist()]
        q = Density(list(zip(*columns, strict=True)), window)
    else:
        assert isinstance(end_time, GammaTime)
        q = Density([(1.0, float(end_time.alpha.detach()), float(end_time.beta.detach()))], window)
    return [q] * len(x), Density([(1.0, *PRIOR)], window)


def weights_by_hand(q: list[float], weighting: str, width: float) -> list[float]:
    """Weights of the S times of one input from its S densities."""
    if weighting == "density":
        return [value / len(q) for value in q]
    if weighting == "integral":
        return [width * value / len(q) for value in q]
    if weighting == "softmax":
        q = [math.exp(value) for value in q]
    return [value / sum(q) for value in q]


def log_likelihood_by_hand(task: str, output: np.ndarray, y: float, std: float | None) -> float:
    if task == "classification":
        return float(output[int(y)] - np.logaddexp.reduce(output))
    return float(stats.norm.logpdf(y, output[0], std))


def outputs_by_hand(model: LatentTimeODE, x: Tensor, times: Tensor) -> np.ndarray:
    """(S, B, C): the closed-form states through the head, one input and one time at a time."""
    h0 = model.stem(x).detach().numpy()
    rate = model.field.rate.detach().numpy()
    weight, bias = model.head.weight.detach().numpy(), model.head.bias.detach().numpy()
    columns = times.numpy() if times.ndim == 2 else np.tile(times.numpy()[:, None], (1, len(x)))
    return np.stack([[weight @ (h0[i] * np.exp(-rate * t)) + bias for i, t in enumerate(row)] for row in columns])


def loss_by_hand(model: LatentTimeODE, x: Tensor, y: Tensor, times: Tensor, kl_weight: float) -> tuple[float, float, float]:
    """Loss, expected log-likelihood and KL."""
    std = None if model.task == "classification" else float(model.likelihood.log_std.detach().exp())
    outputs = outputs_by_hand(model, x, times)
    q, prior = densities_of(model, x)
    low, high = model.end_time.window
    expected = divergence = 0.0
    for i in range(len(x)):
        own = (times[:, i] if times.ndim == 2 else times).tolist()
        weights = weights_by_hand([q[i](t) for t in own], model.objective.weighting, high - low)
        terms = [log_likelihood_by_hand(model.task, outputs[s, i], float(y[i]), std) for s in range(len(own))]
        expected += sum(w * value for w, value in zip(weights, terms, strict=True)) / len(x)
        divergence += q[i].kl(prior) / len(x)
    return -expected + kl_weight * divergence, expected, divergence


# -- loss = formula -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("truncate", [True, False], ids=["truncated", "untruncated"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ["lt", "alt", "mixture"])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_loss_is_the_written_formula(weighting: str, kind: str, task: str, truncate: bool) -> None:
    """Loss and both its parts, to 1e-6 in float64: closed-form states, scipy densities, normalisers and divergences."""
    model = closed_form_model(task, posterior(kind, truncate), weighting=weighting, kl_weight=0.3)
    x, y = batch(task)
    times = training_times(kind, 4, len(x))
    expected = loss_by_hand(model, x, y, times, 0.3)
    loss = model.loss(x, y, n_data=50, times=times)
    assert loss.detach().item() == pytest.approx(expected[0], rel=1e-6, abs=1e-6)
    parts = model.loss_parts
    assert parts is not None
    assert parts.loss.item() == loss.item()
    assert parts.expected_log_likelihood.item() == pytest.approx(expected[1], rel=1e-6, abs=1e-6)
    assert parts.kl.item() == pytest.approx(expected[2], rel=1e-6, abs=1e-6)
    assert parts.kl_weight == 0.3
    assert torch.equal(parts.times, times)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("weighting", ["density", "integral"])
def test_alt_takes_one_or_several_times_per_point(weighting: str, samples: int) -> None:
    """One end-time per point (the paper's code) and S per point (its equation) are the same formula."""
    model = closed_form_model("classification", posterior("alt", True), weighting=weighting, kl_weight=0.1)
    x, y = batch("classification")
    times = training_times("alt", samples, len(x))
    assert model.loss(x, y, times=times).item() == pytest.approx(loss_by_hand(model, x, y, times, 0.1)[0], abs=1e-6)


def test_shared_times_mean_the_same_times_for_every_input() -> None:
    """Times (S,) for ALT-NODE equal their copy in every column; (S, B) is allowed for LT-NODE, too. Same solve: to 1e-12."""
    x, y = batch("regression")
    for kind in ("lt", "alt"):
        model = closed_form_model("regression", posterior(kind, True))
        times = training_times("lt", 6, len(x))
        shared = model.loss(x, y, times=times)
        assert model.loss(x, y, times=times[:, None].expand(-1, len(x))).item() == pytest.approx(shared.item(), abs=1e-12)


@pytest.mark.parametrize(("kind", "literal"), [("lt", 1 / 640), ("alt", 1.0)])
def test_elbo_weight_is_literal(kind: str, literal: float) -> None:
    """One global T for N points weights the KL by 1/N per point, one T per point by 1."""
    model = closed_form_model("regression", posterior(kind, True), kl_weight="elbo")
    x, y = batch("regression")
    times = training_times(kind, 4, len(x))
    loss = model.loss(x, y, n_data=640, times=times)
    assert model.loss_parts is not None
    assert model.loss_parts.kl_weight == pytest.approx(literal)
    assert loss.item() == pytest.approx(loss_by_hand(model, x, y, times, literal)[0], abs=1e-6)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("end_time", [FixedTime(1.3), UniformTime(*WINDOW)], ids=["node", "uni-node"])
def test_without_a_posterior_the_loss_is_the_plain_mean(end_time: EndTime, task: str) -> None:
    """NODE and Uni-NODE minimise the mean negative log-likelihood over times and points, without KL, for every weighting."""
    model = closed_form_model(task, end_time, weighting="density", kl_weight=0.7)
    x, y = batch(task)
    times = torch.full((1,), 1.3, dtype=torch.float64) if isinstance(end_time, FixedTime) else training_times("lt", 4, 5)
    std = None if task == "classification" else 0.6
    outputs = outputs_by_hand(model, x, times)
    pairs = itertools.product(range(len(times)), range(len(x)))
    mean = np.mean([log_likelihood_by_hand(task, outputs[s, i], float(y[i]), std) for s, i in pairs])
    assert model.loss(x, y, times=times).item() == pytest.approx(-mean, abs=1e-6)
    assert model.loss_parts is not None
    assert model.loss_parts.kl.item() == 0.0


def test_squared_error_takes_the_place_of_a_density_when_asked() -> None:
    """The paper's 1-D baselines minimise the plain mean square."""
    model = ltnode.build("node", "synthetic", "paper", seed=0).double()
    assert isinstance(model, LatentTimeODE)
    assert isinstance(model.likelihood, MeanSquare)
    x, y = torch.randn(7, 1, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    times = torch.ones(1, dtype=torch.float64)
    outputs = model.head(model.solve(model.stem(x), times).states[0]).squeeze(1)
    assert model.loss(x, y, times=times).item() == pytest.approx((y - outputs).square().mean().item(), abs=1e-9)


def test_regression_targets_of_both_shapes_give_one_loss() -> None:
    """(B,) and (B, 1) are the same targets; a silent (B, B) broadcast would change the loss."""
    model = closed_form_model("regression", posterior("lt", True))
    x, y = batch("regression")
    times = training_times("lt", 3, len(x))
    assert model.loss(x, y, times=times).item() == model.loss(x, y[:, None], times=times).item()


# -- the published losses -----------------------------------------------------------------------------------------------------


def member_losses(model: LatentTimeODE, x: Tensor, y: Tensor, times: Tensor) -> Tensor:
    """Compute (S, B) negative log-likelihoods through the parts of the model and a separate solve."""
    states = ltnode.odesolve(model.field, model.stem(x), times, clip_last=False).states
    outputs = torch.stack([model.head(h) for h in states])
    if model.task == "classification":
        return torch.stack([nn.functional.cross_entropy(o, y, reduction="none") for o in outputs])
    normal = torch.distributions.Normal(outputs.squeeze(-1), model.likelihood.noise_std)
    return -normal.log_prob(y)


def test_lt_loss_of_the_papers_code_on_images() -> None:
    """Raw density of 10 times as weights, no width, lambda 0.1 times the closed-form KL, not divided by N; to 1e-6."""
    model = ltnode.build("lt-node", InputSpec((1, 10, 10), "classification", 4), "paper", seed=0, width=8).double()
    assert isinstance(model, LatentTimeODE)
    with torch.no_grad():
        model.end_time.alpha.fill_(1.4)
        model.end_time.beta.fill_(0.8)
    x, y = torch.randn(6, 1, 10, 10, dtype=torch.float64), torch.randint(4, (6,))
    times = torch.empty(10, dtype=torch.float64).uniform_(1e-6, 3.0).sort().values
    gamma = torch.distributions.Gamma
    q, p = gamma(torch.tensor(1.4).double(), 0.8), gamma(torch.tensor(2.0).double(), 0.5)
    per_time = member_losses(model, x, y, times).mean(dim=1)
    formula = (q.log_prob(times).exp() * per_time).sum() / 10 + 0.1 * torch.distributions.kl_divergence(q, p)
    for n_data in (6, 60_000):
        assert model.loss(x, y, n_data=n_data, times=times).item() == pytest.approx(formula.item(), abs=1e-6)


def test_alt_loss_of_the_papers_code_on_images() -> None:
    """One time per point, weighted by its raw density, plus 0.1 times the KL of the point, averaged over points; to 1e-6."""
    model = ltnode.build("alt-node", InputSpec((3, 10, 10), "classification", 4), "paper", seed=0, width=8).double()
    assert isinstance(model, LatentTimeODE)
    x, y = torch.randn(6, 3, 10, 10, dtype=torch.float64), torch.randint(4, (6,))
    model.loss(x, y)  # the times that the loss draws: one per point, all different
    assert model.loss_parts is not None
    times = model.loss_parts.times
    assert times.shape == (1, 6)
    assert len(times.unique()) == 6
    gamma = torch.distributions.Gamma
    alpha, beta = model.end_time.encoder(x).exp().unbind(1)
    q, p = gamma(alpha, beta), gamma(torch.tensor(2.0).double(), 0.5)
    own = member_losses(model, x, y, times)[0]
    formula = (q.log_prob(times[0]).exp() * own + 0.1 * torch.distributions.kl_divergence(q, p)).mean()
    assert model.loss(x, y, times=times).item() == pytest.approx(formula.item(), abs=1e-6)


@pytest.mark.parametrize(("name", "kl_weight"), [("lt-node", 0.05), ("alt-node", 0.1)])
def test_one_dimensional_loss_of_the_paper(name: str, kl_weight: float) -> None:
    """Gaussian likelihood with learnt noise and BatchNorm in train mode; lambda 0.05 for LT-NODE, 0.1 for ALT-NODE; to 1e-6."""
    model = ltnode.build(name, "synthetic", "paper", seed=0).double()
    assert isinstance(model, LatentTimeODE)
    with torch.no_grad():
        model.likelihood.log_std.fill_(-0.7)
    x, y = torch.randn(9, 1, dtype=torch.float64), torch.randn(9, dtype=torch.float64)
    times = torch.rand((10,) if name == "lt-node" else (1, 9), dtype=torch.float64) * 3
    if name == "lt-node":
        alpha, beta = model.end_time.alpha, model.end_time.beta
    else:
        alpha, beta = model.end_time.encoder(x).exp().unbind(1)
    gamma = torch.distributions.Gamma
    q, p = gamma(alpha, beta), gamma(torch.tensor(2.0).double(), 0.5)
    weights = q.log_prob(times).exp()
    weights = weights[:, None] if weights.ndim == 1 else weights
    divergence = torch.distributions.kl_divergence(q, p).mean()
    formula = (weights * member_losses(model, x, y, times)).mean(dim=1).mean() + kl_weight * divergence
    assert model.loss(x, y, times=times).item() == pytest.approx(formula.item(), abs=1e-6)


# -- gradients ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ["lt", "alt", "mixture"])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_gradients_reach_every_parameter(weighting: str, kind: str, task: str) -> None:
    """Stem, field, head, noise and posterior or inference network all get a finite gradient that is not zero."""
    model = closed_form_model(task, posterior(kind, True), weighting=weighting)
    x, y = batch(task)
    model.loss(x, y).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("truncate", [True, False], ids=["truncated", "untruncated"])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_gradient_of_the_posterior_is_that_of_the_formula(weighting: str, truncate: bool) -> None:
    """d loss / d(alpha, beta) agrees with central differences of the hand-written loss, whose accuracy is 1e-5."""
    model = closed_form_model("regression", posterior("lt", truncate), weighting=weighting, kl_weight=0.3)
    assert isinstance(model.end_time, GammaTime)
    x, y = batch("regression", 3)
    times = training_times("lt", 3, len(x))
    model.loss(x, y, times=times).backward()
    for parameter in (model.end_time.alpha, model.end_time.beta):
        values = []
        for shift in (1e-4, -1e-4):
            with torch.no_grad():
                parameter.add_(shift)
            values.append(loss_by_hand(model, x, y, times, 0.3)[0])
            with torch.no_grad():
                parameter.sub_(shift)
        assert parameter.grad is not None
        assert parameter.grad.item() == pytest.approx((values[0] - values[1]) / 2e-4, rel=1e-5, abs=1e-5)


def test_loss_parts_hold_no_graph() -> None:
    """Logs must not keep the activations of a step alive."""
    model = closed_form_model("regression", posterior("lt", True))
    x, y = batch("regression")
    assert model.loss(x, y).requires_grad
    parts = model.loss_parts
    assert parts is not None
    assert not any(t.requires_grad for t in (parts.loss, parts.expected_log_likelihood, parts.kl, parts.times))


# -- the estimators -----------------------------------------------------------------------------------------------------------


def test_integral_weights_are_unbiased_and_density_weights_a_width_short() -> None:
    """Over many draws the mean sums of the weights are 1 and 1/width for a truncated q, within 5 standard errors."""
    q = GammaTime(1.7, 0.9, PRIOR, WINDOW, truncate=True).double()
    times = WINDOW[0] + (WINDOW[1] - WINDOW[0]) * torch.rand(10, 20_000, dtype=torch.float64)
    log_q = q().log_prob(times.reshape(-1)).reshape(times.shape)
    width = WINDOW[1] - WINDOW[0]
    for weighting, mean in ((Weighting.INTEGRAL, 1.0), (Weighting.DENSITY, 1 / width)):
        sums = time_weights(log_q, weighting, width).sum(dim=0).detach()
        assert abs(float(sums.mean()) - mean) < 5 * float(sums.std()) / math.sqrt(20_000)


@pytest.mark.parametrize("weighting", [Weighting.NORMALISED, Weighting.SOFTMAX])
def test_normalised_weights_sum_to_one_even_at_extreme_densities(weighting: Weighting) -> None:
    """No overflow or 0/0 for log-densities from -800 to 6; per column where every input has its own T."""
    log_q = torch.tensor([[-800.0, 6.0], [-790.0, -500.0], [-810.0, 5.0]], dtype=torch.float64)
    weights = time_weights(log_q, weighting, 3.0)
    torch.testing.assert_close(weights.sum(dim=0), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-12)
    assert bool(torch.isfinite(weights).all())


def test_kl_weight_is_a_number_or_elbo() -> None:
    """A number is returned unchanged, and "elbo" resolves to the literal weight."""
    assert resolve_kl_weight(0.25, None, per_input=False) == 0.25
    assert resolve_kl_weight(0.0, None, per_input=True) == 0.0
    assert resolve_kl_weight("elbo", 200, per_input=False) == 0.005
    assert resolve_kl_weight("elbo", None, per_input=True) == 1.0

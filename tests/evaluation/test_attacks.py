"""FGSM and PGD: compared with foolbox, and checked by their properties.

Both implementations evaluate the same float32 formulas in a slightly different order: 1e-6 is a few units in the last place of
inputs of size 1. A gradient element with another sign would show as a difference of 2 epsilon.
"""

from __future__ import annotations

import math

import foolbox
import pytest
import torch
from torch import nn

from ltnode.errors import InputError
from ltnode.evaluation.attacks import PAPER_EPSILONS, fgsm, pgd

TOLERANCE = 1e-6
MEAN, STD = torch.tensor([0.49, 0.48, 0.45]), torch.tensor([0.25, 0.24, 0.26])
LOW, HIGH = (0 - MEAN) / STD, (1 - MEAN) / STD


class Ensemble(nn.Module):
    """Three smooth members whose probabilities are averaged; forward returns the log of the average."""

    def __init__(self, members: int = 3) -> None:
        super().__init__()
        self.members = nn.ModuleList(
            nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 36, 5)) for _ in range(members)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logs = torch.stack([member(x).log_softmax(1) for member in self.members])
        return logs.logsumexp(0) - math.log(len(self.members))


@pytest.fixture
def model() -> Ensemble:
    return Ensemble().eval()


@pytest.fixture
def pixels() -> torch.Tensor:
    images = torch.rand(16, 3, 8, 8)
    images[0], images[1] = 0.0, 1.0  # on the border of the valid range
    return images


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.randint(5, (16,))


def columns(values: torch.Tensor) -> torch.Tensor:
    return values[:, None, None]


@pytest.mark.parametrize("epsilon", PAPER_EPSILONS)
def test_fgsm_equals_foolbox(model, pixels, labels, epsilon):
    """The units are the same, with scalar bounds 0 and 1."""
    reference = foolbox.attacks.LinfFastGradientAttack(random_start=False)
    if epsilon > 0:
        expected = reference.run(foolbox.PyTorchModel(model, (0, 1), device="cpu"), pixels, labels, epsilon=epsilon)
    else:
        expected = pixels  # foolbox divides by epsilon
    result = fgsm(model, pixels, labels, epsilon, 0, 1)
    torch.testing.assert_close(result.x, expected, atol=TOLERANCE, rtol=0)
    assert result.zero_gradient_share == 0


def test_fgsm_in_normalised_space_equals_foolbox_in_pixel_space(model, pixels, labels):
    """epsilon / std and per-channel bounds in normalised units are epsilon and [0, 1] in pixels."""
    normalisation = {"mean": MEAN, "std": STD, "axis": -3}
    wrapped = foolbox.PyTorchModel(model, (0, 1), device="cpu", preprocessing=normalisation)
    expected = foolbox.attacks.LinfFastGradientAttack(random_start=False).run(wrapped, pixels, labels, epsilon=0.1)
    x = (pixels - columns(MEAN)) / columns(STD)
    adversarial = fgsm(model, x, labels, 0.1 / STD, LOW, HIGH).x
    torch.testing.assert_close(adversarial * columns(STD) + columns(MEAN), expected, atol=TOLERANCE, rtol=0)
    assert bool((adversarial >= columns(LOW)).all()) and bool((adversarial <= columns(HIGH)).all())


@pytest.mark.parametrize(("steps", "step_size"), [(1, 0.3), (5, 0.05), (20, 0.02)])
def test_pgd_equals_foolbox(model, pixels, labels, steps, step_size):
    """One restart from the clean input gives the same sequence of projected steps."""
    reference = foolbox.attacks.LinfProjectedGradientDescentAttack(abs_stepsize=step_size, steps=steps, random_start=False)
    expected = reference.run(foolbox.PyTorchModel(model, (0, 1), device="cpu"), pixels, labels, epsilon=0.2)
    result = pgd(model, pixels, labels, 0.2, steps, step_size, 1, 0, 1, random_start=False)
    torch.testing.assert_close(result.x, expected, atol=TOLERANCE, rtol=0)


def test_one_full_step_of_pgd_is_fgsm(model, pixels, labels):
    """One step of length epsilon without a random start is FGSM."""
    one_step = pgd(model, pixels, labels, 0.1, 1, 0.1, 1, 0.0, 1.0, random_start=False)
    torch.testing.assert_close(one_step.x, fgsm(model, pixels, labels, 0.1, 0, 1).x, atol=TOLERANCE, rtol=0)


def nll(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return -model(x).gather(1, y[:, None]).squeeze(1)


def test_attacks_stay_in_the_ball_and_raise_the_loss(model, pixels, labels, generator):
    """The result stays within epsilon (up to float32 rounding) and the valid range; stronger steps give a larger mean loss."""
    clean = nll(model, pixels, labels).mean()
    single = fgsm(model, pixels, labels, 0.1, 0, 1).x
    multiple = pgd(model, pixels, labels, 0.1, 20, 0.02, 2, 0, 1, generator).x
    for adversarial in (single, multiple):
        assert (adversarial - pixels).abs().max() <= 0.1 + TOLERANCE
        assert adversarial.min() >= 0
        assert adversarial.max() <= 1
        assert not adversarial.requires_grad
    assert clean < nll(model, single, labels).mean() < nll(model, multiple, labels).mean()


def test_pgd_keeps_the_worst_restart_per_example(model, pixels, labels):
    """With the same stream of starts, three restarts are the example-wise worst of three single ones."""
    streams = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    singles = [pgd(model, pixels, labels, 0.3, 1, 0.02, 1, 0, 1, streams[0]).x for _ in range(3)]
    best = pgd(model, pixels, labels, 0.3, 1, 0.02, 3, 0, 1, streams[1]).x
    losses = torch.stack([nll(model, x, labels) for x in singles])
    fooled = torch.stack([model(x).argmax(1) != labels for x in singles])
    # misclassified first, then the loss: a loss is far below the bonus
    winner = (losses + 1e3 * fooled).argmax(0)
    assert len(winner.unique()) > 1
    torch.testing.assert_close(best, torch.stack(singles)[winner, torch.arange(16)], atol=TOLERANCE, rtol=0)


def test_pgd_prefers_a_misclassified_point_to_a_larger_loss():
    """Three classes on a line: at x < 0 the label has p = 0.36 and is still predicted, at x > 0 it has p = 0.40 and is not."""
    tables = torch.tensor([[0.36, 0.32, 0.32], [0.40, 0.55, 0.05]]).log()

    def log_probs(x: torch.Tensor) -> torch.Tensor:
        return tables[(x[:, 0] > 0).long()] + 0 * x.sum(1, keepdim=True)

    x, y = torch.zeros(64, 1), torch.zeros(64, dtype=torch.long)
    result = pgd(log_probs, x, y, 1.0, 1, 0.0, 12, -1, 1, torch.Generator().manual_seed(0))
    assert bool((result.x > 0).all())  # all 12 starts negative: probability 64 / 4096
    assert result.zero_gradient_share == 1


def test_pgd_is_seeded(model, pixels, labels):
    """The generator alone determines the starts; the global state is neither used nor changed."""
    state = torch.get_rng_state()
    runs = [pgd(model, pixels, labels, 0.1, 2, 0.05, 1, 0, 1, torch.Generator().manual_seed(s)).x for s in (0, 0, 1)]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_underflow_of_the_probability_does_not_mask_the_gradient():
    """With weights of 1e4 the label's probability is exactly 0: attacks on it move nothing, those on the log-mean-exp do."""
    layer = nn.Linear(4, 3)
    layer.weight.data *= 1e4
    x = torch.rand(8, 4)
    label = layer(x).argmin(1)
    assert layer(x).softmax(1).gather(1, label[:, None]).max() == 0
    assert fgsm(lambda v: layer(v).softmax(1), x, label, 0.1, 0, 1).zero_gradient_share == 1

    def log_mean_exp(v: torch.Tensor) -> torch.Tensor:
        logs = torch.stack([layer(v).log_softmax(1), layer(v + 0.01).log_softmax(1)])
        return logs.logsumexp(0) - math.log(2)

    assert fgsm(log_mean_exp, x, label, 0.1, 0, 1).zero_gradient_share == 0


def test_zero_gradient_share_counts_elements():
    """A model that uses one of four features: three quarters of the gradient are exactly zero, and these elements do not move."""
    x = torch.full((5, 4), 0.5)
    result = fgsm(lambda v: torch.stack([v[:, 0], -v[:, 0]], 1).log_softmax(1), x, torch.zeros(5).long(), 0.1, 0, 1)
    assert result.zero_gradient_share == 0.75
    torch.testing.assert_close(result.x, torch.tensor([0.4, 0.5, 0.5, 0.5]).expand(5, 4))


def test_attacks_leave_no_trace(model, pixels, labels):
    """No gradients are left on the parameters or on x, and attacks work under no_grad and inference_mode."""
    expected = fgsm(model, pixels, labels, 0.1, 0, 1).x
    before = pixels.clone()
    with torch.no_grad():
        assert torch.equal(fgsm(model, pixels, labels, 0.1, 0, 1).x, expected)
    with torch.inference_mode():
        assert torch.equal(fgsm(model, pixels.clone(), labels, 0.1, 0, 1).x, expected)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(pixels, before)
    assert pixels.grad is None


def test_an_expectation_over_draws_comes_from_the_callable(pixels, labels):
    """A callable that draws a new member in every call is called steps + 1 times per restart, so every step has new noise."""
    model, calls = Ensemble(4), []

    def one_member(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls) % 4)
        return model.members[calls[-1]](x).log_softmax(1)

    pgd(one_member, pixels, labels, 0.1, 3, 0.05, 2, 0, 1)
    assert len(calls) == 2 * (3 + 1)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"epsilon": -0.1}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": torch.ones(2)}, "one per channel"),
        ({"low": 1.0, "high": 0.0}, "low"),
        ({"high": math.inf}, "high"),
        ({"x": torch.zeros(2, 3, 8, 8, dtype=torch.long)}, "floating"),
        ({"x": torch.zeros(3)}, "shape"),
        ({"y": torch.zeros(3, dtype=torch.long)}, "one integer"),
        ({"y": torch.zeros(2)}, "one integer"),
        ({"y": torch.tensor([0, 5])}, "0..4"),
        ({"log_probs_fn": lambda x: x}, r"\(2, C\)"),
        ({"log_probs_fn": lambda x: torch.zeros(2, 5)}, "differentiably"),
        ({"log_probs_fn": lambda x: torch.zeros(2, 5, requires_grad=True) * 1}, "differentiably"),
        ({"log_probs_fn": lambda x: (0 * x.flatten(1)[:, :5]).log() * x.flatten(1)[:, :5]}, "NaN or infinite"),
        ({"steps": 0}, "steps"),
        ({"restarts": 0}, "restarts"),
        ({"step_size": -1.0}, "step_size"),
    ],
)
def test_bad_input_is_refused(model, change, match):
    """Invalid strengths, ranges, labels and functions are InputErrors; fgsm performs the checks that it shares with pgd."""
    arguments = {"log_probs_fn": model, "x": torch.rand(2, 3, 8, 8), "y": torch.tensor([0, 1]), "epsilon": 0.1}
    arguments |= {"low": 0.0, "high": 1.0, "steps": 2, "step_size": 0.1, "restarts": 1} | change
    with pytest.raises(InputError, match=match):
        pgd(**arguments)
    if not change.keys() & {"steps", "restarts", "step_size"}:
        with pytest.raises(InputError, match=match):
            fgsm(**{name: arguments[name] for name in ("log_probs_fn", "x", "y", "epsilon", "low", "high")})


@pytest.mark.gpu
def test_a_cuda_device_gives_the_same_attack(model, pixels, labels):
    """With a generator on the CPU the starts agree; a gradient element near 0 may change its sign, so 99.9 % must agree."""
    on_host = pgd(model, pixels, labels, 0.1, 3, 0.05, 2, 0, 1, torch.Generator().manual_seed(0)).x
    on_device = pgd(model.cuda(), pixels.cuda(), labels, 0.1, 3, 0.05, 2, 0, 1, torch.Generator().manual_seed(0)).x
    assert ((on_device.cpu() - on_host).abs() < 1e-4).double().mean() > 0.999

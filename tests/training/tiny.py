"""Small models, data and configurations that train in a second, and comparisons that several test files share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import ltnode
from ltnode.data import Dataset, gap_data
from ltnode.models import Prediction

TIMING = ("examples_per_second",)
"""Keys of a metrics line that depend on the clock."""


class TwoPhaseModel(ltnode.Model):
    """A linear regression that uses everything a training loop must handle.

    It has two phases with separate parameters, noise from the global generator in the loss, a buffer that counts calls, a solver
    state outside of the state dict on which the loss depends, and hooks that record their calls.
    """

    phases: ClassVar[tuple[str, ...]] = ("main", "diffusion")

    def __init__(self, width: int = 3) -> None:
        super().__init__("regression")
        generator = torch.Generator().manual_seed(1)
        self.linear = nn.Linear(1, width)
        self.noise = nn.Linear(1, 1)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(0.3 * torch.randn(p.shape, generator=generator))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.kept = 0.0
        self.events: list[str] = []

    def loss(self, x: Tensor, y: Tensor, n_data: int | None = None, times: Tensor | None = None, phase: str = "main") -> Tensor:
        self.events.append(phase)
        self.calls += 1
        if phase == "diffusion":
            return (self.noise(x) - torch.randn_like(x)).square().mean()
        self.kept = 0.5 * self.kept + float(x.mean())
        out = self.linear(x + 0.01 * torch.randn_like(x) + 0.01 * self.kept).sum(1)
        return (out - y).square().mean()

    def predict(self, x: Tensor, samples: int = 10, draw: Any = "quantile", seed: int = 0) -> Prediction:
        with torch.no_grad():
            out = self.linear(x).sum(1, keepdim=True).expand(samples, -1, -1)
        return Prediction("regression", out, torch.ones(samples), None, torch.tensor(0.1))

    def log_probs(self, x: Tensor, samples: int = 10, draw: Any = "quantile", seed: int = 0) -> Tensor:
        raise NotImplementedError

    def parameter_roles(self, phase: str = "main") -> dict[str, list[nn.Parameter]]:
        if phase == "main":
            return {"weights": list(self.linear.parameters())}
        return {"diffusion": list(self.noise.parameters())}

    def after_step(self) -> None:
        self.events.append("after_step")

    def finish_training(self, x: Tensor, y: Tensor) -> None:
        self.events.append(f"finish {len(x)}")

    def describe(self, x: Tensor | None = None) -> dict[str, float]:
        torch.randn(3)  # describing the model must not change the random state of the training
        return {"kept": self.kept}

    def solver_state(self) -> dict[str, Any]:
        return {"kept": self.kept}

    def load_solver_state(self, state: dict[str, Any]) -> None:
        self.kept = state["kept"]


def tiny_model(name: str = "lt-node", **options: Any) -> ltnode.Model:
    return ltnode.build(name, "synthetic", seed=0, width=8, **options)


def tiny_data(n: int = 48) -> Dataset:
    return gap_data(n)


def tiny_config(**changes: Any) -> ltnode.TrainConfig:
    """Return a configuration of 24 steps of 16 examples, with checkpoints and log lines at different steps."""
    values: dict[str, Any] = {
        "epochs": 8,
        "batch_size": 16,
        "optimizer": "sgd",
        "lr": 0.005,
        "milestones": (4,),
        "log_every": 4,
        "checkpoint_epochs": 1,
        "checkpoint_minutes": None,
        "device": "cpu",
        "seed": 3,
    }
    return ltnode.TrainConfig(**{**values, **changes})


def without_timing(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key not in TIMING} for line in lines]


def read_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same_run(one: Path, other: Path) -> None:
    """Check that the weights are equal bit for bit and that the logs agree except for timings."""
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert without_timing(read_lines(one)) == without_timing(read_lines(other))


class Stop(Exception):
    """Ends a training at any step, as a crash would."""


def stop_at(step: int) -> Any:
    def on_log(line: Any) -> None:
        if line["step"] >= step:
            raise Stop

    return on_log

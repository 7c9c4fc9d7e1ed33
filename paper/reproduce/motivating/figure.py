"""The figure of the motivating tasks, from trained models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ltnode.report.style import SavedFigure, save_figure
from ltnode.typing import Float, Tensor
from paper.reproduce.motivating.panels import LineMap, Panel, PlaneMap, Trajectories, motivating_figure
from paper.reproduce.motivating.tasks import MODELS, TASKS, Trained, main_score, training_data

_HALF, _SIDE = 1.75, 90


def draw(out: Path, trained: Sequence[Trained]) -> SavedFigure:
    """Decision regions, reflections, and the end-times of ALT-NODE, of one seed.

    Args:
        out: Folder of the figure.
        trained: One model of each kind for each task.
    """
    rows: list[list[Panel]] = []
    for task in TASKS:
        entries = [entry for entry in trained if entry.task == task]
        row: list[Panel] = [_plane(entry) if task == "concentric" else _line(entry) for entry in entries]
        row += [_end_times(e) if task == "concentric" else _paths(e) for e in entries if e.model == "alt-node"]
        if row:
            rows.append(row)
    return save_figure(
        lambda theme: motivating_figure(theme, rows),
        out / "motivating",
        alt="Predictions on concentric annuli and of y = -x, for NODE, augmented NODE and ALT-NODE",
        caption="Probability of the annulus on the line and in the plane (with the line of one half), and predictions of y = -x. "
        "The state of NODE and ALT-NODE is the input itself. Paths of ALT-NODE stop at the median of q(T | x).",
    )


def _square() -> Float[Tensor, "N 2"]:
    axis = torch.linspace(-_HALF, _HALF, _SIDE)
    second, first = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack([first.reshape(-1), second.reshape(-1)], dim=1)


def _plane(entry: Trained) -> PlaneMap:
    probability = entry.network.predict(_square()).probs[:, 1].reshape(_SIDE, _SIDE)
    data = training_data(entry.task, entry.seed).train
    detail = f"error {100 * main_score(entry.task, entry.result['scores']):.2f} %"
    return PlaneMap(MODELS[entry.model].split(",")[0] + _extra(entry), probability, _HALF, data.x, data.y, detail=detail)


def _extra(entry: Trained) -> str:
    return " + 1 dim." if entry.model == "node-augmented" else ""


@torch.no_grad()
def _end_times(entry: Trained) -> PlaneMap:
    mean = entry.network.end_time(_square()).mean.reshape(_SIDE, _SIDE)
    data = training_data(entry.task, entry.seed).train
    high = float(entry.network.end_time.window[1])
    return PlaneMap("ALT-NODE: end-time", mean, _HALF, data.x, data.y, bounds=(0.0, high), bar="E[T | x]")


def _line(entry: Trained) -> LineMap:
    half = 1.0 if entry.task == "reflection" else _HALF
    x = torch.linspace(-half, half, 301)
    predicted = entry.network.predict(x[:, None])
    score = main_score(entry.task, entry.result["scores"])
    name = "node" if entry.model == "node-augmented" else entry.model
    title = MODELS[entry.model].split(",")[0] + _extra(entry)
    if entry.task == "reflection":
        return LineMap(name, title, x, predicted.mean, predicted.std, -x, "y", f"RMSE {score:.3f}")
    members = predicted.member_probs[..., 1]
    target = torch.full_like(x, torch.nan)
    target[x.abs() <= 0.5] = 0.0
    target[(x.abs() >= 1) & (x.abs() <= 1.5)] = 1.0
    label, detail = "P(annulus)", f"error {100 * score:.1f} %"
    return LineMap(name, title, x, members.mean(dim=0), members.std(dim=0, correction=0), target, label, detail)


@torch.no_grad()
def _paths(entry: Trained) -> Trajectories:
    network = entry.network
    if entry.task == "reflection":
        x = torch.linspace(-0.9, 0.9, 7)[:, None]
        groups = (x[:, 0] > 0).long()
    else:
        x = torch.tensor([-1.4, -1.1, -0.4, -0.2, 0.0, 0.2, 0.4, 1.1, 1.4])[:, None]
        groups = (x[:, 0].abs() > 0.75).long()
    network.eval()
    ends = network.end_time(x).quantile(torch.tensor([0.5], dtype=torch.float64))
    t = torch.linspace(0.0, float(network.end_time.window[1]), 200)
    states = network.solve(network.initial_state(x), t, "adaptive").states[..., 0]
    stops = network.solve(network.initial_state(x), ends, "adaptive").states[0, :, 0]
    return Trajectories("ALT-NODE: paths", t, states, ends[0], stops, groups)

"""One run in several processes: each computes a share of every batch, gradients are summed, and one process writes files.

Start the same program with ``torchrun --nproc-per-node N``; `Workers.start` finds the other processes by environment variables.
The sum of the processes' gradients, weighted by their shares of the examples, is the gradient of the whole batch, so that N
processes compute the same as one. Two things depend on the share of a process instead of the whole batch: the steps that a solver
chooses by its error (except on a fixed grid), and the statistics of BatchNorm. Checkpoints hold the buffers and the training grid
of the first process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from ltnode.errors import CheckpointError, LTNodeError
from ltnode.objective import LOGGED_PARTS
from ltnode.training.checkpoint import model_tensors
from ltnode.training.status import RunStatus, TrainingError
from ltnode.typing import Tensor

_TIMEOUT = timedelta(minutes=10)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Workers:
    """The ``world`` processes of a run, from the point of view of the one with number ``rank``."""

    rank: int = 0
    world: int = 1
    owns_group: bool = False
    """Whether the process group was created here and ends with the run."""

    @classmethod
    def start(cls, device: torch.device, timeout: timedelta = _TIMEOUT) -> Workers:
        """Join the other processes if torchrun started several; otherwise return a single process."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
            return cls()
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
        return cls(dist.get_rank(), dist.get_world_size(), owns_group=True)

    def stop(self) -> None:
        """Leave the process group if `start` created it."""
        if self.owns_group and dist.is_initialized():
            dist.destroy_process_group()

    @property
    def is_writer(self) -> bool:
        """Whether this process writes the run folder."""
        return self.rank == 0

    def combine(self, parameters: Sequence[Tensor], parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum gradients and parts of the loss over the processes in one message; gradients are replaced in place.

        A parameter without a gradient in any process gets none.
        """
        if self.world == 1:
            return parts
        reference = next(iter(parts.values()))
        present = torch.tensor([float(p.grad is not None) for p in parameters], device=reference.device)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        # A process without examples does not know which parts the model reports, so all of them are sent.
        values = torch.stack([parts.get(name, torch.zeros_like(reference)) for name in LOGGED_PARTS])
        flat = torch.cat([present, values, *(g.reshape(-1) for g in gradients)])
        self._guard(lambda: dist.all_reduce(flat))
        sizes = [len(parameters), len(LOGGED_PARTS), *(p.numel() for p in parameters)]
        present, values, *gradients = torch.split(flat, sizes)
        for parameter, count, gradient in zip(parameters, present.tolist(), gradients, strict=True):
            parameter.grad = gradient.view_as(parameter).to(parameter.dtype) if count else None
        return {name: value for name, value in zip(LOGGED_PARTS, values, strict=True) if name in parts}

    def agree(self, decide: Callable[[], _T]) -> _T:
        """Let the writing process decide (and read files), and send its answer, or its error, to all processes."""
        if self.world == 1:
            return decide()
        answer: list[Any] = [None, None]
        if self.is_writer:
            try:
                answer[0] = decide()
            except LTNodeError as error:
                answer[1] = str(error)
                self._guard(lambda: dist.broadcast_object_list(answer, src=0))
                raise
        self._guard(lambda: dist.broadcast_object_list(answer, src=0))
        if answer[1] is not None:
            raise CheckpointError(answer[1])
        return answer[0]

    def same_start(self, model: nn.Module) -> None:
        """Copy the parameters and buffers of the first process to all others."""
        if self.world > 1:
            for tensor in model_tensors(model).values():
                self._guard(partial(dist.broadcast, tensor, src=0))

    def _guard(self, exchange: Callable[[], object]) -> None:
        try:
            exchange()
        except RuntimeError as error:
            what = f"process {self.rank} of {self.world} could not reach the others: {error}"
            raise TrainingError(RunStatus.PEER_LOST, what) from error

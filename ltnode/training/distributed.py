"""One run in several processes: each computes a share of every batch, the gradients are summed, one of them writes.

Start the same program with ``torchrun --nproc-per-node N``; `Workers.start` finds the others by the variables that torchrun
sets. The sum of the processes' gradients, each weighted by its share of the examples, is the gradient of the whole batch, so
that N processes compute what one does. Two things depend on a process's own share and not on the whole batch: the steps that a
solver chooses by its error (kept or adaptive grids; a fixed grid does not), and BatchNorm's statistics. Buffers and the kept
grid that are saved are those of the first process.
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
from ltnode.training.status import RunStatus, TrainingError
from ltnode.typing import Tensor

_TIMEOUT = timedelta(minutes=10)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Workers:
    """The processes of a run, seen from one of them.

    Attributes:
        rank: Number of this process, from 0.
        world: How many there are.
        owns_group: The process group was made here, and ends with the run.
    """

    rank: int = 0
    world: int = 1
    owns_group: bool = False

    @classmethod
    def start(cls, device: torch.device, timeout: timedelta = _TIMEOUT) -> Workers:
        """Join the other processes when torchrun started several; a lone process otherwise."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
            return cls()
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
        return cls(dist.get_rank(), dist.get_world_size(), owns_group=True)

    def stop(self) -> None:
        """Leave the process group, if `start` made it."""
        if self.owns_group and dist.is_initialized():
            dist.destroy_process_group()

    @property
    def is_writer(self) -> bool:
        """Whether this process writes the run folder."""
        return self.rank == 0

    def combine(self, parameters: Sequence[Tensor], parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum gradients and parts of the loss over the processes, in one message; gradients are replaced in place.

        A parameter that no process has a gradient for keeps none.
        """
        if self.world == 1:
            return parts
        reference = next(iter(parts.values()))
        present = torch.tensor([float(p.grad is not None) for p in parameters], device=reference.device)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        # Processes without examples do not know which parts the model has: a fixed number travels.
        values = torch.stack([parts.get(name, torch.zeros_like(reference)) for name in LOGGED_PARTS])
        flat = torch.cat([present, values, *(g.reshape(-1) for g in gradients)])
        self._guard(lambda: dist.all_reduce(flat))
        sizes = [len(parameters), len(LOGGED_PARTS), *(p.numel() for p in parameters)]
        present, values, *gradients = torch.split(flat, sizes)
        for parameter, count, gradient in zip(parameters, present.tolist(), gradients, strict=True):
            parameter.grad = gradient.view_as(parameter).to(parameter.dtype) if count else None
        return {name: value for name, value in zip(LOGGED_PARTS, values, strict=True) if name in parts}

    def agree(self, decide: Callable[[], _T]) -> _T:
        """Let the writer decide (and read files), and give its answer, or its error, to all."""
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
        """Give every process the parameters and buffers of the first."""
        if self.world > 1:
            for tensor in model.state_dict().values():
                self._guard(partial(dist.broadcast, tensor, src=0))

    def _guard(self, exchange: Callable[[], object]) -> None:
        try:
            exchange()
        except RuntimeError as error:
            what = f"process {self.rank} of {self.world} could not reach the others: {error}"
            raise TrainingError(RunStatus.PEER_LOST, what) from error

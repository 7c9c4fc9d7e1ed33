"""The engine ``ray``: tasks of a Ray cluster, which schedules them and runs those of dead workers and nodes again."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from ltnode.cluster.executor import MAX_ATTEMPTS, Executor, Outcome, Task, call
from ltnode.errors import ConfigError, missing_extra


def require_ray() -> Any:
    """Import Ray, or raise a `MissingExtraError` that names the extra ``cluster``."""
    try:
        import ray
    except ImportError as error:
        raise missing_extra("ray", "cluster", "--engine ray (--engine local needs nothing)") from error
    return ray


def connect(address: str | None, cpus: int | None = None) -> bool:
    """Connect to a cluster, or start one on this machine if there is no address; False if this process is already connected.

    Args:
        address: Address of the cluster.
        cpus: CPUs of a cluster that is started; None takes all of this machine.

    Raises:
        ConfigError: There is no cluster at the address.
    """
    ray = require_ray()
    if ray.is_initialized():
        return False
    try:
        own = {"include_dashboard": False, "num_cpus": cpus} if address is None else {}
        ray.init(address=address, log_to_driver=False, configure_logging=False, **own)
    except Exception as error:  # Ray raises plain exceptions where a node does not start in time
        reason = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise ConfigError(f"cannot connect to the Ray cluster {address or 'of this machine'}: {reason}") from error
    return True


class RayExecutor(Executor):
    """Runs tasks on a Ray cluster.

    Args:
        address: Address of the cluster, such as ``"auto"``, ``"10.0.0.1:6379"`` or ``"ray://host:10001"``; None starts one on
            this machine.
        threads: Number of threads, and of the cluster's CPUs, of a task.
        gpus: Share of a GPU for every task; several tasks share a GPU if it is below 1.
        jobs: Largest number of concurrent tasks; None uses the whole cluster.
        owned: Whether to disconnect at the end, also from a connection that existed before.
    """

    def __init__(
        self,
        address: str | None = None,
        threads: int = 1,
        gpus: int | float = 0.0,
        jobs: int | None = None,
        owned: bool = False,
    ) -> None:
        self._ray = require_ray()
        self._owned = connect(address, None if jobs is None else jobs * threads) or owned
        self._resources = {"CPU": float(threads), **({"GPU": gpus} if gpus else {})}
        self._jobs = jobs
        options = {"num_cpus": threads, "num_gpus": gpus, "max_retries": MAX_ATTEMPTS, "retry_exceptions": False}
        self._call = self._ray.remote(**options)(call)
        self._names: dict[Any, str] = {}
        self._held: deque[Task] = deque()  # those beyond ``jobs``, which Ray would run where it has room
        self._dropped: list[Outcome] = []

    @property
    def capacity(self) -> int:
        """Number of tasks for which the cluster has room, busy or not; at least 1, because nodes may join later."""
        total = self._ray.cluster_resources()
        fitting = min(math.floor(total.get(kind, 0.0) / needed + 1e-9) for kind, needed in self._resources.items())
        return max(1, min(fitting, self._jobs or fitting))

    def submit(self, task: Task) -> None:
        """Queue a task."""
        self._held.append(task)
        self._release()

    def _release(self) -> None:
        while self._held and (self._jobs is None or len(self._names) < self._jobs):
            task = self._held.popleft()
            self._names[self._call.options(name=task.name).remote(task.function, dict(task.arguments))] = task.name

    def wait(self, seconds: float) -> list[Outcome]:
        """Return what has ended."""
        dropped, self._dropped = self._dropped, []
        if dropped or not self._names:
            return dropped
        ready, _ = self._ray.wait(list(self._names), num_returns=1, timeout=seconds, fetch_local=False)
        if ready:
            ready, _ = self._ray.wait(list(self._names), num_returns=len(self._names), timeout=0, fetch_local=False)
        ended = [self._outcome(self._names.pop(reference), reference) for reference in ready]
        self._release()
        return ended

    def cancel(self, name: str) -> None:
        """End a task: Ray sends it an interrupt, after which a training writes a checkpoint."""
        for task in [task for task in self._held if task.name == name]:
            self._held.remove(task)
            self._dropped.append(Outcome(name, "cancelled"))
        for reference, named in self._names.items():
            if named == name:
                self._ray.cancel(reference, force=False)

    def close(self) -> None:
        """Cancel all tasks, and disconnect if this object has connected."""
        self._held.clear()
        for reference in self._names:
            self._ray.cancel(reference, force=False)
        if self._names:
            self._ray.wait(list(self._names), num_returns=len(self._names), timeout=10, fetch_local=False)
        self._names.clear()
        if self._owned:
            self._ray.shutdown()

    def _outcome(self, name: str, reference: Any) -> Outcome:
        try:
            return Outcome.of_answer(name, self._ray.get(reference))
        except (self._ray.exceptions.TaskCancelledError, KeyboardInterrupt):
            return Outcome(name, "cancelled")
        except self._ray.exceptions.RayError as error:
            return Outcome(name, "failed", error=str(error).splitlines()[0][:2000], kind=type(error).__name__)

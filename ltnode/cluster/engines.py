"""The engines by name."""

from __future__ import annotations

from ltnode.cluster.executor import Executor, check_engine
from ltnode.cluster.local import LocalExecutor
from ltnode.cluster.on_ray import RayExecutor, connect, require_ray

_SHARE_OF_GPU = 0.25


def make_executor(
    engine: str,
    *,
    address: str | None = None,
    jobs: int | None = None,
    threads: int = 1,
    gpus: float | None = None,
    device: str = "auto",
    here: bool = False,
) -> Executor:
    """Make the executor of an engine.

    Args:
        engine: ``"local"`` or ``"ray"``.
        address: Address of a Ray cluster; None starts one on this machine.
        jobs: Largest number of concurrent tasks; None chooses it.
        threads: Number of threads of a task.
        gpus: Share of a GPU that a task needs on Ray; None takes a quarter where the cluster has GPUs.
        device: Device of the tasks; ``"cpu"`` uses no GPU.
        here: For the local engine, whether one of the workers is a thread of this process; see `LocalExecutor`.

    Raises:
        InputError: There is no such engine.
        MissingExtraError: Ray is not installed.
    """
    check_engine(engine, address)
    if engine == "local":
        return LocalExecutor(jobs, threads, device, here)
    if device == "cpu":
        gpus = 0.0
    if gpus is None:
        connected = connect(address, None if jobs is None else jobs * threads)
        gpus = _SHARE_OF_GPU if require_ray().cluster_resources().get("GPU") else 0.0
        return RayExecutor(address, threads, gpus, jobs, owned=connected)
    return RayExecutor(address, threads, gpus, jobs)

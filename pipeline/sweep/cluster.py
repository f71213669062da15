"""Execution of a scheduler's trials on Ray: on this machine, or on the cluster at RAY_ADDRESS."""

from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

from pfl.core import files
from pfl.core.config import Execution
from pfl.core.cores import cores
from pfl.core.errors import Conflict, InvalidInput
from pfl.core.lazy import torch
from pfl.core.text import first_line
from pfl.run.sources import running_code
from pfl.run.trials import Trial
from pipeline.spec.table import Resources
from pipeline.sweep.environment import LONGEST_TEMPORARY, SCRATCH_PREFIX, check_nodes, temporary_folder
from pipeline.sweep.guard import Guard, has_died
from pipeline.sweep.scheduler import Scheduler

GPU_SHARE = 0.25
"""Share of a GPU per trial if the table gives none; small networks leave most of a GPU idle."""

OBJECT_STORE_BYTES = 80 * 2**20  # Ray's minimum: driver and workers exchange only trials and records

STARTS = 4
"""Attempts to start Ray, each of which waits 30 s for its processes: too short on an overloaded machine."""

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_prestart_worker_first_driver": "0",  # Tune starts its own processes
    # If memory runs out, the kernel kills a process and Tune restarts it. If Ray's monitor kills it, Tune
    # ends the sweep.
    "RAY_memory_monitor_refresh_ms": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C raises at once; finished work is in checkpoints and ledger
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # Tune's own record of the experiment is never read
}


Watch = Callable[[int, Sequence[Sequence[Trial]]], None]
"""Called with the number of parallel slots and the running trials, grouped by stack."""


def run(scheduler: Scheduler, watch: Watch) -> None:
    """Run a scheduler until it is finished.

    Args:
        watch: called several times per second, and once after the last trial.

    Raises:
        InvalidInput: the cluster at RAY_ADDRESS is not usable or has ended trials, Ray has died, no node has
            the resources that a trial needs, or the sources have changed or differ on a later node.
    """
    os.environ.update(ENVIRONMENT)
    with scratch_folder() as scratch, closing(Guard()) as guard, connected(scratch / "ray"), guard:
        import ray
        from ray import tune

        from pipeline.sweep.ray_search import Clock, Job, SchedulerSearcher, Worker

        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # it looks for log files that do not exist
        resources = scheduler.resources
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = gpus_of(resources, sum(node.get("GPU", 0) for node in nodes))
        slots = slots_of(resources.cpus, gpus, nodes)
        # So that the next trial is ready when a worker finishes.
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(slots)
        scheduler.stacks = gpus > 0
        job = Job(
            root=str(Path.cwd()),
            source=os.environ.get("DATA_SOURCE"),
            sources=running_code().sources,
            keep_models=scheduler.keeps_models,
            execution=Execution(device="cuda" if gpus else "cpu", workers=resources.cpus),
        )
        search = SchedulerSearcher(scheduler, job)

        def tick() -> None:
            guard.check()
            watch(slots, search.under_way)

        with as_one_line(guard):
            tune.Tuner(
                tune.with_resources(Worker, {"cpu": resources.cpus, "gpu": gpus}),
                tune_config=tune.TuneConfig(search_alg=search, num_samples=-1, reuse_actors=True),
                run_config=tune.RunConfig(
                    storage_path=str(scratch / "tune"),
                    callbacks=[Clock(tick)],
                    verbose=0,
                    checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                ),
            ).fit()
        if search.edited:
            changed = "the source changed during the sweep"
            if os.environ.get("RAY_ADDRESS"):
                changed += ", or differs on a node that joined later"
            raise Conflict("sources", changed, "run it again; finished trials are kept")


def scratch_folder() -> AbstractContextManager[Path]:
    """A private folder for Ray's files, removed at the end. Folders left by killed sweeps are removed.

    Ray makes its folder, with logs and sockets, world-accessible, so it gets a folder inside the private one.
    """
    # With a joined cluster, Ray's sockets are elsewhere.
    temporary = temporary_folder(None if os.environ.get("RAY_ADDRESS") else LONGEST_TEMPORARY)
    files.remove_abandoned(temporary, SCRATCH_PREFIX)
    return files.scratch_folder(temporary, SCRATCH_PREFIX)


@contextmanager
def connected(scratch: Path) -> Iterator[None]:
    """Start Ray on this machine, with its files in ``scratch``, or join the cluster at RAY_ADDRESS.

    Raises:
        InvalidInput: a node of the cluster at RAY_ADDRESS cannot run a sweep, or Ray does not start.
    """
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {}
    if address:
        os.environ["RAY_AUTH_MODE"] = "token"
    else:
        # Ray's services listen on all interfaces; only this sweep knows the token.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        options = {
            "address": "local",
            "num_cpus": cores(),
            "num_gpus": torch.cuda.device_count(),  # Ray also finds those whose driver is too old for torch
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "_temp_dir": str(scratch),
        }
    import ray

    terminate = signal.getsignal(signal.SIGTERM)
    try:
        _initialise_ray(options)
        # If a service dies, Ray prints pages of its log, regardless of `log_to_driver`.
        ray._private.worker._worker_logs_enabled = False
        signal.signal(signal.SIGTERM, terminate)  # Ray has installed its own handler
        if address:
            check_nodes(node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU"))
        yield
    finally:
        # Ray ends the process if another thread frees one of its references during shutdown, so automatic
        # garbage collection is off, and an explicit one ignores all existing objects.
        gc.disable()
        gc.freeze()
        ray.shutdown()
        gc.unfreeze()
        gc.enable()


def _initialise_ray(options: Mapping[str, Any]) -> None:
    """Call ``ray.init``, and again if Ray times out waiting for its processes.

    Raises:
        InvalidInput: Ray did not start in any of `STARTS` attempts.
    """
    import ray

    for _ in range(STARTS):
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
            return
        except Exception as error:  # Ray has no class for this
            if "timed out during startup" not in str(error):
                raise
            ray.shutdown()
    load = f"{os.getloadavg()[0]:.0f} running processes on {os.cpu_count()} cores"
    raise InvalidInput("load", load, f"a machine on which Ray starts within 30 s ({STARTS} attempts failed)")


@contextmanager
def as_one_line(guard: Guard) -> Iterator[None]:
    """Report in one line, instead of Tune's traceback, that Ray has died or that the memory monitor of a
    joined cluster has killed trials.

    Raises:
        InvalidInput: one of these has happened.
    """
    from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

    try:
        yield
    except Exception as error:
        cause = error if isinstance(error, RayError) else error.__cause__
        if isinstance(cause, OutOfMemoryError):
            other = (
                "one whose memory monitor is off (RAY_memory_monitor_refresh_ms=0 at every "
                "`ray start`); finished trials are kept, and the same command continues from here"
            )
            raise InvalidInput("RAY_ADDRESS", os.environ.get("RAY_ADDRESS"), other) from None
        # A task's own error is a bug of ours, which needs its traceback.
        if isinstance(cause, RayError) and not isinstance(cause, RayTaskError):
            raise has_died(f"{type(cause).__name__}: {first_line(cause)}") from None
        if lost := guard.error:
            raise lost from None
        raise


def gpus_of(resources: Resources, there: float) -> float:
    """The share of a GPU that a trial takes, given the number ``there`` of available GPUs."""
    if resources.gpus == "auto":
        return GPU_SHARE if there else 0
    return resources.gpus


def slots_of(cpus: int, gpus: float, nodes: Iterable[Mapping[str, float]]) -> int:
    """Number of parallel trials on nodes with the given resources; a trial needs a single node.

    Raises:
        InvalidInput: one trial asks for more than any node has.
    """
    nodes = list(nodes)
    for name, kind, asked in (("cpus", "CPU", cpus), ("gpus", "GPU", gpus)):
        most = max((node.get(kind, 0) for node in nodes), default=0)
        if asked > most:
            raise InvalidInput(f"resources.{name}", asked, f"at most the {most:g} that Ray finds on a node")
    slots = sum(
        int(min(node.get("CPU", 0) / cpus, node.get("GPU", 0) / gpus if gpus else float("inf")))
        for node in nodes
    )
    if not slots:
        asked_for = f"{cpus} CPUs and {gpus:g} GPUs"
        raise InvalidInput("resources", asked_for, "resources of a single node; no node has all of these")
    return slots

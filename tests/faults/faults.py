"""The faults that a sweep has to survive, each injected for real by one function.

Each is a context manager: it starts the sweep of a checkout and injects the fault; inside, the fault is
there, and at the end what was in the way is gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

import psutil

from tests.faults import failing
from tests.faults.checkout import Checkout
from tests.pipeline.running import command_of, has_ended, kill_all, wait_until, workers
from tests.pipeline.services import TOKEN, Cluster, MlflowServer, without

Process = subprocess.Popen[bytes]
Injector = Callable[[Checkout], AbstractContextManager[Process]]


@dataclass(frozen=True)
class Fault:
    """Harm done to a sweep.

    Attributes:
        title: what happens, for the report.
        inject: does it, and gives the sweep's process.
        says: what the user must be told.
        survived: `dvc repro` comes to its end; otherwise it is started again.
        lasting: the fault is still there, so that it fails again.
        repeated: finished trials whose records the fault destroys.
        megabytes: of a file system that has the checkout alone; `None` means no such limit.
        dvc: DVC plays a part in it; otherwise, the tests start the stage without DVC, which saves time.
    """

    title: str
    inject: Injector
    says: tuple[str, ...] = ()
    survived: bool = False
    lasting: bool = False
    repeated: int = 0
    megabytes: int | None = None
    dvc: bool = True


def started(checkout: Checkout, **environment: str) -> Process:
    """A sweep with trials that have ended and trials that have a checkpoint."""
    process = checkout.start(**environment)
    wait_until(lambda: checkout.is_under_way() or process.poll() is not None)
    assert process.poll() is None, checkout.output
    return process


# ---- killed --------------------------------------------------------------------------------------------


@contextmanager
def kill_driver(checkout: Checkout) -> Iterator[Process]:
    """No trial runs on without it: two processes would be at one checkpoint."""
    process = started(checkout)
    orphans = checkout.workers()
    checkout.driver().kill()
    wait_until(lambda: all(map(has_ended, orphans)), seconds=60)
    yield process


@contextmanager
def kill_workers(checkout: Checkout) -> Iterator[Process]:
    process = started(checkout)
    _kill_workers(checkout)
    yield process


def _kill_workers(checkout: Checkout) -> None:
    for worker in checkout.workers():
        worker.kill()


@contextmanager
def kill_dvc(checkout: Checkout) -> Iterator[Process]:
    """Its stage lives on; another `dvc repro` in the meantime is refused."""
    process = started(checkout)
    process.kill()
    process.wait()
    driver = checkout.driver()
    _start_again(checkout)
    yield process
    wait_until(lambda: has_ended(driver))


@contextmanager
def kill_everything(checkout: Checkout) -> Iterator[Process]:
    process = started(checkout)
    kill_all(process.pid)
    process.wait()  # DVC takes a process that has ended, but was not waited for, for one that runs
    yield process


@contextmanager
def press_ctrl_c(checkout: Checkout) -> Iterator[Process]:
    process = started(checkout)
    _stop(process, signal.SIGINT)
    yield process


@contextmanager
def terminate(checkout: Checkout) -> Iterator[Process]:
    process = started(checkout)
    _stop(process, signal.SIGTERM)
    yield process


@contextmanager
def terminate_while_ray_hangs(checkout: Checkout) -> Iterator[Process]:
    """The sweep waits for a service of Ray's that does not answer, as one that SIGTERM has reached first."""
    process = started(checkout)
    _service(checkout, "gcs_server").suspend()
    rows = -1
    while rows < (rows := len(checkout.rows())):
        time.sleep(3)  # a trial takes less
    _stop(process, signal.SIGTERM)
    yield process


def _stop(process: Process, sent: signal.Signals) -> None:
    """Signal `dvc` and all below it, as terminals and batch systems do. Nothing is left: after seconds, but
    the machine may have much else to do."""
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, sent)
    wait_until(lambda: process.poll() is not None and all(map(has_ended, family)), seconds=60)


@contextmanager
def kill_services(checkout: Checkout) -> Iterator[Process]:
    """Ray's own process on this machine with its workers and agents; Tune would wait for them for ever."""
    process = started(checkout)
    raylet = _service(checkout, "raylet/raylet")
    below = raylet.children(recursive=True)
    raylet.kill()
    for service in below:  # workers notice by themselves, but may finish a short sweep before that
        with suppress(psutil.NoSuchProcess):
            service.kill()
    yield process


@contextmanager
def kill_gcs(checkout: Checkout) -> Iterator[Process]:
    """The head of Ray on this machine."""
    process = started(checkout)
    _service(checkout, "gcs_server").kill()
    yield process


def _service(checkout: Checkout, name: str) -> psutil.Process:
    """A service of the Ray that a sweep has started."""
    return next(process for process in checkout.driver().children() if name in command_of(process))


@contextmanager
def start_twice(checkout: Checkout) -> Iterator[Process]:
    process = started(checkout)
    _start_again(checkout)
    yield process


def _start_again(checkout: Checkout) -> None:
    assert checkout.run() != 0, "a second sweep ran at the same time"


# ---- trials --------------------------------------------------------------------------------------------


@contextmanager
def fail_trials(checkout: Checkout) -> Iterator[Process]:
    """Five more rows in the table, whose trials cannot end well."""
    install_failing(checkout)
    more = (
        "- {method: fedavg, as: diverges, schedule: {lr: 1.0e+18}}\n- raises\n- exhausts\n- dies\n- leaves\n"
    )
    checkout.table.write_text(checkout.table.read_text().replace("seeds:", f"{more}seeds:"))
    process = checkout.start()
    wait_until(lambda: any("error" in row for row in checkout.rows()))
    yield process


def install_failing(checkout: Checkout) -> None:
    """The methods of `failing` as a package of the user's own."""
    info = checkout.root / "failing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: failing\nVersion: 1.0\n")
    names = ("Raises", "Recovers", "Leaves", "Exhausts", "Dies")
    points = "".join(f"{name.lower()} = failing:{name}\n" for name in names)
    (info / "entry_points.txt").write_text(f"[pfl.methods]\n{points}")
    shutil.copy(str(failing.__file__), checkout.root / "failing.py")


FULL_MEMORY = {"RAY_memory_usage_threshold": "0"}
"""For Ray, the memory is full from the start."""


@contextmanager
def fill_memory(checkout: Checkout) -> Iterator[Process]:
    """Of the machine, by other programs."""
    yield started(checkout, **FULL_MEMORY)


# ---- nodes of a cluster --------------------------------------------------------------------------------


@contextmanager
def kill_node(checkout: Checkout) -> Iterator[Process]:
    """One of two, neither of which sees the driver's temporary folder, as on another machine."""
    temporary = checkout.elsewhere / "of-the-driver"
    elsewhere = without(temporary)
    with Cluster(checkout.elsewhere) as cluster:
        node, _ = cluster.add_node(*elsewhere), cluster.add_node(*elsewhere)
        process = started(checkout, RAY_ADDRESS=cluster.address, TMPDIR=str(temporary), **TOKEN)
        wait_until(lambda: workers(node))
        kill_all(node.pid)
        yield process
        assert not has_ended(cluster.head), "a sweep has stopped a cluster that is not its own"


@contextmanager
def kill_head(checkout: Checkout) -> Iterator[Process]:
    """The sweep goes on with another."""
    with Cluster(checkout.elsewhere / "first") as cluster:
        cluster.add_node()
        process = started(checkout, RAY_ADDRESS=cluster.address, **TOKEN)
        kill_all(cluster.head.pid)
        yield process
    with Cluster(checkout.elsewhere / "second") as cluster:
        cluster.add_node()
        assert checkout.run(RAY_ADDRESS=cluster.address, **TOKEN) == 0, checkout.output


# ---- files ---------------------------------------------------------------------------------------------


@contextmanager
def damage_ledger(checkout: Checkout) -> Iterator[Process]:
    """Cut the last line in half and put garbage in the place of the first."""
    with kill_everything(checkout) as process:
        lines = checkout.ledger.read_bytes().splitlines(keepends=True)
        garbage = bytes(len(lines[0]) - 1) + b"\n"
        checkout.ledger.write_bytes(b"".join([garbage, *lines[1:-1], lines[-1][: len(lines[-1]) // 2]]))
        yield process


@contextmanager
def damage_checkpoints(checkout: Checkout) -> Iterator[Process]:
    """Until it meets a trial that has not ended: while they are killed, all that were under way may end."""
    under_way: set[str] = set()
    while not under_way:
        with kill_everything(checkout) as process:
            under_way = checkout.under_way()
    for path in checkout.checkpoints():
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    yield process


@contextmanager
def fill_disk(checkout: Checkout) -> Iterator[Process]:
    process = started(checkout)
    with _full(checkout):
        pass
    yield process


@contextmanager
def fill_disk_and_press_ctrl_c(checkout: Checkout) -> Iterator[Process]:
    process = started(checkout)
    with _full(checkout):
        _stop(process, signal.SIGINT)
    yield process


@contextmanager
def _full(checkout: Checkout) -> Iterator[None]:
    """Inside, the disk of a checkout has no space left, and its sweep has noticed."""
    filler = checkout.root / "filler"
    with filler.open("wb", buffering=0) as file:
        for block in (2**20, 2**12):  # quickly, before the last trial has ended, and then to the last block
            with suppress(OSError):
                while file.write(bytes(block)) == block:
                    pass
    wait_until(lambda: "waiting for space" in checkout.output)
    yield
    filler.unlink()


@contextmanager
def block_results(checkout: Checkout) -> Iterator[Process]:
    """Something that is no folder is where the results should be."""
    process = started(checkout)
    place = checkout.root / "results/small"
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(exist_ok=True)
    place.touch()
    yield process
    place.unlink()


# ---- MLflow --------------------------------------------------------------------------------------------


@contextmanager
def lock_mlflow(checkout: Checkout) -> Iterator[Process]:
    with _locked_mlflow(checkout):
        process = checkout.start()
    yield process


@contextmanager
def _locked_mlflow(checkout: Checkout) -> Iterator[None]:
    """Inside, and then until the sweep has complained, another process holds the database."""
    # This also makes it.
    assert checkout.run("mlflow", "db", "upgrade", checkout.store) == 0, checkout.output
    connection = sqlite3.connect(checkout.root / "mlflow.db")
    connection.execute("BEGIN EXCLUSIVE")
    yield
    wait_until(lambda: "database is locked" in checkout.output)
    connection.close()


@contextmanager
def stop_mlflow_server(checkout: Checkout) -> Iterator[Process]:
    """The server is killed under the sweep, and is there again only after its end."""
    server = MlflowServer(checkout.elsewhere / "server")
    checkout.store = server.store
    with server:
        checkout.runs()  # imports MLflow, which may take as long as the sweep
        process = checkout.start(MLFLOW_TRACKING_URI=server.address)
        wait_until(lambda: checkout.rows() and checkout.runs())
    yield process
    with server:
        assert checkout.run("pfl", "track", "small", MLFLOW_TRACKING_URI=server.address) == 0, checkout.output
        stored = [file.name for file in (checkout.elsewhere / "server/artifacts").rglob("per_client.csv")]
    assert f"\nruns entered: {len(checkout.rows())}\n" in checkout.output
    assert stored and not (checkout.root / "mlflow.db").exists()


# ---- several -------------------------------------------------------------------------------------------


@contextmanager
def inject_together(checkout: Checkout) -> Iterator[Process]:
    """Four faults in one sweep, which end none of its processes but those that run trials."""
    with _locked_mlflow(checkout):
        process = started(checkout, **FULL_MEMORY)
        _kill_workers(checkout)
        _start_again(checkout)
    yield process


CONTINUES = "the same command continues, and finished trials are not run again"

KILLED = {
    "driver": Fault("The sweep's process is killed (SIGKILL)", kill_driver),
    "workers": Fault("Every process that runs a trial is killed", kill_workers, survived=True),
    "dvc": Fault(
        "`dvc` alone is killed, and started again while its stage lives on",
        kill_dvc,
        ("small: in use by another command (process",),
    ),
    "everything": Fault("All processes are killed at once, as by a power failure", kill_everything),
    "ctrl-c": Fault("Ctrl-C", press_ctrl_c, ("finished trials are not run again",)),
    "sigterm": Fault("SIGTERM, from a batch system", terminate, ("finished trials are not run again",)),
    "sigterm-ray": Fault(
        "SIGTERM while a service of Ray's hangs",
        terminate_while_ray_hangs,
        ("finished trials are not run again",),
        dvc=False,
    ),
    "services": Fault(
        "Ray's services are killed",
        kill_services,
        ("its services on this machine have died", CONTINUES),
        dvc=False,
    ),
    "gcs": Fault(
        "Ray's head is killed", kill_gcs, ("its head node has not answered for", CONTINUES), dvc=False
    ),
    "ledger": Fault(
        "All processes are killed; a line of the ledger is cut in half, one is overwritten",
        damage_ledger,
        ("small.jsonl:1: not a record",),
        repeated=2,
    ),
    "checkpoints": Fault(
        "All processes are killed; every checkpoint has a flipped bit",
        damage_checkpoints,
        ("the checkpoint is damaged",),
    ),
}
"""Processes of this machine are ended."""

HINDERED = {
    "twice": Fault(
        "`dvc repro` is started twice", start_twice, ("is busy, it is being blocked by",), survived=True
    ),
    "trials": Fault(
        "Trials diverge, raise, ask for too much memory, lose their process every time",
        fail_trials,
        (
            "dir/diverges: diverged (final, seed 0",
            ": diverged in round 1",
            "dir/raises: failed (final, seed 0",
            ": RuntimeError: a mistake",
            "dir/exhausts: failed (final, seed 0",
            ": out of memory (",
            "dir/dies: failed (final, seed 0",
            ": its process died 3 times",
            "dir/leaves: failed (final, seed 0",
            ": SystemExit: 3",
            "runs failed; the next `dvc repro` retries them",
        ),
        lasting=True,
    ),
    "memory": Fault("Other programs take nearly all memory", fill_memory, survived=True),
    "node": Fault("One of a cluster's two nodes is killed", kill_node, survived=True, dvc=False),
    "head": Fault("A cluster's head node is killed; the next sweep joins another", kill_head, dvc=False),
    "disk": Fault(
        "The disk is full for a while", fill_disk, ("waiting for space",), survived=True, megabytes=64
    ),
    "disk-ctrl-c": Fault(
        "Ctrl-C while the disk is full",
        fill_disk_and_press_ctrl_c,
        ("finished trials are not run again",),
        megabytes=64,
    ),
    "results": Fault(
        "`results/` cannot be written", block_results, ("results/small/rows.jsonl is not accepted",)
    ),
    "mlflow-locked": Fault(
        "Another process locks `mlflow.db`", lock_mlflow, ("database is locked",), survived=True
    ),
    "mlflow-gone": Fault(
        "The MLflow server is gone until the sweep has ended",
        stop_mlflow_server,
        ("entries are missing; `pfl track small` adds them",),
        survived=True,
        dvc=False,
    ),
}
"""Trials fail, or what a sweep needs is not there."""

FAULTS = KILLED | HINDERED

TOGETHER = Fault(
    "The database is locked, the memory full, every process with a trial is killed, `dvc` is started twice",
    inject_together,
    ("database is locked", "is busy, it is being blocked by"),
    survived=True,
)
INCLUDED = {"workers", "twice", "memory", "mlflow-locked", "everything"}
"""Faults that others inject, too: the last one "ledger", the rest `TOGETHER`."""

"""A sweep's connection to Ray."""

from __future__ import annotations

import gc
import signal
import threading

import pytest
import ray

from pfl.core.errors import InvalidInput
from pipeline.sweep.cluster import as_one_line, connected
from pipeline.sweep.guard import Guard


@pytest.fixture(autouse=True)
def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")  # and so put back afterwards
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)


def test_no_other_thread_frees_anything_while_ray_shuts_down(monkeypatch, tmp_path):
    freed, freed_by_the_end = [], []

    class Garbage:
        """What only a garbage collection frees."""

        def __init__(self):
            self.itself = self

        def __del__(self):
            freed.append(True)

    def shut_down() -> None:
        collection = threading.Thread(target=gc.collect)
        collection.start()
        collection.join()
        freed_by_the_end.append(len(freed))

    monkeypatch.setattr(ray, "shutdown", shut_down)
    with connected(tmp_path):
        Garbage()
    gc.collect()
    assert freed_by_the_end == [0]
    assert freed


def test_no_collection_begins_by_itself_while_ray_shuts_down(monkeypatch, tmp_path):
    enabled = []
    monkeypatch.setattr(ray, "shutdown", lambda: enabled.append(gc.isenabled()))
    with connected(tmp_path):
        pass
    assert enabled == [False]
    assert gc.isenabled()


def test_what_sigterm_does_is_the_sweep_s_affair_and_not_ray_s(monkeypatch, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ray, "init", lambda **_: signal.signal(signal.SIGTERM, signal.SIG_IGN))
    with connected(tmp_path):
        assert signal.getsignal(signal.SIGTERM) is before


def test_ray_has_the_gpus_that_torch_can_use(monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(ray, "init", lambda **options: started.append(options["num_gpus"]))
    for gpus in (0, 2):
        monkeypatch.setattr("torch.cuda.device_count", lambda gpus=gpus: gpus)
        with connected(tmp_path):
            pass
    assert started == [0, 2]


def test_ray_is_started_again_where_a_busy_machine_delays_it(monkeypatch, tmp_path):
    attempts = iter([Exception("The current node timed out during startup."), None])

    def init(**_: object) -> None:
        error = next(attempts)
        if error:
            raise error

    monkeypatch.setattr(ray, "init", init)
    with connected(tmp_path):
        assert next(attempts, "none left") == "none left"


def test_a_machine_on_which_ray_never_starts_is_told_in_a_line(monkeypatch, tmp_path):
    def init(**_: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", init)
    expected = r"load: \d+ running processes on \d+ cores is not accepted; .* Ray starts within 30 s"
    with pytest.raises(InvalidInput, match=expected), connected(tmp_path):
        pass


def test_what_ray_raises_when_it_dies_is_one_line_that_says_how_to_go_on():
    died = ray.exceptions.NodeDiedError("the node died\nlong ago")
    expected = r"Ray: NodeDiedError: .*the node died; expected .*; the same command continues"
    with pytest.raises(InvalidInput, match=expected), as_one_line(Guard()):
        raise RuntimeError("Caught unexpected exception") from died


def test_a_cluster_s_memory_monitor_is_named_where_it_has_ended_trials(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")

    def fit() -> None:
        """As Tune does."""
        raise RuntimeError("Caught unexpected exception") from ray.exceptions.OutOfMemoryError("4 workers")

    with (
        pytest.raises(InvalidInput, match=r"head:6379 is not accepted; .*RAY_memory_monitor_refresh_ms=0"),
        as_one_line(Guard()),
    ):
        fit()

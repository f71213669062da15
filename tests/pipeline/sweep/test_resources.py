"""How a trial's resources become shares of a machine."""

from __future__ import annotations

import pytest

from pfl.core.errors import InvalidInput
from pipeline.spec.table import Resources
from pipeline.sweep.check import slots_here
from pipeline.sweep.cluster import GPU_SHARE, gpus_of, slots_of

MACHINE = {"CPU": 16, "GPU": 1}


def test_auto_takes_a_share_of_a_gpu_where_there_is_one_and_none_elsewhere():
    assert gpus_of(Resources(), there=1) == GPU_SHARE
    assert gpus_of(Resources(), there=0) == 0


def test_a_share_that_is_asked_for_is_taken():
    assert gpus_of(Resources(gpus=0.5), there=1) == 0.5
    assert gpus_of(Resources(gpus=0), there=1) == 0


@pytest.mark.parametrize(
    ("cpus", "gpus", "slots"), [(1, 0, 16), (4, 0, 4), (5, 0, 3), (1, 0.25, 4), (8, 0.25, 2), (1, 1, 1)]
)
def test_as_many_trials_run_side_by_side_as_the_scarcer_resource_allows(cpus, gpus, slots):
    assert slots_of(cpus, gpus, [MACHINE]) == slots


@pytest.mark.parametrize(("gpus", "slots"), [("auto", 4), (1, 1), (0, 16), (2, 1)])
def test_this_machines_gpu_is_shared_among_its_trials(gpus, slots, monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda: 16)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert slots_here(Resources(gpus=gpus)) == slots


def test_a_limit_of_cores_that_is_no_number_is_one_line(monkeypatch):
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "many")
    with pytest.raises(InvalidInput, match="LOKY_MAX_CPU_COUNT: many is not accepted; expected an integer"):
        slots_here(Resources())


def test_a_trial_runs_on_one_node_and_takes_its_gpu_from_there():
    assert slots_of(3, 0, [{"CPU": 4}, {"CPU": 4}, {"memory": 1e9}]) == 2
    assert slots_of(1, 0.5, [MACHINE, {"CPU": 64}, MACHINE]) == 4
    with pytest.raises(InvalidInput, match="resources of a single node"):
        slots_of(2, 1, [{"CPU": 64}, {"CPU": 1, "GPU": 1}])


def test_more_than_any_node_has_is_refused():
    with pytest.raises(InvalidInput, match=r"resources\.cpus: 8 is not accepted; expected at most the 4"):
        slots_of(8, 0, [{"CPU": 4}, {"CPU": 4}])
    with pytest.raises(InvalidInput, match=r"resources\.gpus: 2\.0"):
        slots_of(1, 2.0, [MACHINE])

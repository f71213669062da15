"""What must also hold on a GPU: ``pytest -m gpu``. Needs no more than the simulator and pytest."""

from __future__ import annotations

import dataclasses
import gc

import pytest
import torch

from pfl.core import memory
from pfl.core.config import Config, Execution
from pfl.engine.device import computes_in, numerics
from pfl.engine.graphs import CudaGraphs
from pfl.engine.stacked import StackedBackend
from pfl.kernels import gpu, gpu_convolution
from pfl.methods import METHODS
from pfl.testing.synthetic import make_clients, make_dataset
from tests.conftest import CONFIG, assert_resumes, simulate, simulation_of

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
FAST = dataclasses.replace(CONFIG, dtype="float32")
"""As the tests' configuration, in float32."""
every_precision = pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"], indirect=True)


@pytest.fixture
def precision(request):
    """Skips what this GPU refuses."""
    if not computes_in(request.param, CUDA):
        pytest.skip(f"this GPU has no {request.param} instructions")
    return request.param


def run(config, dataset, partition, execution=Execution(device="cuda"), seeds=(0,)):
    return [result.metrics.to_json() for result in simulate(config, dataset, partition, seeds, execution)]


def train_losses(metrics) -> list[float]:
    return [entry["train_loss"] for entry in metrics["rounds"]]


# ---- backends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", list(METHODS))
def test_the_gpu_agrees_with_the_cpu_in_both_backends(method, dataset, partition):
    config = dataclasses.replace(CONFIG, method=method)
    (expected,) = run(config, dataset, partition, Execution(device="cpu", backend="loop"))
    for backend in ("loop", "stacked"):
        (result,) = run(config, dataset, partition, Execution(device="cuda", backend=backend))
        for ours, theirs in zip(result["rounds"], expected["rounds"], strict=True):
            assert ours["post_aggregation"] == pytest.approx(theirs["post_aggregation"], abs=1e-9)


@pytest.mark.parametrize("method", ["fedavg", "pfedsim", "pfedme", "fedrep", "spfl"])
def test_steps_replayed_as_cuda_graphs_are_the_steps(method, dataset, partition):
    config = dataclasses.replace(CONFIG, method=method, momentum=0.5)
    replays = []

    class Counted(CudaGraphs):
        def __call__(self, work):
            replay = super().__call__(work)
            return lambda: (replays.append(1), replay())

    def trained(captures) -> list[float]:
        with numerics("fp32"):
            simulation = simulation_of(config, dataset, partition, StackedBackend(captures), (0, 1), CUDA)
            for _ in range(config.rounds):
                simulation.advance()
        return [entry.train_loss for run in simulation.runs for entry in run.history]

    assert trained(Counted) == pytest.approx(trained(None), abs=1e-9)
    assert replays


def test_a_step_is_recorded_though_an_earlier_graph_is_garbage():
    x = torch.zeros(1, device=CUDA)
    captures = CudaGraphs()
    held = [captures(lambda: x.add_(1))]
    held.append(held)  # only the garbage collector finds it
    del held
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        replay = captures(lambda: [x.add_(1) for _ in range(100)])
    finally:
        gc.set_threshold(*before)
    replay()
    assert float(x) == 100


def test_a_stack_that_memory_does_not_suffice_for_is_trained_in_parts(caplog):
    clients = 32
    dataset = make_dataset(shape=(3, 32, 32), samples=clients * 80)
    partition = make_clients(dataset, sizes=[64] * clients)
    config = Config(model="cnn4", participation=1.0, rounds=2, epochs=1, batch_size=64, dtype="float64")
    memory.release()  # graphs of earlier tests
    torch.cuda.reset_peak_memory_stats()
    (whole,) = run(config, dataset, partition)
    enough = torch.cuda.max_memory_reserved()
    assert "out of memory" not in caplog.text

    memory.release()
    total = torch.cuda.get_device_properties(CUDA).total_memory
    torch.cuda.set_per_process_memory_fraction(0.6 * enough / total)
    try:
        (parts,) = run(config, dataset, partition)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "out of memory: continuing with" in caplog.text
    assert train_losses(parts) == pytest.approx(train_losses(whole), abs=1e-9)


# ---- precision -------------------------------------------------------------------------------------------


def error_of(product, *shapes) -> float:
    """How far a product of random float32 tensors is from that in float64, relative to its size."""
    random = torch.Generator().manual_seed(0)
    operands = [torch.randn(shape, generator=random).to(CUDA) for shape in shapes]
    exact = product(*(tensor.double() for tensor in operands))
    return float((product(*operands) - exact).norm() / exact.norm())


TF32 = 5e-5
"""Between the errors of products in float32, at most 1e-5, and in TensorFloat-32, about 3e-4."""


def convolution(x, weight):
    """A client's, by the kernels of stacked clients where they have the dtype."""
    if gpu.usable(x):
        return gpu_convolution.convolution(x, weight, None, 1, 1)
    return torch.nn.functional.conv2d(x, weight, None, 1, 1)


def stacked(x, weight):
    return torch.vmap(convolution)(x, weight)


def stacked_gradients(x, weight):
    """Those of a sum of squares, whose images' and weights' parts are of like size."""
    own = torch.func.grad(lambda pair: convolution(*pair).square().sum())
    return torch.cat([(each / each.norm()).flatten() for each in torch.vmap(own)((x, weight))])


PRODUCTS = [
    (torch.nn.functional.conv2d, (32, 64, 16, 16), (64, 64, 3, 3)),
    (lambda x, w: torch.nn.functional.conv2d(x, w, groups=4), (32, 64, 16, 16), (64, 16, 3, 3)),
    (torch.matmul, (256, 512), (512, 256)),
    (torch.bmm, (8, 64, 512), (8, 512, 64)),
    *[
        (function, (4, 8, inputs, 8, 8), (4, outputs, inputs, 3, 3))
        for inputs, outputs in ((3, 8), (64, 64), (128, 256))
        for function in (stacked, stacked_gradients)
    ],
]


@pytest.mark.parametrize(("product", "shapes"), [(product, shapes) for product, *shapes in PRODUCTS])
def test_float32_products_are_float32_though_torch_would_round_convolutions(product, shapes):
    with numerics("fp32"):
        assert error_of(product, *shapes) < TF32


@pytest.mark.parametrize("precision", ["tf32"], indirect=True)
def test_float32_products_are_tf32_where_asked_for(precision):
    with numerics(precision):
        assert error_of(torch.matmul, (256, 512), (512, 256)) > TF32
        assert error_of(stacked, (4, 8, 64, 8, 8), (4, 64, 64, 3, 3)) > TF32


def test_float32_training_is_that_of_the_cpu_to_rounding(backend, dataset, partition):
    config = dataclasses.replace(FAST, rounds=1)
    (expected,) = run(config, dataset, partition, Execution(device="cpu"))
    (result,) = run(config, dataset, partition, Execution(device="cuda", backend=backend))
    assert train_losses(result) == pytest.approx(train_losses(expected), rel=1e-3)


@pytest.mark.parametrize("precision", ["tf32", "bf16"], indirect=True)
@pytest.mark.parametrize("model", ["lenet5_bn", "resnet8"])
def test_a_lower_precision_stays_near_to_float32(model, precision, backend, dataset, partition):
    config = dataclasses.replace(FAST, model=model, rounds=2, epochs=1, lr=0.02)
    execution = Execution(device="cuda", backend=backend)
    (full,) = run(config, dataset, partition, execution)
    (result,) = run(dataclasses.replace(config, precision=precision), dataset, partition, execution)
    assert train_losses(result) == pytest.approx(train_losses(full), rel=0.05)
    if precision == "bf16":  # of small products cuDNN may compute some in float32 all the same
        assert train_losses(result) != train_losses(full)


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("precision", ["bf16"], indirect=True)
def test_every_method_runs_in_bfloat16(method, precision, dataset, partition):
    config = dataclasses.replace(FAST, method=method, precision=precision, rounds=2, epochs=1)
    (loop,), (stacked,) = (
        run(config, dataset, partition, Execution(device="cuda", backend=backend))
        for backend in ("loop", "stacked")
    )
    assert train_losses(loop) == pytest.approx(train_losses(stacked), rel=0.05)


# ---- the same numbers every time -------------------------------------------------------------------------


@every_precision
def test_a_simulation_gives_the_same_bits_every_time(precision, backend, dataset, partition):
    config = dataclasses.replace(FAST, precision=precision)
    execution = Execution(device="cuda", backend=backend)
    first, again = (run(config, dataset, partition, execution, (0, 1)) for _ in range(2))
    assert first == again


@every_precision
def test_resume_is_bit_identical_on_the_gpu(precision, dataset, partition, checkpointed):
    config = dataclasses.replace(FAST, method="pfedsim", precision=precision)
    execution = dataclasses.replace(checkpointed, device="cuda")
    assert_resumes(3, config, dataset, partition, (0, 1), execution)


def test_rounds_at_once_have_the_bits_of_one_after_another(dataset, partition, monkeypatch):
    config = dataclasses.replace(FAST, method="pfedsim", rounds=6, eval_every=6)
    at_once = run(config, dataset, partition, seeds=(0, 1))
    monkeypatch.setattr("pfl.engine.simulation.MOST_KEPT", -1)
    assert run(config, dataset, partition, seeds=(0, 1)) == at_once


def test_training_takes_a_part_of_a_simulation_s_time(dataset, partition):
    config = dataclasses.replace(FAST, rounds=6, eval_every=2)
    (result,) = simulate(config, dataset, partition, (0,), Execution(device="cuda"))
    assert 0 < result.measured.train_seconds < result.measured.wall_seconds


@every_precision
def test_a_trial_learns_on_the_gpu(precision, dataset, partition):
    config = dataclasses.replace(FAST, rounds=20, precision=precision)
    losses = train_losses(run(config, dataset, partition)[0])
    assert losses[-1] < losses[0] / 2

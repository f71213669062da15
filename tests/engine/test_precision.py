"""Networks in bfloat16, everything around them in float32; and what float32 products are on a GPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.utils._pytree import tree_leaves

from pfl import kernels
from pfl.core.config import Execution
from pfl.core.errors import InvalidInput
from pfl.engine import loop
from pfl.engine.device import check_precision, numerics
from pfl.engine.local_training import Program
from pfl.engine.loop import _stored_by_tap as by_tap
from pfl.engine.stacked import StackedBackend
from pfl.kernels import conv_block
from pfl.methods import METHODS
from pfl.models import MODELS
from pfl.testing.battery import without_kernels
from pfl.testing.emulated import DEVICE, emulated
from tests.conftest import CONFIG, assert_resumes, sampled, simulate, simulation_of
from tests.refusal import refusal

BF16 = dataclasses.replace(CONFIG, dtype="float32", precision="bf16", rounds=2, epochs=1)
BACKENDS = ("loop", "stacked")


@pytest.fixture
def instructions(monkeypatch):
    """The hardware has those for bfloat16, whatever it is; torch does without."""
    monkeypatch.setattr("pfl.engine.device.computes_in", lambda *_: True)


supported = pytest.mark.usefixtures("instructions")


def losses(config, dataset, partition, backend: str = "loop") -> list[float]:
    """The training loss of every round."""
    (result,) = simulate(config, dataset, partition, (0,), Execution(backend=backend))
    return [entry["train_loss"] for entry in result.metrics.to_json()["rounds"]]


@supported
@pytest.mark.skipif(not kernels.compiler(), reason="there is no C++ compiler")
def test_weights_that_are_stored_by_tap_train_to_the_same_bits(dataset, partition, monkeypatch):
    monkeypatch.setattr(conv_block, "INSTRUCTIONS", ())  # tiles would compute all of it
    config = dataclasses.replace(BF16, model="resnet8", momentum=0.9, weight_decay=1e-3)
    stored = []
    monkeypatch.setattr(loop, "_stored_by_tap", lambda own: stored.append(own) or by_tap(own))
    by_tap_trained = losses(config, dataset, partition)
    assert stored
    monkeypatch.setattr(Program, "by_tap", set())
    assert losses(config, dataset, partition) == by_tap_trained


# ---- what is in bfloat16, and what is not ----------------------------------------------------------------


@pytest.mark.parametrize("model", ["lenet5_bn", "cnn4", "resnet8", "spfl_cnn"])
def test_layers_of_the_extractor_compute_in_bfloat16_and_the_head_in_float32(model):
    net = MODELS[model]((3, 32, 32), 10)
    net.bf16 = True
    dtypes = {}
    layers = {name: m for name, m in net.named_modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)}
    for name, layer in layers.items():
        layer.register_forward_hook(lambda _, __, output, name=name: dtypes.update({name: output.dtype}))
    logits = net(torch.zeros(4, 3, 32, 32))
    assert dtypes.pop("head") == logits.dtype == torch.float32
    assert set(dtypes.values()) == {torch.bfloat16}
    assert net.features(torch.zeros(4, 3, 32, 32)).dtype == torch.float32


def test_the_second_network_of_a_client_is_in_bfloat16_too(dataset, partition):
    config = dataclasses.replace(BF16, method="fedsimsup")
    net = simulation_of(config, dataset, partition, StackedBackend()).program.net
    assert net.bf16
    assert net.get_submodule("supervisor.L").bf16


@supported
def test_weights_statistics_and_state_stay_in_float32(backend, dataset, partition):
    kept = []
    simulate(
        dataclasses.replace(BF16, method="feddyn"),
        dataset,
        partition,
        (0,),
        Execution(backend=backend),
        measure=lambda server, _: kept.extend(tree_leaves([server.store.tensors, server.client_state])),
    )
    assert {tensor.dtype for tensor in kept if tensor.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize("method", sampled(METHODS))
@supported
def test_the_backends_agree_in_bfloat16_as_far_as_its_rounding_allows(method, dataset, partition):
    config = dataclasses.replace(BF16, method=method)
    loop, stacked = (losses(config, dataset, partition, backend) for backend in BACKENDS)
    assert loop == pytest.approx(stacked, rel=0.02)
    full = losses(dataclasses.replace(config, precision="fp32"), dataset, partition)
    assert loop == pytest.approx(full, rel=0.02)
    assert loop != full


@pytest.mark.parametrize("kind", ["L", "C", "T"])
@supported
def test_every_supervisor_trains_in_bfloat16_in_both_backends(kind, dataset, partition):
    config = dataclasses.replace(BF16, method="fedsimsup", hyperparameters={"supervisor": kind})
    loop, stacked = (losses(config, dataset, partition, backend) for backend in BACKENDS)
    assert loop == pytest.approx(stacked, rel=0.02)


@supported
def test_resume_is_bit_identical_in_bfloat16(backend, dataset, partition, checkpointed):
    config = dataclasses.replace(BF16, method="pfedsim", rounds=4)
    execution = dataclasses.replace(checkpointed, backend=backend)
    assert_resumes(3, config, dataset, partition, (0, 1), execution)


@supported
@pytest.mark.parametrize("model", ["lenet5_bn", "resnet8"])
def test_without_kernels_bfloat16_agrees_as_far_as_its_rounding_allows(model, dataset, partition):
    config = dataclasses.replace(BF16, model=model, batch_size=24)
    first = losses(config, dataset, partition)
    with without_kernels():
        assert losses(config, dataset, partition) == pytest.approx(first, rel=0.02)


def test_bfloat16_steps_are_recorded_and_replayed_on_a_device(dataset, partition):
    def trained(place, captures=None) -> list[float]:
        simulation = simulation_of(BF16, dataset, partition, StackedBackend(captures), (0, 1), place)
        for _ in range(2):
            simulation.advance()
        return [entry.train_loss for run in simulation.runs for entry in run.history]

    with emulated() as device:
        on_device = trained(DEVICE, lambda: device.capture)
    assert device.replays
    assert on_device == pytest.approx(trained("cpu"), rel=1e-6)


# ---- what is refused -------------------------------------------------------------------------------------


def test_a_cpu_without_the_instructions_refuses_bf16_in_one_line(dataset, partition, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr("pfl.run.simulate.Federation", None)  # nothing is begun
    assert refusal(simulate, BF16, dataset, partition, execution=Execution(device="cpu")) == (
        "precision: bf16 is not accepted; expected fp32, as this CPU has no bf16 instructions"
    )


def test_a_cpu_with_the_instructions_takes_bf16_and_never_tf32(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    check_precision("bf16", torch.device("cpu"))
    with pytest.raises(InvalidInput, match="precision: tf32 is not accepted"):
        check_precision("tf32", torch.device("cpu"))


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_gpu_before_ampere_refuses_both(precision, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.no_grad())
    with pytest.raises(InvalidInput, match=f"fp32, as Tesla V100 has no {precision} instructions"):
        check_precision(precision, torch.device("cuda"))


# ---- products of float32 numbers -------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "products"), [("fp32", "ieee"), ("bf16", "ieee"), ("tf32", "tf32")])
def test_float32_products_are_what_the_precision_says_and_then_what_they_were(precision, products):
    def settings() -> list:
        backends = torch.backends
        places = (backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul)
        return [place.fp32_precision for place in places]

    before = [*settings(), torch.backends.cudnn.deterministic]
    with pytest.raises(KeyboardInterrupt), numerics(precision):
        assert [*settings(), torch.backends.cudnn.deterministic] == [*[products] * 3, True]
        raise KeyboardInterrupt
    assert [*settings(), torch.backends.cudnn.deterministic] == before


def test_a_simulation_s_convolutions_are_not_left_to_torch_s_default(dataset, partition):
    precisions = set()
    simulate(
        dataclasses.replace(CONFIG, rounds=1),
        dataset,
        partition,
        measure=lambda *_: precisions.add(torch.backends.cudnn.conv.fp32_precision),
    )
    assert precisions == {"ieee"}

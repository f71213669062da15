"""The emulated device behaves as a GPU does."""

from __future__ import annotations

import pytest
import torch

from pfl.testing.emulated import DEVICE, emulated


def test_it_computes_what_the_host_does():
    weight, x = torch.randn(5, 2, 4), torch.randn(5, 3, 4)

    def gradients(device):
        def loss(weight, x):
            return (x @ weight.T).relu().square().sum()

        return torch.vmap(torch.func.grad(loss))(weight.to(device), x.to(device))

    with emulated():
        on_device = gradients(DEVICE)
        assert on_device.device == DEVICE
        assert on_device.tolist() == gradients("cpu").tolist()


@pytest.mark.parametrize(
    "read",
    [
        lambda values: values.sum().item(),
        lambda values: values.tolist(),
        lambda values: values.cpu(),
        lambda values: bool((values > 0).all()),
        lambda values: values.nonzero(),
        lambda values: values[values > 0],
    ],
)
def test_the_host_waits_for_what_it_reads(read):
    with emulated() as device:
        values = torch.arange(3, device=DEVICE) * 2
        assert not device.waits
        read(values)
    assert sum(device.waits.values()) == 1


@pytest.mark.parametrize("non_blocking", [True, False])
def test_the_host_waits_for_a_copy_that_blocks(non_blocking):
    with emulated() as device:
        torch.ones(3).to(DEVICE, non_blocking=non_blocking)
        torch.zeros(3, device=DEVICE).copy_(torch.ones(3), non_blocking=non_blocking)
    assert sum(device.waits.values()) == (0 if non_blocking else 2)


def test_recorded_work_is_done_on_the_same_memory_when_it_is_replayed():
    with emulated() as device:
        total, step = torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE)

        def work():
            total[:2].add_((2 * step)[:2])

        replay = device.capture(work)
        assert total.tolist() == [0, 0, 0]
        replay()
        step.fill_(10)
        replay()
        assert total.tolist() == [22, 22, 0]


@pytest.mark.parametrize(
    "work", [lambda: torch.ones(3, device=DEVICE).sum().item(), lambda: torch.ones(3).to(DEVICE)]
)
def test_what_is_recorded_has_nothing_to_do_with_the_host(work):
    with emulated() as device, pytest.raises(RuntimeError, match="must not involve the host"):
        device.capture(work)

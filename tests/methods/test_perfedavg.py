"""Per-FedAvg's meta-gradients, by hand on quadratic losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pfl.methods.perfedavg import PerFedAvg
from tests.methods import quadratic
from tests.methods.curves import losses
from tests.methods.toy import after_rounds

W = np.array([1.0, -2.0])
CURVATURES = [
    np.array(m) for m in ([[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.5], [0.5, 3.0]], [[4.0, 1.0], [1.0, 2.0]])
]
CENTRES = [np.array(c) for c in ([0.0, 1.0], [3.0, 0.0], [-1.0, -1.0])]


class OnQuadratics(PerFedAvg):
    loss = staticmethod(quadratic.loss)


def meta_gradient(batches, **hyper):
    data = tuple(quadratic.batch(CURVATURES[i].tolist(), CENTRES[i].tolist()) for i in range(batches))
    direction, _ = OnQuadratics(**hyper)._meta_gradient(quadratic.client(W.tolist()), data)
    return direction[quadratic.NAME][0].numpy()


def gradient(i, w):
    return CURVATURES[i] @ (w - CENTRES[i])


def test_the_first_order_gradient_is_that_of_the_second_batch_after_a_step_on_the_first():
    expected = gradient(1, W - 0.1 * gradient(0, W))
    np.testing.assert_allclose(meta_gradient(2, variant="fo", alpha=0.1), expected, atol=1e-12)


@pytest.mark.parametrize("delta", [1e-4, 1e-2, 1.0])
def test_the_hessian_free_gradient_is_exact_on_a_quadratic_for_any_delta(delta):
    ahead = gradient(1, W - 0.1 * gradient(0, W))
    expected = ahead - 0.1 * CURVATURES[2] @ ahead
    ours = meta_gradient(3, variant="hf", alpha=0.1, delta=delta)
    np.testing.assert_allclose(ours, expected, atol=1e-9)


def test_a_zero_gradient_has_no_curvature_term():
    still = quadratic.batch([[1.0, 0.0], [0.0, 1.0]], W.tolist())
    direction, _ = OnQuadratics(variant="hf")._meta_gradient(quadratic.client(W.tolist()), (still,) * 3)
    assert direction[quadratic.NAME].tolist() == [[0.0, 0.0]]


def test_the_adaptation_is_a_step_of_rate_alpha():
    step = OnQuadratics(alpha=0.25)._adapt(
        quadratic.client(W.tolist()), (quadratic.batch(CURVATURES[0].tolist(), CENTRES[0].tolist()),), lr=9.0
    )
    np.testing.assert_allclose(step.params[quadratic.NAME][0].numpy(), W - 0.25 * gradient(0, W))


def test_running_statistics_do_not_see_the_perturbed_models(dataset, partition):
    # One meta-step: the first two batches of both variants are the same.
    first_order, hessian_free = (
        after_rounds("perfedavg", dataset, partition, 1, hyperparameters={"variant": variant, "steps": 1})[1]
        for variant in ("fo", "hf")
    )
    for name in first_order.groups["bn_stats"]:
        torch.testing.assert_close(hessian_free.uploads[name], first_order.uploads[name], rtol=0, atol=1e-12)


def test_spfl_s_variant_takes_two_steps_on_each_batch(dataset, partition):
    # With all samples in one batch, two steps on it are two epochs.
    ours = losses(dataset, partition, "perfedavg", {"variant": "p2"}, epochs=1, batch_size=20)
    theirs = losses(dataset, partition, "fedupdate", {"steps": 0}, epochs=2, batch_size=20)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


def test_weight_decay_acts_on_the_meta_step(dataset, partition):
    options = {"hyperparameters": {"steps": 1}, "lr": 0.1}
    ours, theirs = (
        after_rounds("perfedavg", dataset, partition, 1, weight_decay=decay, **options)[1]
        for decay in (0.5, 0.0)
    )
    name = "head.weight"
    expected = theirs.uploads[name] - 0.1 * 0.5 * theirs.received[name]
    torch.testing.assert_close(ours.uploads[name], expected, rtol=0, atol=1e-12)

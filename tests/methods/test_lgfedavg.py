"""LG-FedAvg shares what FedPer keeps, and keeps what FedPer shares."""

from __future__ import annotations

from tests.methods.toy import after_rounds


def test_the_head_is_shared_and_the_extractor_is_personal(dataset, partition):
    _, server = after_rounds("lgfedavg", dataset, partition, 2, participation=1.0)
    _, fedper = after_rounds("fedper", dataset, partition, 2, participation=1.0)
    for name in server.groups.trainable:
        assert server.store.shared(name) == (name in server.groups["head"])
        assert server.store.shared(name) != fedper.store.shared(name)


def test_more_of_the_last_layers_may_be_global(dataset, partition):
    _, server = after_rounds("lgfedavg", dataset, partition, 2, hyperparameters={"layers": 2})
    shared = {name for name in server.groups.trainable if server.store.shared(name)}
    assert shared == {"extractor.fc2.weight", "extractor.fc2.bias", "head.weight", "head.bias"}

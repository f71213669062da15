"""Simulations on features, series and tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import pfl
from pfl.core.errors import InvalidInput
from pfl.data.shape import TokenShape
from pfl.methods import METHODS
from pfl.models import MODELS
from pfl.testing.synthetic import make_clients, make_dataset

SHAPES = {"features": (12,), "series": (6, 24), "tokens": TokenShape((10,), 40)}
FAST = {"rounds": 2, "epochs": 1, "batch_size": 4, "progress": False}
REFUSED = {
    ("fedap", "features"): "a network with convolutions",
    ("fedsimsup", "features"): "none, because supervisors are networks for images",
    ("fedsimsup", "series"): "none, because supervisors are networks for images",
    ("fedsimsup", "tokens"): "none, because supervisors are networks for images",
}
"""All that a method says it cannot do."""

IMAGES_ONLY = sorted({*MODELS} - {"cnn1d", "mlp", "text_cnn"})


def federation(kind):
    data = make_dataset(SHAPES[kind], 3, 150)
    return data, make_clients(data, [9, 5, 8], tests=4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_on_every_kind_of_samples_or_says_why_not(method, kind):
    data, clients = federation(kind)
    if reason := REFUSED.get((method, kind)):
        with pytest.raises(InvalidInput, match=reason):
            pfl.simulate(method, data, clients, **FAST)
        return
    (run,) = pfl.simulate(method, data, clients, **FAST)
    assert all(np.isfinite(entry.train_loss) for entry in run.metrics.rounds)


@pytest.mark.parametrize("kind", SHAPES)
def test_a_federation_of_other_samples_is_learnt(kind):
    data = make_dataset(SHAPES[kind], 3, 300)
    clients = make_clients(data, [40, 40, 40], tests=20)
    run = pfl.simulate("fedavg", data, clients, rounds=10, epochs=2, participation=1.0, progress=False)
    assert run.to_frame("summary").pooled[0] > 70


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize(
    "option",
    [{"augmentation": "crop_flip"}, {"input_scale": "unit"}, *({"model": model} for model in IMAGES_ONLY)],
    ids=str,
)
def test_an_option_for_images_is_one_clear_line(option, kind):
    data, clients = federation(kind)
    ((name, _),) = option.items()
    with pytest.raises(InvalidInput, match=rf"^{name}: .* is not accepted; expected "):
        pfl.simulate("fedavg", data, clients, **FAST | option)


def test_a_network_of_other_samples_says_which_fits():
    data, clients = federation("features")
    with pytest.raises(InvalidInput, match=r"^model: lenet5 .*a network of samples of 12, such as mlp"):
        pfl.simulate("fedavg", data, clients, model="lenet5", **FAST)
    data, clients = federation("tokens")
    with pytest.raises(InvalidInput, match=r"^model: mlp .* of 10 tokens below 40, such as text_cnn"):
        pfl.simulate("fedavg", data, clients, model="mlp", **FAST)


def test_an_ordinary_module_with_an_embedding_is_simulated():
    class Averaged(nn.Module):
        def __init__(self, shape, classes):
            super().__init__()
            self.embedding = nn.Embedding(shape.tokens, 8)
            self.out = nn.Linear(8, classes)

        def forward(self, x):
            return self.out(self.embedding(x).mean(1))

    data, clients = federation("tokens")
    (run,) = pfl.simulate("fedper", data, clients, model=Averaged, **FAST)
    assert run.metrics.rounds[-1].train_loss > 0


def test_saved_models_take_samples_as_they_are(tmp_path):
    for kind in SHAPES:
        data, clients = federation(kind)
        execution = pfl.Execution(save=str(tmp_path / f"{kind}.pt"))
        pfl.simulate("fedper", data, clients, execution=execution, **FAST)
        model = pfl.load_models(tmp_path / f"{kind}.pt").client(0)
        assert model.predict(data.images[:5]).shape == (5,)
        predicted = model.predict(data.images[:5]).tolist()
        assert model.predict(torch.from_numpy(data.images[:5])).tolist() == predicted
        assert 0 <= model.evaluate(data) <= 100
        with pytest.raises(InvalidInput, match=r"^images: image 0 of"):
            model.predict(data.images[:5, :-1])

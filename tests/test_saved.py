"""Models that were saved predict as they did when the simulation ended."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import pfl
from pfl.core.config import Config, Execution
from pfl.core.errors import InvalidInput
from pfl.engine import checkpoint
from pfl.engine.method import Method
from pfl.engine.model_file import read_models
from pfl.methods import METHODS
from pfl.run.saved import load_models
from tests.command import python
from tests.conftest import sampled, simulate
from tests.refusal import refusal

CONFIG = Config(model="cnn_digits", rounds=2, epochs=1, batch_size=8, eval_every=2)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "models.pt"


@pytest.fixture
def saved(dataset, partition, file):
    """Saves the models of a configuration, and returns the results."""

    def run(method: str = "fedper", seeds: tuple[int, ...] = (0,)):
        config = dataclasses.replace(CONFIG, method=method)
        return simulate(config, dataset, partition, seeds, Execution(save=str(file), workers=1))

    return run


@pytest.mark.parametrize("method", sampled(METHODS))
def test_loaded_models_have_the_accuracies_of_the_last_evaluation(method, saved, file, dataset, partition):
    (result,) = saved(method)
    accuracies = load_models(file).evaluate(dataset, partition)
    evaluated = [
        float("nan") if client.accuracy is None else client.accuracy for client in result.metrics.per_client
    ]
    np.testing.assert_allclose(accuracies, evaluated)


def test_with_unseen_clients_a_model_is_that_of_the_client_s_index_in_the_partition(file, dataset, partition):
    config = dataclasses.replace(CONFIG, method="local", participation=1.0, unseen=0.4)
    (result,) = simulate(config, dataset, partition, (1,), Execution(save=str(file)))
    models = load_models(file)
    seen, unseen = (
        [c.client for c in part] for part in (result.metrics.per_client, result.metrics.unseen.per_client)
    )
    assert seen != list(range(len(seen)))
    assert list(models.ids) == seen
    evaluated = [client.accuracy for client in result.metrics.per_client]
    np.testing.assert_allclose(models.evaluate(dataset, partition), evaluated)
    for client, accuracy in zip(seen, evaluated, strict=True):
        assert models.client(client).evaluate(dataset, partition.test[client]) == pytest.approx(accuracy)
    said = f"client: {unseen[0]} is not accepted; expected an integer from 0 to 5, one of the 4"
    assert said in refusal(models.client, unseen[0])


def test_the_models_of_each_seed_are_loaded_by_seed(saved, file, dataset, partition):
    results = saved(seeds=(3, 5))
    for result in results:
        models = load_models(file, result.seed)
        assert models.seed == result.seed
        own = [client.accuracy for client in result.metrics.per_client]
        np.testing.assert_allclose(models.evaluate(dataset, partition), np.array(own, float))
    with pytest.raises(InvalidInput, match=r"seed: None is not accepted; expected one of 3, 5"):
        load_models(file)


def test_a_network_that_depends_on_the_clients_classes_is_loaded(file, dataset, partition):
    class Common(Method):
        """A layer with as many units as clients have the most common class."""

        def client_network(self, network, federation):
            most = int((federation.label_counts > 0).sum(0).max())
            network.add_module("votes", nn.Linear(network.head.in_features, most))
            return network

    (run,) = pfl.simulate(
        Common, dataset, partition, rounds=1, epochs=1, execution=Execution(save=str(file)), progress=False
    )
    models = load_models(file, method=Common)
    np.testing.assert_allclose(
        models.evaluate(dataset, partition), [client.accuracy for client in run.metrics.per_client]
    )


def test_a_file_without_label_counts_is_loaded(saved, file, dataset, partition):
    saved()
    accuracies = load_models(file).evaluate(dataset, partition)
    content = read_models(file)
    del content["seeds"][0]["label_counts"]
    checkpoint.write(file, content)
    assert load_models(file).evaluate(dataset, partition).tolist() == accuracies.tolist()


def test_the_global_model_is_the_network_that_all_clients_share(saved, file, dataset):
    saved("fedavg")
    models = load_models(file)
    accuracies = [models.global_model().evaluate(dataset)] * models.clients
    assert models.evaluate(dataset) == pytest.approx(accuracies)


def test_a_network_with_personal_layers_has_no_global_model(saved, file):
    saved("fedper")
    with pytest.raises(InvalidInput, match=r"head\.weight, head\.bias are personal"):
        load_models(file).global_model()


def test_raw_images_are_predicted_in_all_their_forms(saved, file, dataset):
    saved()
    model = load_models(file).client(1)
    pixels = dataset.images[:5]
    expected = model.predict(pixels)
    mode = pixels.transpose(0, 2, 3, 1)
    pictures = [Image.fromarray(image.squeeze()) for image in mode]
    forms = [torch.from_numpy(pixels), mode, torch.from_numpy(pixels) / 255, pictures]
    assert all(np.array_equal(model.predict(images), expected) for images in forms)
    assert np.array_equal(model.scores(pixels).argmax(1), expected)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (np.zeros((2, 1, 9, 9), np.uint8), "images: image 0 of 1x9x9 is not .*, as in training"),
        ([], "expected a sequence of images"),
        (7, "expected a sequence of images"),
        ([np.zeros(4)], "sample 0"),
    ],
)
def test_images_of_another_form_are_refused(images, said, saved, file):
    saved()
    with pytest.raises(InvalidInput, match=said):
        load_models(file).client(0).predict(images)


@pytest.mark.parametrize("client", [-1, 1.0, "0", 99])
def test_a_client_that_does_not_exist_is_refused(client, saved, file):
    saved()
    with pytest.raises(InvalidInput, match=rf"^client: {client} is not accepted; expected an integer from 0"):
        load_models(file).client(client)


def test_a_data_set_of_other_classes_is_refused(saved, file, dataset):
    saved()
    other = dataclasses.replace(dataset, classes=tuple(f"other {name}" for name in dataset.classes))
    with pytest.raises(InvalidInput, match="class other class 0 is not accepted; expected classes"):
        load_models(file).client(0).evaluate(other)


def test_a_mask_is_not_taken_for_indices(saved, file, dataset):
    saved("fedavg")
    with pytest.raises(
        InvalidInput, match=r"samples: an array of bool \(\d+,\) is not accepted; expected integers"
    ):
        load_models(file).client(0).evaluate(dataset, dataset.labels == 1)


@pytest.mark.parametrize("index", [-1, 10**6])
def test_an_index_without_an_image_is_refused(index, saved, file, dataset):
    saved("fedavg")
    accepted = f"integers from 0 to {len(dataset.labels) - 1}, the indices of images"
    line = refusal(load_models(file).client(0).evaluate, dataset, [0, index])
    assert line == f"samples: index {index} is not accepted; expected {accepted}"


@pytest.mark.parametrize("samples", [3, [[0, 1]]])
def test_indices_are_a_list(samples, saved, file, dataset):
    saved("fedavg")
    said = "samples: an array of .* is not accepted; expected integers"
    with pytest.raises(InvalidInput, match=said):
        load_models(file).client(0).evaluate(dataset, samples)


def test_classes_of_another_order_are_matched_by_name(saved, file, dataset):
    saved("fedavg")
    model = load_models(file).global_model()
    names = dataset.classes[::-1]
    turned = dataclasses.replace(dataset, classes=names, labels=len(names) - 1 - dataset.labels)
    assert model.evaluate(turned) == model.evaluate(dataset)


def test_a_loaded_model_can_be_trained_further(saved, file, dataset):
    saved("fedavg")
    model = load_models(file).global_model().train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = model.scaled(dataset.images[:32]), torch.from_numpy(dataset.labels[:32])
    losses = []
    for _ in range(5):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_models_of_objects_are_loaded_with_these_objects(file, dataset, partition):
    class Own(Method):
        """Nothing is mixed."""

    def small(shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))

    saved = Execution(save=str(file))
    (result,) = pfl.simulate(Own, dataset, partition, model=small, rounds=1, progress=False, execution=saved)
    with pytest.raises(InvalidInput, match=r"method: none is not .* own, .* as the argument method"):
        load_models(file)
    models = load_models(file, method=Own, model=small)
    own = [client.accuracy for client in result.metrics.per_client]
    np.testing.assert_allclose(models.evaluate(dataset, partition), np.array(own, float))


def test_networks_of_one_name_are_told_apart(tmp_path, dataset, partition):
    def network(activation):
        def small(shape, classes):
            return nn.Sequential(
                nn.Flatten(), nn.Linear(int(np.prod(shape)), 8), activation(), nn.Linear(8, classes)
            )

        return small

    builders, scores = [network(nn.ReLU), network(nn.Tanh)], []
    files = [tmp_path / name for name in ("relu.pt", "tanh.pt")]
    for builder, file in zip(builders, files, strict=True):
        saved = Execution(save=str(file))
        pfl.simulate("fedavg", dataset, partition, model=builder, rounds=1, progress=False, execution=saved)
        scores.append(load_models(file, model=builder).client(1).scores(dataset.images[:5]))
    models = [load_models(file, model=builder) for file, builder in zip(files, builders, strict=True)]
    for loaded, expected in zip(models, scores, strict=True):
        assert torch.equal(loaded.client(1).scores(dataset.images[:5]), expected)
    with pytest.raises(InvalidInput, match=r"^model: none is not accepted; expected small"):
        load_models(files[0])


NETWORK = """
from torch import nn

def shallow(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))
"""


@pytest.mark.slow
def test_models_of_a_plugin_are_refused_once_it_is_edited(tmp_path):
    plugin = tmp_path / "plugins/models/shallow.py"
    plugin.parent.mkdir(parents=True)

    def run(code: str, check: bool = True) -> str:
        path = {"PYTHONPATH": str(Path(pfl.__file__).parents[1])}
        return python("-c", f"import pfl; {code}", cwd=tmp_path, env=path, check=check).stderr

    plugin.write_text(NETWORK)
    options = "model='shallow', rounds=1, progress=False, execution=pfl.Execution(save='models.pt')"
    run(f"pfl.simulate({options})")
    plugin.write_text(f"# a remark\n{NETWORK}")
    run("pfl.load_models('models.pt')")
    plugin.write_text(NETWORK.replace("ReLU", "Tanh"))
    said = run("pfl.load_models('models.pt')", check=False)
    assert "model: shallow, whose code has changed, is not accepted; expected the plugin that" in said
    run("from plugins.models.shallow import shallow; pfl.load_models('models.pt', model=shallow)")


# ---- files from elsewhere ------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_one_line(file):
    assert "FileNotFoundError" in refusal(load_models, file)


def test_a_file_of_another_kind_is_one_line(file):
    file.write_text("weights")
    assert "is not accepted; expected a file of models that `pfl run --save`" in refusal(load_models, file)
    torch.save({"weight": torch.zeros(2)}, file)
    assert "is not accepted; expected a file of models that `pfl run --save`" in refusal(load_models, file)


def test_a_damaged_number_is_noticed(saved, file):
    saved()
    weight = read_models(file)["seeds"][0]["tensors"]["head.weight"].numpy().tobytes()
    content = file.read_bytes()
    place = content.index(weight) + 7
    file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    assert "it is damaged" in refusal(load_models, file)
    file.write_bytes(content[:-100])
    assert "BadZipFile" in refusal(load_models, file)


def test_a_file_runs_no_code(file, tmp_path):
    class Malicious:
        def __reduce__(self):
            return Path.touch, (tmp_path / "harm",)

    torch.save({"format": Malicious()}, file)
    assert "UnpicklingError" in refusal(load_models, file)
    assert not (tmp_path / "harm").exists()


def test_a_file_of_another_version_is_one_line(saved, file):
    saved()
    checkpoint.write(file, read_models(file) | {"format": "pfl models, version 1"})
    assert "of the form 'pfl models, version 2', not 'pfl models, version 1'" in refusal(load_models, file)


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"method": "fedavg", "model": "lenet5_bn"}},
        {"config": {"method": "fedrod"}},
        {"data": {}},
        {"seeds": {0: {}}},
        {"seeds": "none"},
    ],
)
def test_a_forged_file_is_one_line(change, saved, file):
    saved()
    content = read_models(file)
    if "config" in change:
        change = {"config": content["config"] | change["config"] | {"hyperparameters": {}}}
    checkpoint.write(file, content | change)
    assert "is not accepted" in refusal(load_models, file)


FEATURES = np.random.default_rng(0).normal(5, 3, (24, 7)).astype(np.float32)
TOKENS = np.arange(24 * 9).reshape(24, 9) % 50
LABELS = np.arange(24) % 3


def model_of(samples, file):
    """The first client's model, trained on samples that are not images."""
    data = pfl.from_arrays(samples, LABELS)
    execution = Execution(save=str(file), workers=1)
    pfl.simulate("fedavg", data, clients=2, rounds=1, epochs=1, execution=execution, progress=False)
    return load_models(file).client(0)


def test_features_are_predicted_as_floats_whole_numbers_or_a_data_frame(file):
    pd = pytest.importorskip("pandas")
    model = model_of(FEATURES, file)
    whole = FEATURES.round()
    expected = model.predict(whole)
    for form in (whole.astype(int), whole.tolist(), pd.DataFrame(whole)):
        assert np.array_equal(model.predict(form), expected)


@pytest.mark.parametrize(
    ("trained", "given", "said"),
    [
        (FEATURES, np.where(FEATURES > 6, np.nan, FEATURES), "not nan"),
        (FEATURES, FEATURES.astype(complex), "not samples complex128"),
        (FEATURES, FEATURES.astype(str), "not samples <U"),
        (TOKENS, TOKENS + 1, "tokens below 51 is not accepted; expected tokens below 50, as in training"),
        (TOKENS, -TOKENS, "not -"),
        (TOKENS, TOKENS.astype(float), "float64 is not accepted; expected tokens below 50, as in training"),
    ],
)
def test_samples_of_another_kind_are_not_predicted(trained, given, said, file):
    assert said in refusal(model_of(trained, file).predict, given)


@pytest.mark.parametrize(
    ("trained", "given"),
    [(FEATURES, np.ones((24, 7), int)), (TOKENS, TOKENS + 1), (TOKENS, TOKENS.astype(np.float32))],
)
def test_data_of_another_kind_are_not_evaluated(trained, given, file):
    assert "as in training" in refusal(model_of(trained, file).evaluate, pfl.from_arrays(given, LABELS))


def test_images_of_another_scale_are_not_evaluated(saved, file, dataset):
    saved()
    floats = pfl.from_arrays(dataset.images.astype(np.float32) / 255, dataset.labels)
    said = refusal(load_models(file).client(0).evaluate, floats)
    assert said.endswith("float32 is not accepted; expected images with 8 bits per channel, as in training")

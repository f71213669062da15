"""Data sets out of images and labels in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import FakeData
from torchvision.transforms import ToTensor

import pfl
from pfl.core.errors import DataWarning, InvalidInput

GREY = np.arange(64, dtype=np.uint8).reshape(8, 8)


@pytest.mark.parametrize(
    "image",
    [GREY, GREY[None], GREY[:, :, None], Image.fromarray(GREY), torch.from_numpy(GREY)[None] / 255],
    ids=["flat", "channels first", "channels last", "pillow", "tensor"],
)
@pytest.mark.parametrize("sample", [lambda x, y: (x, y), lambda x, y: {"image": x, "label": y}])
def test_images_of_every_form_keep_their_pixels(image, sample):
    data = pfl.from_samples([sample(image, 0), sample(image, 1)])
    assert np.array_equal(data.images, np.stack([GREY[None]] * 2))
    assert data.labels.tolist() == [0, 1]
    assert data.classes == ("0", "1")
    assert data.n_train == 2


def test_a_data_set_of_torchvision_is_simulated_as_it_is():
    samples = FakeData(48, image_size=(3, 16, 16), num_classes=2, transform=ToTensor())
    (run,) = pfl.simulate("fedavg", samples, "shards:2", clients=2, rounds=1, epochs=1, progress=False)
    assert sum(client.train + client.test for client in run.metrics.per_client) == 48


@pytest.mark.parametrize("names", [np.array(["cat", "dog"]), ["cat", "dog"]], ids=["array", "list"])
def test_class_names_of_the_samples_are_kept_whatever_else_they_have(names):
    class Samples(list):
        features = np.zeros((2, 3))
        classes = names

    assert pfl.from_samples(Samples([(GREY, 0), (GREY, 1)])).classes == ("cat", "dog")


@pytest.mark.parametrize("other", [2, {"dog", "cat"}])
def test_a_number_or_a_set_of_classes_names_none(other):
    class Samples(list):
        classes = other

    assert pfl.from_samples(Samples([(GREY, 0), (GREY, 1)])).classes == ("0", "1")


@pytest.mark.parametrize("height", [1, 3])
def test_low_colour_images_of_pillow_keep_their_channels(height):
    pixels = np.arange(height * 5 * 3, dtype=np.uint8).reshape(height, 5, 3)
    (image,) = pfl.from_samples([(Image.fromarray(pixels), 0)]).images
    assert np.array_equal(image, pixels.transpose(2, 0, 1))


def test_images_are_resized_where_a_size_is_given():
    images = [Image.new("RGB", (width, 10), (9, 8, 7)) for width in (12, 20)]
    data = pfl.from_samples([(image, 0) for image in images], size=(6, 5))
    assert data.shape == (3, 6, 5)
    assert data.images[:, :, 0, 0].tolist() == [[9, 8, 7]] * 2


@pytest.mark.parametrize(
    ("samples", "accepted"),
    [
        ([], "samples of one shape"),
        ([(GREY, 0), (GREY[:4], 0)], r"size=\(height, width\) resizes"),
        ([GREY], r"sample 0 .*\(image, label\)"),
        (
            {"train": [(GREY, 0)], "test": [(GREY, 0)]},
            "samples indexed by integers, such as one split",
        ),
        ([{"pixels": GREY, "label": 0}], "a mapping with label and image or sample"),
        ([(GREY.astype(np.int32), 0)], "uint8 or of floats"),
        ([(GREY, -1)], "label -1 of sample 0 .*integers from 0"),
        ([(GREY, "cat")], "label 'cat' of sample 0 .*integers from 0"),
        ([(GREY, 0.7)], "integers from 0"),
        ([(GREY, 5_000_000)], "to 99,999"),
        ([(Image.fromarray(GREY.astype(np.int32)), 0)], "sample 0 of mode I .*8 bits per channel"),
    ],
)
def test_samples_of_another_form_are_one_clear_line(samples, accepted):
    with pytest.raises(InvalidInput, match=f"^dataset: .*{accepted}"):
        pfl.from_samples(samples)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:samples")
def test_tensors_that_require_a_gradient_keep_their_pixels_in_every_precision(dtype):
    levels = torch.arange(256).view(16, 16)
    image = (levels / 255).to(dtype)[None].requires_grad_()
    (pixels,) = pfl.from_samples([(image, torch.tensor(0))]).images
    assert np.array_equal(pixels[0], levels.numpy())


def test_tensors_that_require_a_gradient_are_simulated():
    images = torch.rand(40, 1, 16, 16).requires_grad_()
    samples = torch.utils.data.TensorDataset(images, torch.arange(40) % 2)
    with pytest.warns(DataWarning, match="floats rounded to 8 bits: 40 images"):
        runs = pfl.simulate("fedavg", samples, "shards:2", clients=2, rounds=1, epochs=1, progress=False)
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("image", "given"),
    [
        (torch.full((1, 8, 8), torch.nan), "float32 .* from nan to nan"),
        (torch.rand(1, 8, 8) - 2, r"float32 \(1, 8, 8\) from -"),
        (torch.zeros(1, 8, 8, device="meta"), "Tensor"),
        (np.zeros((8, 8), complex), "complex128"),
        (np.array([[{}]]), "object"),
        (np.zeros((8, 8, 4), np.uint8), r"uint8 \(4, 8, 8\)"),
    ],
)
def test_an_image_of_another_kind_is_named_with_its_values(image, given):
    with pytest.raises(InvalidInput, match=f"^dataset: sample 1, {given}"):
        pfl.from_samples([(GREY, 0), (image, 0)])


@pytest.mark.parametrize(("kind", "value"), [("image", GREY), ("sample", np.ones(3))])
def test_columns_of_samples_that_a_file_cannot_hold_are_one_clear_line(kind, value, tmp_path):
    samples = [{kind: value, "label": i % 2, "classes": "ab"[i % 2]} for i in range(4)]
    with pytest.raises(InvalidInput, match=r"^columns: classes is not accepted; expected another name"):
        pfl.from_samples(samples)
    samples = [{kind: value, "label": i % 2, "number": 10**i, "flipped": True} for i in range(21)]
    with pytest.raises(InvalidInput, match=r"^dataset: .* a column number of 64-bit integers or strings"):
        pfl.from_samples(samples)
    data = pfl.from_samples(samples[:19])
    data.save(tmp_path / "data.npz")
    ((name, values),) = pfl.load(tmp_path / "data.npz").columns.items()
    assert (name, values.tolist()) == ("number", [10**i for i in range(19)])

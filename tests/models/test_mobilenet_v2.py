import hashlib

import pytest
import torch
import torchvision

import pfl.models.mobilenet_v2 as module
from pfl.core.errors import InvalidInput
from pfl.models import MODELS

SHAPE = (3, 32, 32)


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    """Torch hub's folder of checkpoints, empty."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def test_the_weights_looked_for_are_torchvision_s_default():
    assert torchvision.models.MobileNet_V2_Weights.DEFAULT.url.endswith(f"/{module.WEIGHTS}")


def test_without_weights_at_hand_the_network_starts_from_scratch(checkpoints):
    assert not MODELS["mobilenet_v2"](SHAPE, 20).pretrained
    assert list(checkpoints.iterdir()) == []


def test_weights_at_hand_fill_the_extractor(checkpoints, monkeypatch):
    reference = torchvision.models.mobilenet_v2()
    torch.save(reference.state_dict(), checkpoints / "written")
    name = f"weights-{hashlib.sha256((checkpoints / 'written').read_bytes()).hexdigest()[:8]}.pth"
    (checkpoints / "written").rename(checkpoints / name)
    monkeypatch.setattr(module, "WEIGHTS", name)

    network = MODELS["mobilenet_v2"](SHAPE, 20)

    assert network.pretrained
    x = torch.randn(2, *SHAPE)
    expected = reference.eval().features(x).mean((2, 3))
    torch.testing.assert_close(network.eval().extractor(x), expected)


def test_a_damaged_file_of_weights_is_one_clear_line(checkpoints):
    (checkpoints / module.WEIGHTS).write_bytes(b"half a download")

    with pytest.raises(InvalidInput, match=r"^pretrained weights: .* a file whose SHA-256 begins"):
        MODELS["mobilenet_v2"](SHAPE, 20)


def test_grey_images_are_one_clear_line():
    with pytest.raises(InvalidInput, match=r"^images: 1x32x32 is not accepted; expected 3 channels"):
        MODELS["mobilenet_v2"]((1, 32, 32), 10)

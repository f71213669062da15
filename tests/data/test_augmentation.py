"""Augmentation: what it does to an image, what decides it, and that it ends with training."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torchvision.transforms import functional as theirs

from pfl.core.config import Config, Execution
from pfl.data.augmentation import Moves, augmented, draw
from pfl.testing.synthetic import make_clients, make_dataset
from tests.conftest import CONFIG, simulate

ALL = "crop_flip_rotate"
AUGMENTED = dataclasses.replace(CONFIG, augmentation=ALL)
IMAGES = torch.randint(0, 256, (6, 3, 12, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def scaled(images: torch.Tensor) -> torch.Tensor:
    """To a scale on which 0 is not black."""
    return images.double() / 255 - 0.5


def rounds(config: Config, execution: Execution = Execution()):
    data = make_dataset()
    clients = make_clients(data, sizes=[20, 9, 14, 5, 16, 12])
    return simulate(config, data, clients, (0,), execution)[0].metrics.to_json()["rounds"]


# ---- images --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("degrees", [-15, -7.3, -0.4, 2, 14.9])
def test_a_rotation_is_torchvisions_with_black_corners(degrees):
    angle = torch.full((6,), math.radians(degrees), dtype=torch.float64)
    ours = augmented(IMAGES, Moves(None, angle, None), scaled)
    assert torch.equal(ours, scaled(theirs.rotate(IMAGES, degrees)))


def test_a_crop_moves_the_window_over_the_scaled_image_padded_with_zeros():
    windows = torch.tensor([[-4, -4], [4, 4], [0, 0], [-1, 3], [2, -2], [4, -4]])
    ours = augmented(IMAGES, Moves(None, None, windows), scaled)
    padded = theirs.pad(scaled(IMAGES), 4)
    for image, whole, (down, right) in zip(ours, padded, windows.tolist(), strict=True):
        assert torch.equal(image, theirs.crop(whole, down + 4, right + 4, 12, 10))


def test_steps_follow_one_another_as_in_the_code_of_fedcac():
    moves = draw(ALL, torch.tensor(3), len(IMAGES))
    for i, image in enumerate(augmented(IMAGES, moves, scaled)):
        expected = theirs.hflip(IMAGES[i]) if moves.flip[i] else IMAGES[i]
        expected = theirs.pad(scaled(theirs.rotate(expected, math.degrees(moves.angle[i]))), 4)
        down, right = (moves.crop[i] + 4).tolist()
        assert torch.equal(image, theirs.crop(expected, down, right, 12, 10))


@pytest.mark.parametrize(
    ("augmentation", "steps"),
    [("crop_flip", {"crop", "flip"}), ("flip_rotate", {"flip", "angle"}), (ALL, {"crop", "flip", "angle"})],
)
def test_an_augmentation_has_the_steps_of_its_name(augmentation, steps):
    moves = draw(augmentation, torch.tensor(0), 4)
    assert {name for name, values in vars(moves).items() if values is not None} == steps


def test_every_window_and_both_sides_are_equally_likely_and_angles_uniform():
    moves = draw(ALL, torch.tensor(1), 20_000)
    counts = torch.bincount((moves.crop[:, 0] + 4) * 9 + moves.crop[:, 1] + 4, minlength=81)
    assert 150 < counts.min() <= counts.max() < 350  # 247 expected, deviation 16
    assert 0.48 < moves.flip.double().mean() < 0.52
    degrees = torch.rad2deg(moves.angle)
    assert -15 <= degrees.min() < -14.9 < 14.9 < degrees.max() <= 15
    assert abs(degrees.mean()) < 0.3  # deviation 0.06


def test_a_key_decides_an_images_moves_whatever_stands_beside_it():
    keys = torch.tensor([5, 6])
    (few, many), other = (draw(ALL, keys[0], count) for count in (4, 9)), draw(ALL, keys[1], 4)
    assert torch.equal(few.angle, many.angle[:4])
    assert not torch.equal(few.angle, other.angle)
    stacked = draw(ALL, keys, 4)
    assert torch.equal(stacked.angle, torch.stack([few.angle, other.angle]))


# ---- simulations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "augmentation"), [("fedavg", "crop_flip"), ("perfedavg", ALL), ("spfl", ALL)]
)
def test_both_backends_train_on_the_same_images(method, augmentation):
    config = dataclasses.replace(AUGMENTED, method=method, augmentation=augmentation)
    loop, stacked = (rounds(config, Execution(backend=backend)) for backend in ("loop", "stacked"))
    for ours, reference in zip(stacked, loop, strict=True):
        assert ours["train_loss"] == pytest.approx(reference["train_loss"], abs=1e-9)
        assert ours["post_local"] == pytest.approx(reference["post_local"], abs=1e-9)


def test_training_sees_augmented_images_and_evaluation_does_not():
    standing = dataclasses.replace(AUGMENTED, model="lenet5", lr=1e-12)
    plain = rounds(dataclasses.replace(standing, augmentation="none"))
    for moved, still in zip(rounds(standing), plain, strict=True):
        assert moved["train_loss"] != pytest.approx(still["train_loss"], abs=1e-6)
        assert moved["post_local"] == pytest.approx(still["post_local"], abs=1e-9)


def test_no_two_epochs_or_rounds_see_the_same_images(monkeypatch):
    keys = []

    def watched(augmentation, key, count):
        keys.append(int(key))
        return draw(augmentation, key, count)

    monkeypatch.setattr("pfl.engine.local_training.draw", watched)
    rounds(AUGMENTED)
    assert len(set(keys)) == len(keys) > 20

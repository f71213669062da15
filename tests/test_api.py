"""What ``import pfl`` offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pfl
from tests.conftest import make_clients, make_dataset


def test_a_simulation_needs_only_the_names_of_the_package():
    dataset = make_dataset()
    config = pfl.Config(method="fedper", rounds=2, epochs=1)
    (result,) = pfl.simulate(config, dataset, make_clients(dataset, [8, 8]), execution=pfl.Execution())
    assert result.metrics.rounds[-1].round == 2


@pytest.mark.parametrize("name", pfl.__all__)
def test_every_public_name_is_there(name):
    assert getattr(pfl, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        pfl.simulat  # noqa: B018


def test_importing_the_package_and_its_command_line_imports_no_torch():
    code = "import sys, pfl, pfl.cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

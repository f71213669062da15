"""Our kernels and torch's operations on one thread: a training step of each network, by batch size.

``python -m benchmarks.kernels``. It led to the rules of `pfl.kernels.conv_block` (``usable``, ``FEWEST``) and
of its C++ file (``by_rows``), and decided which networks of `pfl.models._resnet` use the kernels, and which
convolutions of `pfl.models._conv` are matrix products in bfloat16 (``FEW``). Steps of the textbook network
(default layout), of torch's operations alone and of the kernels take turns; the latter two also in bfloat16,
and without those products. Figures are medians of CPU time.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Annotated
from unittest.mock import patch

import torch
import torch.nn.functional as F
import typer
from torch import nn

from benchmarks.workload import JsonFile, Workload, run, write
from pfl.engine.device import computes_in
from pfl.kernels import conv_block
from pfl.models import MODELS, _conv
from pfl.models._layers import SingleClientMode
from pfl.models._network import Network

SIDES = {"resnet10": 64, "cnn_digits": 8}
"""Side of a network's images, if it is not 32."""


def main(
    model: Annotated[list[str] | None, typer.Option(help="See `pfl models`; may be repeated.")] = None,
    batch_size: Annotated[list[int] | None, typer.Option(help="May be repeated.")] = None,
    seconds: Annotated[float, typer.Option(help="Seconds per network and batch size.")] = 5.0,
    json_file: JsonFile = None,
) -> None:
    """Print milliseconds of a step, and its speed as a multiple of the textbook network's."""
    torch.set_num_threads(1)
    models: dict[str, dict[int, dict[str, float]]] = {}
    for name in model or ("lenet5_bn", "lenet4", "spfl_cnn", "cnn4", "resnet8", "resnet8_cifar", "resnet10"):
        for size in batch_size or (2, 4, 8, 10, 16, 20, 32, 50, 64, 100, 128):
            models.setdefault(name, {})[size] = times = measure(name, size, seconds)
            textbook = times["textbook"]
            parts = (f"{kind} {1e3 * t:.2f} ms ({textbook / t:.2f}x)" for kind, t in times.items())
            print(f"{name}, {size} images: {', '.join(parts)}", flush=True)
    write(json_file, Workload(), {"models": models})


def measure(name: str, size: int, seconds: float) -> dict[str, float]:
    """Seconds of a step in CPU time, by kind; in bfloat16 if this CPU has the instructions."""
    side = SIDES.get(name, 32)
    shape = (1 if name == "cnn_digits" else 3, side, side)
    network = MODELS[name](shape, 10)
    assert isinstance(network, Network)
    x, y = torch.randn(size, *shape), torch.randint(10, (size,))
    steps = {
        "textbook": _step(network, x, y, single_client=False),
        "torch alone": patch.object(conv_block, "INSTRUCTIONS", ())(_step(network, x, y, single_client=True)),
        "kernels": _step(network, x, y, single_client=True),
    }
    if computes_in("bf16", torch.device("cpu")):
        network.bf16 = True
        steps["bf16"] = _step(network, x, y, single_client=True)
        steps["bf16, torch alone"] = patch.object(conv_block, "INSTRUCTIONS", ())(steps["bf16"])
        if name.startswith("resnet"):
            steps["bf16, convolutions alone"] = patch.object(_conv, "FEW", 0)(steps["bf16"])
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    end = time.monotonic() + seconds
    while len(times["kernels"]) < 3 or time.monotonic() < end:
        for kind, step in steps.items():
            began = time.thread_time()
            step()
            times[kind].append(time.thread_time() - began)
    return {kind: statistics.median(each[1:]) for kind, each in times.items()}


def _step(network: nn.Module, x: torch.Tensor, y: torch.Tensor, single_client: bool) -> Callable[[], None]:
    """A step of SGD on a copy of ``network``; with ``single_client`` as the loop backend computes it."""
    net = copy.deepcopy(network)
    for module in net.modules():
        if isinstance(module, SingleClientMode):
            module.single_client = single_client
    parameters: list[torch.Tensor] = list(net.parameters())

    def step() -> None:
        gradients = torch.autograd.grad(F.cross_entropy(net(x), y), parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-0.01)

    return step


if __name__ == "__main__":
    run(main)

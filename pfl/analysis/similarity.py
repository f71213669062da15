"""Similarity of data sets, models, updates and representations.

Distances and cosines are computed in float64; a cosine with a zero vector is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pfl.core.lazy import torch
from pfl.engine.types import Tensor

ZERO = 1e-12
"""A norm below this counts as 0."""


def squared_distances(models: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> Tensor:
    """||a - b||^2 over all tensors of ``models`` (name to (K, *shape)) and ``others`` (L, *shape): (K, L)."""
    # Without the matrix-product form, equal models have distance 0 exactly.
    by_tensor = [
        torch.cdist(
            stack.flatten(1).double(),
            others[name].flatten(1).double(),
            compute_mode="donot_use_mm_for_euclid_dist",
        ).square()
        for name, stack in models.items()
    ]
    return torch.stack(by_tensor).sum(0)


def cosines(models: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> Tensor:
    """Cosines over all tensors of ``models`` (name to (K, *shape)) and ``others`` (L, *shape): (K, L).

    0 where a model is 0.
    """
    products = torch.stack(
        [stack.flatten(1).double() @ others[name].flatten(1).double().T for name, stack in models.items()]
    ).sum(0)
    first, second = _norms(models)[:, None], _norms(others)
    nonzero = (first >= ZERO) & (second >= ZERO)
    return torch.where(nonzero, products / (first * second).clamp(min=ZERO), 0.0).clamp(-1, 1)


def _norms(models: Mapping[str, Tensor]) -> Tensor:
    squares = [stack.flatten(1).double().square().sum(1) for stack in models.values()]
    return torch.stack(squares).sum(0).sqrt()


def data_similarity(counts: Tensor) -> Tensor:
    """The share of two clients' samples that belong to classes that both have (pFedSim, 1 - Eq. 1).

    Args:
        counts: (n, classes), samples per class.

    Returns:
        (n, n), in [0, 1].
    """
    has = (counts > 0).to(counts.dtype)
    common = (counts * has) @ has.T  # samples of the row's client in the classes of the column's
    sizes = counts.sum(1)
    return (common + common.T) / (sizes[:, None] + sizes)


def class_cosines(heads: Tensor) -> Tensor:
    """Cosines between the clients' rows of the head, class by class (pFedSim, the terms of Eq. 2).

    Args:
        heads: (n, classes, d) weights.

    Returns:
        (classes, n, n); 0 where a row is 0.
    """
    return torch.stack([cosines({"row": rows}, {"row": rows}) for rows in heads.unbind(1)])


def angles(updates: Mapping[str, Tensor]) -> Tensor:
    """Angles (n, n) in degrees between the clients' updates, name to (n, *shape)."""
    return torch.rad2deg(torch.acos(cosines(updates, updates)))


def head_distances(heads: Tensor) -> Tensor:
    """Squared distances between the clients' heads, each row divided by its maximum (PFedCS, D).

    Args:
        heads: (n, classes, d) weights.

    Returns:
        (n, n), in [0, 1]; 0 if all heads are equal.
    """
    distances = squared_distances({"head": heads}, {"head": heads})
    largest = distances.max(1, keepdim=True).values
    return distances / torch.where(largest > 0, largest, 1.0)


def pairwise_cka(representations: Sequence[Tensor]) -> Tensor:
    """Centred kernel alignment with linear kernels (Kornblith et al., 2019): the cosine of the centred Gram
    matrices of two models' representations of the same samples.

    Args:
        representations: of n models, (samples, d) each; d may differ.

    Returns:
        (n, n), in [0, 1]; 1 if equal up to rotation and scale, 0 if one is the same for all samples.
    """
    centred = [each.double() - each.double().mean(0) for each in representations]
    grams = {"gram": torch.stack([each @ each.T for each in centred])}
    return cosines(grams, grams)


def statistics_distances(means: Sequence[Tensor], variances: Sequence[Tensor]) -> Tensor:
    """Wasserstein distances between the Gaussians given by the clients' statistics (FedAP).

    d_ij = sum over layers of sqrt(||mean_i - mean_j||^2 + ||std_i - std_j||^2).

    Args:
        means, variances: one tensor (n, channels) per layer.

    Returns:
        (n, n).
    """
    layers = [
        torch.cat([mean, variance.clamp(min=0).sqrt()], 1).double()
        for mean, variance in zip(means, variances, strict=True)
    ]
    return torch.stack([squared_distances({"": layer}, {"": layer}).sqrt() for layer in layers]).sum(0)

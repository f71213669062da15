"""Randomness is keyed: a stream depends on its key alone."""

from pfl.core.rng import generator, integer_seed


def test_every_part_of_the_key_counts():
    keys = [(0, "a", 0, 0), (1, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 1)]
    assert len({float(generator(*key).random()) for key in keys}) == len(keys)
    assert len({integer_seed(*key) for key in keys}) == len(keys)

"""Rows of a large result: whole, apart, from end to end, and the same from the same seed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aka.evaluate import sampling
from aka.types import ArraySpec


def chosen(shape: tuple[int, ...], compared: int, seed: int = 1) -> sampling.Rows | None:
    return sampling.choose([ArraySpec(shape, "float32")], seed, compared)[0]


@pytest.mark.parametrize("shape", [(), (100,), (10, 10), (2, 5, 10)])
def test_what_is_small_is_compared_whole(shape: tuple[int, ...]) -> None:
    assert chosen(shape, 100) is None
    made = np.zeros(shape)
    assert sampling.take(made, None) is made


@pytest.mark.parametrize("shape", [(4000, 8), (40, 100, 8), (4000,), (97, 331)])
def test_stretches_lie_apart_and_reach_both_ends(shape: tuple[int, ...]) -> None:
    rows = chosen(shape, 1000)
    assert rows is not None and rows == chosen(shape, 1000) and rows != chosen(shape, 1000, seed=2)
    count = int(np.prod(shape[:-1])) if len(shape) > 1 else shape[0]
    assert rows[0][0] == 0 and rows[-1][1] == count
    assert all(a < b for a, b in rows)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(rows))
    array = np.arange(np.prod(shape)).reshape(shape)
    taken = sampling.take(array, rows)
    assert taken.size <= max(1000, shape[-1])
    assert taken.size == len(np.unique(taken)) and taken.flat[0] == 0 and taken.flat[-1] == array.size - 1

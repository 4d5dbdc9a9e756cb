"""Which part of a large result is compared: whole rows, chosen by a secret seed (both sides of the border; NumPy)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from aka.types import ArraySpec

COMPARED = 1 << 24
"""Elements of one output that are compared at a production shape: float64 arrays of 128 MiB, about ten at a time."""
PIECES = 64
Rows = tuple[tuple[int, int], ...]
"""Ranges of rows, where a row is the last axis; of elements, where there is only one axis. None: all of it."""


def choose(leaves: Sequence[ArraySpec], seed: int, compared: int = COMPARED) -> list[Rows | None]:
    """For each output the rows that are compared: `PIECES` stretches of equal length, one at random in each of as many
    equal parts; the first and the last part give their ends."""
    draw = random.Random(seed)
    return [_rows(leaf.shape, draw, compared) for leaf in leaves]


def _rows(shape: Sequence[int], draw: random.Random, compared: int) -> Rows | None:
    if math.prod(shape) <= compared:
        return None
    last = shape[-1] if len(shape) > 1 else 1
    rows = math.prod(shape) // last
    pieces = max(1, min(PIECES, compared // last))
    part, length = rows // pieces, max(1, compared // last // pieces)
    starts = [p * part + draw.randrange(part - length + 1) for p in range(pieces)]
    starts[0], starts[-1] = 0, rows - length
    return tuple((s, s + length) for s in starts)


def take(array: np.ndarray[Any, Any], rows: Sequence[Sequence[int]] | None) -> np.ndarray[Any, Any]:
    """These rows of the array, one after another: shape (rows, last axis); all of it for None."""
    if rows is None:
        return array
    flat = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array
    return np.concatenate([flat[a:b] for a, b in rows])

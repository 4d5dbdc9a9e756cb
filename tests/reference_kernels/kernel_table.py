"""How a reference kernel is tested: what each file `kernels_<group>.py` beside this one lists in its KERNELS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Ints:
    """An integer argument: values from `low` to `high` inclusive."""

    shape: Shape
    high: int
    low: int = 0
    dtype: str = "int32"


@dataclass(frozen=True)
class Fixed:
    """A float argument that has one dtype whatever the case's is."""

    shape: Shape
    dtype: str = "float32"


Arg = Shape | Fixed | Ints
"""A shape stands for an array of the case's float dtype; `Fixed` and `Ints` name their own."""


@dataclass(frozen=True)
class Listed:
    """One reference kernel (`file` under reference_kernels/).

    `cases`: arguments, and statics and tunables with which every grid axis takes two steps or more, three on a
    reduction; each runs in float32 and in bfloat16. `small`: arguments whose sizes no block divides, large enough to
    keep the values of every tunable apart; the whole search space is compiled there. `production`: arguments and dtype
    at which the advised parameters are compiled for every chip of the front matter. `oversized`: whether blocks of 8192
    in every tunable can be too large for VMEM. `tolerance`: multiplies the usual one, with the reason beside it.
    """

    file: str
    small: Sequence[Arg]
    cases: list[tuple[Sequence[Arg], dict[str, Any]]]
    production: list[tuple[Sequence[Arg], str]] = field(default_factory=list)
    oversized: bool = True
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    tolerance: float = 1.0

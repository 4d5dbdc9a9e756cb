"""Choose the shape at which a candidate's grid must be seen at work: 2 steps on every axis, 3 on a reduction axis.

Small test shapes hide whole classes of faults: with blocks clamped to the array, a matmul that never accumulates across
steps passes every one of them. So the sizes follow from the candidate's own blocks, read off its production artifact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from aka.evaluate.facts import KernelFacts

STEPS = 2
REDUCTION_STEPS = 3
MAX_GUESSES = 6
MAX_PRODUCTS = 256
MAX_SHARED = 2
"""Running a kernel and comparing its values at twice the size costs less than references at another size: a third of
what these take, for a f32 matmul of 4096 x 1536 x 4096."""


def wanted_steps(kernel: KernelFacts) -> tuple[int, ...]:
    """Steps that a test must show on each grid axis of a production kernel."""
    want = [REDUCTION_STEPS if a in kernel.reduction_axes else STEPS for a in range(len(kernel.grid))]
    return tuple(min(n, w) for n, w in zip(kernel.grid, want, strict=True))


def missing_steps(production: Sequence[KernelFacts], small: Sequence[KernelFacts]) -> list[str]:
    """What the small artifact's grids fail to show, in words; empty when they show enough."""
    if [len(k.grid) for k in production] != [len(k.grid) for k in small]:
        return ["another set of kernels runs at the small shape"]
    return [
        f"{big.name}: {have} of {want} steps on grid axis {axis}"
        for big, tiny in zip(production, small, strict=True)
        for axis, (have, want) in enumerate(zip(tiny.grid, wanted_steps(big), strict=True))
        if have < want
    ]


def multi_step_sizes(
    kernels: Sequence[KernelFacts],
    knobs: dict[str, int],
    start: dict[str, int],
    small: Sequence[KernelFacts] = (),
) -> list[dict[str, int]]:
    """Sizes, at least `start`, at which every grid axis should take its wanted steps; several guesses, smallest first.

    An axis that walks over an array dimension of a knob's size sets that knob. Where several knobs have that size, the
    kernels at the `start` sizes (`small`), where knobs differ, tell which one it is, or else each of them is a guess. A
    dimension that is a product of knobs (flattened rows) sets its largest factor. Never above the production `knobs`.
    """
    needs: dict[tuple[int, int, int], None] = {}
    for i, kernel in enumerate(kernels):
        for axis, (want, pairs) in enumerate(zip(wanted_steps(kernel), kernel.axis_blocks, strict=True)):
            there = small[i].axis_blocks[axis] if i < len(small) and axis < len(small[i].axis_blocks) else ()
            for j, (dimension, block) in enumerate(pairs):
                needs.setdefault((dimension, want * block, there[j][0] if len(there) == len(pairs) else 0))
    options = [_options(knobs, start, *need) for need in sorted(needs)]
    guesses = [_merged(start, knobs, chosen) for chosen in itertools.islice(itertools.product(*options), MAX_PRODUCTS)]
    distinct = {tuple(sorted(g.items())): g for g in guesses}
    return sorted(distinct.values(), key=lambda g: math.prod(g.values()))[:MAX_GUESSES]


def _options(
    knobs: dict[str, int], start: dict[str, int], dimension: int, need: int, small: int
) -> list[tuple[str, int]]:
    """(knob, size) pairs that may give a dimension the size that it needs; `small` is its size at `start`, or 0."""
    same = [name for name, size in knobs.items() if size == dimension]
    if same:
        told = [name for name in same if start[name] == small]
        return [(name, need) for name in told or same]
    factors = _factors(knobs, dimension)
    if not factors:
        return [("", 0)]
    return [(factors[0], math.ceil(need / math.prod(start[n] for n in factors[1:])))]


def _merged(start: dict[str, int], knobs: dict[str, int], chosen: Sequence[tuple[str, int]]) -> dict[str, int]:
    made = dict(start)
    for name, need in chosen:
        if name:
            made[name] = min(knobs[name], max(made[name], need))
    return made


def _factors(knobs: dict[str, int], dimension: int) -> list[str]:
    """Two or three knobs whose product is the dimension, the largest first; empty if there are none."""
    names = sorted(knobs, key=lambda n: -knobs[n])
    for i, a in enumerate(names):
        for j, b in enumerate(names[i + 1 :], i + 1):
            if knobs[a] * knobs[b] == dimension:
                return [a, b]
            for c in names[j + 1 :]:
                if knobs[a] * knobs[b] * knobs[c] == dimension:
                    return [a, b, c]
    return []


def with_shared(guesses: Sequence[dict[str, int]], known: Sequence[dict[str, int]]) -> list[dict[str, int]]:
    """The guesses, each after the smallest of the `known` sizes that would do for it at up to MAX_SHARED times the
    work: multiples of a guess hold whole blocks, and no fewer of them."""
    made: list[dict[str, int]] = []
    for sizes in guesses:
        work = math.prod(sizes.values())
        fits = [k for k in known if _multiple(k, sizes) and math.prod(k.values()) <= MAX_SHARED * work]
        made += [*sorted(fits, key=lambda k: math.prod(k.values()))[:1], sizes]
    return [sizes for i, sizes in enumerate(made) if sizes not in made[:i]]


def _multiple(larger: dict[str, int], sizes: dict[str, int]) -> bool:
    return larger.keys() == sizes.keys() and all(larger[name] % size == 0 for name, size in sizes.items())


def doubled(sizes: dict[str, int], knobs: dict[str, int]) -> dict[str, int] | None:
    """Every size doubled up to its production value, or None when all are there: the way out when the arithmetic of
    `multi_step_sizes` was not enough."""
    made = {name: min(2 * size, knobs[name]) for name, size in sizes.items()}
    return made if made != sizes else None

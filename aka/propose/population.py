"""Several branches at once: which arm the next trial goes to.

The best trial of each of the best arms is a branch. Arms that show promise first get a few trials each, as in
successive halving; after that the branches share the trials by how good they are. Seeded, and without a state.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

from aka.types import MemoryRecord

FEW = 3
"""Trials that a promising arm gets before the branches compete."""
FEW_OWN = 5
"""The same for the kernel that the user brought."""
SHARPNESS = 4.0
"""A branch that takes twice the time of the best gets 1/2^SHARPNESS of its share."""
EXPLORE = 0.1
"""Share of trials that go to an arm which is no branch."""
FIXED = frozenset(
    {
        "static_reject", "forbidden_primitive", "not_a_kernel", "work_outside_kernel", "bad_output",
        "nondeterministic_trace",
    }
)  # fmt: skip
"""Reason codes of gates that parameters cannot change."""


def best_times(records: Sequence[MemoryRecord]) -> dict[str, float]:
    """The best time of each binding that has one, the fastest binding first. Pieces of a template are no rivals."""
    found: dict[str, float] = {}
    for r in records:
        if r.us is not None and not r.piece:
            found[r.binding] = min(r.us, found.get(r.binding, math.inf))
    return dict(sorted(found.items(), key=lambda item: item[1]))


def dropped(records: Sequence[MemoryRecord], key: str) -> bool:
    """Whether every trial of a binding that is remembered failed at a gate that parameters cannot change."""
    own = [r.outcome for r in records if r.binding == key]
    return bool(own) and all(code in FIXED for code in own)


def order(
    keys: Sequence[str], times: Mapping[str, float], tried: Callable[[str], int], width: int, chance: random.Random,
    own: str | None = None,
) -> list[str]:  # fmt: skip
    """All `keys`, the one whose turn it is first. `times` are best times, fastest first; `tried` counts trials; `own`
    is the user's kernel, which gets its few trials before the others, however slow it began."""
    ranked = [k for k in times if k in keys]
    rest = [k for k in keys if k not in ranked]
    promising = ranked[: max(width, math.ceil(len(ranked) / 2))]
    young = [k for k in promising if tried(k) < FEW]
    if own in ranked and tried(own) < FEW_OWN:
        turn: str | None = own
    else:
        turn = min(young, key=tried) if young else _drawn(ranked, rest, times, width, chance)
    return [*([turn] if turn else []), *(k for k in [*ranked, *rest] if k != turn)]


def _drawn(
    ranked: Sequence[str], rest: Sequence[str], times: Mapping[str, float], width: int, chance: random.Random
) -> str | None:
    branches, others = ranked[:width], [*ranked[width:], *rest]
    if others and (chance.random() < EXPLORE or not branches):
        return chance.choice(others)
    weights = [(times[branches[0]] / times[k]) ** SHARPNESS for k in branches]
    return chance.choices(branches, weights)[0] if branches else None

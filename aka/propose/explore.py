"""A start elsewhere: far from all that was tried, in the part of a search space where something is to be expected."""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from aka.propose import tuner
from aka.types import MemoryRecord

SAMPLE = 2000
"""Points that are looked at; larger grids are sampled."""
HOPELESS = 2.0
"""A point that takes this many times the best of its kernel closes its neighbourhood, as a failure does."""
PROMISING = 1 / 3
"""Share of the grid, by the trend of the times along each parameter, among which starts are chosen first."""

Space = Mapping[str, Sequence[Any]]
Point = Mapping[str, Any]
Places = Mapping[str, Sequence[Any]]


def farthest(
    space: Space, tried: Sequence[Point], records: Sequence[MemoryRecord], seed: int, taken: Callable[[Point], bool]
) -> Iterator[dict[str, Any]]:
    """Untaken points, the farthest from all `tried` first; before that, those next to a failure or a hopeless time in
    `records` come last, and those where the trend of the records promises nothing after the others. Ties are seeded."""
    places = {name: _places(values) for name, values in space.items()}
    own = [r for r in records if _inside(r.params, space)]
    known = [_coordinates(p, places) for p in tried if _inside(p, space)]
    shut = [_coordinates(r.params, places) for r in own if _is_hopeless(r, own)]
    slopes = _trend(own, places)
    points = [p for p in _points(space, seed) if not taken(p)]
    hopes = {tuner.key(p): sum(map(operator.mul, slopes, _coordinates(p, places))) for p in points}
    bar = sorted(hopes.values())[int(PROMISING * len(hopes))] if hopes else 0.0

    def rank(point: dict[str, Any]) -> tuple[bool, bool, float, str]:
        at, key = _coordinates(point, places), tuner.key(point)
        gap = min((math.dist(at, other) for other in known), default=math.inf)
        draw = hashlib.sha256(f"{seed} {key}".encode()).hexdigest()
        return any(_beside(at, other, places) for other in shut), hopes[key] > bar, -round(gap, 6), draw

    yield from sorted(points, key=rank)


def _is_hopeless(record: MemoryRecord, records: Sequence[MemoryRecord]) -> bool:
    best = min((r.us for r in records if r.us is not None), default=math.inf)
    return record.us is None or record.us > HOPELESS * best


def _trend(records: Sequence[MemoryRecord], places: Places) -> list[float]:
    """Slope of log time along each parameter, on its own; 0 where nothing is known."""
    timed = [(_coordinates(r.params, places), math.log(r.us)) for r in records if r.us]
    return [_slope([at[i] for at, _ in timed], [y for _, y in timed]) for i in range(len(places))]


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    return statistics.linear_regression(x, y).slope if len(set(x)) > 1 else 0.0


def _points(space: Space, seed: int) -> list[dict[str, Any]]:
    if math.prod(len(v) for v in space.values()) <= SAMPLE:
        return [dict(zip(space, point, strict=True)) for point in itertools.product(*space.values())]
    chance = random.Random(seed)
    made = ({name: chance.choice(values) for name, values in space.items()} for _ in range(SAMPLE))
    return list({tuner.key(p): p for p in made}.values())


def _places(values: Sequence[Any]) -> list[Any]:
    """Values in the order of their size where they are numbers, else as they are listed."""
    return sorted(values) if all(isinstance(v, int | float) for v in values) else list(values)


def _coordinates(point: Point, places: Places) -> list[float]:
    """From 0 to 1 along each parameter, by rank: blocks double from one value to the next."""
    return [order.index(point[name]) / max(len(order) - 1, 1) for name, order in places.items()]


def _beside(at: Sequence[float], other: Sequence[float], places: Places) -> bool:
    """At most one step apart along every parameter."""
    steps = [1 / max(len(order) - 1, 1) for order in places.values()]
    return all(abs(a - b) <= step + 1e-9 for a, b, step in zip(at, other, steps, strict=True))


def _inside(point: Point, space: Space) -> bool:
    return all(point.get(name) in list(values) for name, values in space.items())

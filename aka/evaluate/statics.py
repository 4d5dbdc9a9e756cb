"""Worker side: which values a reference kernel's static parameters may have for a workload, the likelier first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

MAX_STATICS = 400


def choices(
    declared: Mapping[str, str], literals: Sequence[float], defaults: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Values to try for a kernel's static parameters, at most MAX_STATICS combinations. Those of likely values all
    round come first: the product of several lists would end long before it changes its first parameter."""
    values = [_values(kind, literals, defaults, name) for name, kind in declared.items()]
    totals = range(sum(map(len, values)) + 1)
    combos = itertools.islice((c for total in totals for c in _at_places(values, total)), MAX_STATICS)
    return [dict(zip(declared, combo, strict=True)) for combo in combos]


def _at_places(values: Sequence[Sequence[Any]], total: int) -> Iterator[tuple[Any, ...]]:
    """Combinations of values whose places in their lists add up to `total`."""
    if not values:
        yield from [()] if total == 0 else []
        return
    for place, value in enumerate(values[0][: total + 1]):
        for rest in _at_places(values[1:], total - place):
            yield (value, *rest)


def _values(kind: str, literals: Sequence[float], defaults: Mapping[str, Any], name: str) -> list[Any]:
    """The workload's own constants, the nearest to the kernel's default in magnitude first; then, for floats, 1 and
    their inverses, since x / 8 is x * 0.125. The default itself comes first if it is one of these or None, which
    derives the value from the shapes, else last."""
    default = defaults.get(name)
    if kind == "bool":
        own: list[Any] = [True, False]
    elif kind == "int":
        own = _nearest([int(v) for v in literals if v == int(v)], default)
    else:
        inverses = [i for v in literals if v and math.isfinite(i := _inverse(v))]
        own = [*_nearest(literals, default), *_nearest([1.0, *inverses], default)]
    if name not in defaults:
        return list(dict.fromkeys(own))
    return list(dict.fromkeys([default, *own] if default is None or default in own else [*own, default]))


def _nearest(values: Sequence[float], default: float | None) -> list[float]:
    """By their ratio to the default, where there is one and both are positive; otherwise in the order given."""
    if not default or default < 0:
        return list(values)
    return sorted(values, key=lambda v: abs(math.log(v / default)) if v > 0 else math.inf)


def _inverse(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(str(np.float32(1.0 / value)))

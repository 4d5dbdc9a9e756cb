"""Sizes as an op has them at several shapes at once, and the expressions that give them back.

A size is a tuple: its value at each traced case. Two dimensions that agree everywhere are the same size; one that never
changes is a number; the others must follow from the shapes of the arguments.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Size = tuple[int, ...]
ITEMSIZE = {"bool": 1, "int8": 1, "uint8": 1, "bfloat16": 2, "float16": 2, "int16": 2, "float64": 8, "int64": 8}


class NoFit(Exception):
    """No template covers the op; the text says what stands in the way."""


def times(*sizes: Size) -> Size:
    return tuple(math.prod(parts) for parts in zip(*sizes, strict=True))


def over(a: Size, b: Size) -> Size | None:
    """a / b where that is whole in every case, else None."""
    if any(y == 0 or x % y for x, y in zip(a, b, strict=True)):
        return None
    return tuple(x // y for x, y in zip(a, b, strict=True))


def tile_rows(dtype: str) -> int:
    """Rows of a tile in VMEM: 8 of 32 bits, more of narrower numbers."""
    return max(8, 32 // ITEMSIZE.get(dtype, 4))


@dataclass
class Sizes:
    """Names of sizes. `origins` tells which argument's shape gives a named size; `used` collects what was asked for;
    names in `taken` mean something else where the sizes are written; `numbers` are sizes that never change; `spare` are
    values of the op's CONFIG, read where nothing that an argument shows gives a size."""

    cases: int
    taken: frozenset[str] = frozenset()
    numbers: frozenset[int] = frozenset()
    names: dict[Size, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    spare: dict[Size, str] = field(default_factory=dict)

    def learn(self, size: Size, origin: str, name: str) -> None:
        """The size that `origin` (such as "x.shape[0]") has shall be called `name`, unless it has a name already or
        never changes."""
        if size not in self.names and not is_constant(size):
            while name in self.origins or name in self.taken:
                name += "_"
            self.names[size] = name
            self.origins[name] = origin

    def expression(self, size: Size) -> str:
        """Python for a size, in terms of names and numbers. Raises NoFit if it follows from none of them."""
        made = self._expression(size)
        if made is None and self.spare:
            for value, key in self.spare.items():
                self.learn(value, f"CONFIG[{key!r}]", key)
            made = self._expression(size) or self._beside_spare(size)
        if made is None:
            raise NoFit(f"a size of {size[0]} that follows from no argument's shape and no CONFIG value that sets one")
        return made

    def _beside_spare(self, size: Size) -> str | None:
        """The size as another one with a CONFIG value added or taken away: the heads that are no queries'."""
        for value in (v for v in self.spare if v in self.names):
            less = tuple(a - b for a, b in zip(size, value, strict=True))
            more = tuple(a + b for a, b in zip(size, value, strict=True))
            for other, sign in ((less, "+"), (more, "-")):
                text = self._expression(other) if min(other) > 0 else None
                if text is not None:
                    return f"({text} {sign} {self._name(value)})"
        return None

    def _expression(self, size: Size) -> str | None:
        if is_constant(size):
            return str(size[0])
        if size in self.names:
            return self._name(size)
        for terms in self._products(size):
            return " * ".join(terms)
        for other in self.names:
            quotient = over(other, size)
            if quotient is not None and is_constant(quotient):
                return f"{self._name(other)} // {quotient[0]}"
            difference = tuple(a - b for a, b in zip(size, other, strict=True))
            if is_constant(difference):
                return f"{self._name(other)} {'-' if difference[0] < 0 else '+'} {abs(difference[0])}"
        for above, below in self._ratios(size):
            return f"{' * '.join(map(self._name, above))} // {' // '.join(map(self._name, below))}"
        for chosen, divisor in self._fractions(size):
            return f"{' * '.join(map(self._name, chosen))} // {divisor}"
        return None

    def _products(self, size: Size) -> list[list[str]]:
        found: list[tuple[tuple[Size, ...], int]] = []
        for count in (1, 2, 3):
            for chosen in itertools.combinations_with_replacement(self.names, count):
                rest = over(size, times(*chosen))
                if rest is not None and is_constant(rest):
                    found.append((chosen, rest[0]))
        # A product of names alone is no chance hit, as one with some factor may be.
        best = min(found, key=lambda f: f[1] != 1, default=None)
        return [] if best is None else [[*map(self._name, best[0]), *([str(best[1])] if best[1] != 1 else [])]]

    def _ratios(self, size: Size) -> Iterator[tuple[tuple[Size, ...], tuple[Size, ...]]]:
        """Products of named sizes over others that are this one: heads over the heads that they share."""
        for ups, downs in ((1, 1), (2, 1), (1, 2)):
            for below in itertools.combinations_with_replacement(self.names, downs):
                whole = times(size, *below)
                for above in itertools.combinations_with_replacement(self.names, ups):
                    if times(*above) == whole:
                        yield above, below

    def _fractions(self, size: Size) -> list[tuple[tuple[Size, ...], int]]:
        """Products of named sizes that are so many times this one: first those by a number that is a size itself (the
        elements of a group of channels)."""
        found = []
        for count in (2, 3, 4):
            for chosen in itertools.combinations_with_replacement(self.names, count):
                quotient = over(times(*chosen), size)
                if quotient is not None and is_constant(quotient):
                    found.append((chosen, quotient[0]))
        return sorted(found, key=lambda f: f[1] not in self.numbers)

    def _name(self, size: Size) -> str:
        self.used.add(self.names[size])
        return self.names[size]

    def number(self, values: Sequence[float], dtype: str) -> str:
        """Python for a scalar that may follow from sizes (a mean's count, 1 / sqrt(d))."""
        first = values[0]
        if all(v == first or (v != v and first != first) for v in values):
            return literal(first, dtype)
        for text, inverse in (("{}", 1.0), ("1 / ({})", -1.0), ("({}) ** 0.5", 2.0), ("({}) ** -0.5", -2.0)):
            whole = _whole(values, inverse)
            if whole is not None:
                made = text.format(self.expression(whole))
                return f"float({made})" if "float" in dtype and text == "{}" else made
        raise NoFit(f"a constant of {first} that changes with the sizes in no way known here")


def _whole(values: Sequence[float], power: float) -> Size | None:
    """The integers n with n ** (1 / power) = value, or None. Constants in float32 carry its rounding."""
    made = []
    for value in values:
        if not (math.isfinite(value) and value > 0):
            return None
        n = value**power
        if abs(n - round(n)) > 1e-5 * n or not round(n):
            return None
        made.append(round(n))
    return tuple(made)


def literal(value: float | bool | int, dtype: str) -> str:
    """A scalar constant as Python, as short as its dtype allows."""
    if dtype == "bool":
        return str(bool(value))
    if "int" in dtype:
        return str(int(value))
    if not math.isfinite(value):
        return "jnp.nan" if value != value else "jnp.inf" if value > 0 else "-jnp.inf"
    import numpy as np

    short = float(str(np.float32(value)))
    return repr(short)


def is_constant(size: Size) -> bool:
    return len(set(size)) == 1


def is_unit(size: Size) -> bool:
    return set(size) == {1}


def named_sizes(knobs: Sequence[Mapping[str, int]]) -> dict[Size, str]:
    """Names of the CONFIG keys whose values at each case make a size: the op's own words for its dimensions."""
    found: dict[Size, str] = {}
    for key in knobs[0]:
        if key.startswith("config:") and all(key in k for k in knobs):
            name = key.removeprefix("config:")
            if name.isidentifier():
                found.setdefault(tuple(k[key] for k in knobs), name)
    return found

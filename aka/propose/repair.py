"""What to change about a candidate that failed: each kind of failure has its own rule."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aka.types import GateResult

MAX_REPAIRS = 3
"""Repairs in a row of one failure."""
LEAST_BLOCK = 8
"""Integers below this are counts (buffers, unrolls), not blocks."""
_VMEM = re.compile(r"(?i)vmem|resource_exhausted|out of memory|\bexceed")
_SLOW = re.compile(r"(?i)within its limits|within \d+ s|could not simulate")
_MEMORY_CODES = frozenset({"compile_error", "vmem_limit", "candidate_error"})
_STEPS_CODES = frozenset({"resource_limit", "timeout"})

Space = Mapping[str, Sequence[Any]]
Change = tuple[str, dict[str, Any]]


def changes(gate: GateResult, params: Mapping[str, Any], space: Space) -> Iterator[Change]:
    """(why, parameters) of the repairs of a failure, the nearest first; none where no rule applies."""
    text = f"{gate.message}\n{gate.evidence}"
    if gate.code in _MEMORY_CODES and _VMEM.search(text):
        for name, value in _steps(params, space, down=True):
            yield f"{name} smaller, to fit into VMEM", {**params, name: value}
    elif gate.code in _STEPS_CODES or (gate.code == "unsupported_feature" and _SLOW.search(text)):
        for name, value in _steps(params, space, down=False):
            yield f"{name} larger, for fewer steps", {**params, name: value}


def named(gate: GateResult, params: Mapping[str, Any], space: Space) -> Iterator[Change]:
    """Other values of the parameter that the failure's message names."""
    found = [n for n in space if re.search(rf"\b{re.escape(n)}\b", gate.message)]
    for name in found[:1]:
        for value in space[name]:
            if value != params.get(name):
                yield f"another {name}, which the message names", {**params, name: value}


def _steps(params: Mapping[str, Any], space: Space, *, down: bool) -> Iterator[tuple[str, Any]]:
    """Each block one step down, the largest block first; or one step up, the smallest first."""
    blocks = [n for n, values in space.items() if is_block(values) and n in params]
    for name in sorted(blocks, key=lambda n: -params[n] if down else params[n]):
        values = sorted(set(space[name]), reverse=down)
        beyond = [v for v in values if (v < params[name] if down else v > params[name])]
        yield from ((name, value) for value in beyond[:1])


def is_block(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int) and not isinstance(v, bool) and v >= LEAST_BLOCK for v in values)

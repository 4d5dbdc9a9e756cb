"""Templates of several kernels: each is tried and tuned alone first, and the template then takes the best of each.

A kernel alone is judged by the part of the op that it computes. What the compiler refuses of one closes the whole
template; what they take together, when it is no less than the best kernel so far (or XLA), spares the whole a trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aka.propose.arms import Arm
from aka.propose.past import Past

OPEN = frozenset({"correctness", "performance"})
"""Gates behind the compiler. A kernel that is rejected there alone, on inputs that no op has made, may still be right
in its place."""


def closed(pieces: Sequence[Arm], past: Past) -> bool:
    """Whether the compiler, or a gate before it, has refused every trial of one of the kernels."""
    return any(_refused(p, past) for p in pieces)


def _refused(piece: Arm, past: Past) -> bool:
    faults = [t.evaluation.fault for t in past.of(piece.key)]
    return bool(faults) and all(f is not None and f.gate not in OPEN for f in faults)


def best_us(pieces: Sequence[Arm], past: Past) -> float:
    """What the kernels take together at their best, those without a time left out."""
    return sum(us for p in pieces if (us := past.best_us(p.key)) is not None)


def together(pieces: Sequence[Arm], past: Past) -> dict[str, Any]:
    """The template's parameters with the best of each kernel, its own advice where none has a time."""
    made: dict[str, Any] = {}
    for piece in pieces:
        best: Mapping[str, Any] = past.best_params(piece.key) or piece.tuned
        made |= {piece.calls[name]: value for name, value in best.items()}
    return made


def slowest_first(pieces: Sequence[Arm], past: Past) -> list[Arm]:
    """There is most to be gained where most of the time goes."""
    return sorted(pieces, key=lambda p: -(past.best_us(p.key) or 0.0))

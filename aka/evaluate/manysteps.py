"""The shape at which a candidate's grid is seen at work: from its own blocks, shared with candidates before it."""

from __future__ import annotations

from collections.abc import Sequence

from aka.evaluate import cases
from aka.evaluate.client import PlannerClient, small_sizes
from aka.evaluate.exports import Exports
from aka.evaluate.facts import KernelFacts
from aka.types import ShapeCase, Workload

MAX_TEST_BYTES = 256 << 20
"""Inputs and outputs of the many-step shape: the NumPy machine has to walk through them."""


def find(
    made: Exports, client: PlannerClient, workload: Workload, known: list[dict[str, int]]
) -> tuple[ShapeCase | None, str]:
    """A shape at which every grid axis takes 2 steps (3 on a reduction axis), with the candidate exported for it, and a
    note if there is none. `known` are sizes that did for candidates before; new ones are added. Raises Failed."""
    production = made.facts(workload.primary.label).kernels
    if not any(n > 1 for k in production for n in k.grid):
        return None, ""
    for small in workload.test_shapes:
        if not cases.missing_steps(production, made.facts(small.label).kernels):
            return None, ""
    missing = ["the workload has no sizes that can be changed"]
    guesses = cases.with_shared(_guesses(made, workload, production), known)
    while guesses:
        sizes = guesses.pop(0)
        case = _exported(made, client, workload, sizes)
        if case is not None:
            missing = cases.missing_steps(production, made.facts(case.label).kernels)
            if not missing:
                known += [sizes] if sizes not in known else []
                return case, ""
        if not guesses and case is not None and (larger := cases.doubled(sizes, workload.primary.knobs)):
            guesses = [larger]
    return None, f"not seen with several steps: {'; '.join(missing)}"


def _guesses(made: Exports, workload: Workload, production: Sequence[KernelFacts]) -> list[dict[str, int]]:
    """Many-step sizes that grow from the test shape whose sizes differ most from each other."""
    knobs = workload.primary.knobs
    known = [c for c in workload.test_shapes if c.knobs.keys() == knobs.keys()]
    if not knobs or not known:
        return cases.multi_step_sizes(production, knobs, small_sizes(knobs, 1)[0]) if knobs else []
    start = max(known, key=lambda c: len(set(c.knobs.values())))
    return cases.multi_step_sizes(production, knobs, start.knobs, made.facts(start.label).kernels)


def _exported(made: Exports, client: PlannerClient, workload: Workload, sizes: dict[str, int]) -> ShapeCase | None:
    """The workload at these sizes with the candidate exported for it; None if it is too large or does not trace."""
    case = client.case(workload, sizes)
    if case is None or case.min_bytes > MAX_TEST_BYTES:
        return None
    made.export([case])
    made.hold_to_rules(case)
    return case

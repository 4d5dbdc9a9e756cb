"""Can a kernel be judged by the op at all? Told before a kernel is praised; refused where nothing could be told."""

from __future__ import annotations

import dataclasses

import numpy as np

from aka.errors import WorkloadError
from aka.evaluate.numerics import weakness
from aka.evaluate.references import Array, References
from aka.types import Workload

FAMILIES = ("normal", "x100", "offset")
KEPT = (
    " (so are the inputs: the judge keeps scalars, and arrays of a handful of distinct values, as create_inputs makes "
    "them; give it random ones)"
)


def named(workload: Workload, references: References) -> Workload:
    """The workload with the reasons why it judges kernels badly in `weak`, told at its first small shape.

    Raises WorkloadError if no output tells a right kernel from a wrong one: all are constant, tiny or never finite.
    """
    case = workload.test_shapes[0]
    arguments = {f: references.arguments(case, f) for f in FAMILIES}
    answers = {f: references.answers(case, a) for f, a in arguments.items()}
    found = weakness(answers)
    if len(found) == len(case.outputs.leaves) and any(leaf.size for leaf in case.outputs.leaves):
        kept = KEPT if case.inputs.leaves and all(_alike(a, arguments[FAMILIES[0]]) for a in arguments.values()) else ""
        raise WorkloadError(f"{workload.path}: too weak to judge a kernel by: {'; '.join(found.values())}{kept}")
    return dataclasses.replace(workload, weak=(*found.values(), *_unused(workload, references, answers[FAMILIES[0]])))


def _unused(workload: Workload, references: References, usual: list[Array]) -> list[str]:
    """Arguments that may be drawn afresh without a change in any output."""
    case = workload.test_shapes[0]
    drawn, other = (references.arguments(case, FAMILIES[0], seed) for seed in (0, 1))
    owners = [int(path[0]) for path in case.inputs.paths]
    found = []
    for index, name in enumerate(workload.argument_names):
        mixed = [b if owner == index else a for owner, a, b in zip(owners, drawn, other, strict=True)]
        if _alike(mixed, drawn):
            continue  # nothing that could show: a scalar, or what make_inputs gives
        if _alike(references.answers(case, mixed), usual):
            found.append(f"no output depends on input {name}")
    return found


def _alike(one: list[Array], other: list[Array]) -> bool:
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") for a, b in zip(one, other, strict=True))

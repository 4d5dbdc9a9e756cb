"""Interpret mode: the candidate once more, in JAX's own simulation of a TPU, with its race detector.

This is a second trace, in the process that runs the candidate's Python. So it may only reject: that all is well there
proves nothing, and what the interpreter cannot run is said and held against nobody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from aka.errors import SandboxError
from aka.evaluate import numerics, wire
from aka.evaluate.correctness import FEW, Fault, Tally
from aka.evaluate.exports import Exports
from aka.evaluate.pool import WorkerError
from aka.evaluate.references import Held, References
from aka.types import ShapeCase, Workload, decode, encode

INTERPRET_S = 60.0
STEPS = 3
"""Two output blocks and three steps show a block that is revisited and a buffer that is used again."""
MAX_STEPS, MAX_BYTES = 64, 32 << 20
"""A step costs tens of milliseconds, and each access is compared with all before it."""


@dataclass(frozen=True)
class Interpreted:
    """What the exporter says of a run: `races` counts them, `said` is the detector's text on the first ones."""

    races: int
    said: str
    arrays: tuple[dict[str, Any], ...]


def check(
    made: Exports, references: References, workload: Workload, many: ShapeCase | None, tally: Tally
) -> Fault | None:
    """Run the candidate in interpret mode at one small shape. Its fault, or None; notes go into the tally.

    The exporter may be dead afterwards. `many` is the shape at which the grid was seen with several steps, if any.
    """
    case = _small(made, [*([many] if many else []), *workload.test_shapes])
    with made.patience.spared():
        held = references.get(case, FEW[0])
    answer = _run(made, case, held)
    found = answer if isinstance(answer, str) else _judged(*answer, held)
    if isinstance(found, Fault):
        return Fault(found.code, f"{found.message} (in interpret mode, at {case.label})", found.evidence)
    tally.notes = {*(tally.notes or ()), f"interpret mode: {found}"}
    return None


def _small(made: Exports, cases: list[ShapeCase]) -> ShapeCase:
    """The first shape of several steps that can be run in a second or two, or the one of fewest steps."""

    def steps(case: ShapeCase) -> int:
        return sum(abs(math.prod(kernel.grid)) for kernel in made.facts(case.label).kernels)

    small = [c for c in cases if c.min_bytes <= MAX_BYTES and STEPS <= steps(c) <= MAX_STEPS]
    return small[0] if small else min(cases, key=steps)


def _run(made: Exports, case: ShapeCase, held: Held) -> tuple[Interpreted, list[bytes]] | str:
    """What came of it, or why nothing did."""
    specs, blobs = wire.pack(held.arguments)
    args = {
        "source": made.code, "filename": "candidate.py", "chip": made.chip, "inputs": encode(case.inputs),
        "config": case.config, "arrays": specs,
    }  # fmt: skip
    try:
        result, data = made.exporter.call("interpret", args, blobs, timeout_s=made.patience.cut(INTERPRET_S))
        return decode(Interpreted, result), data
    except (WorkerError, SandboxError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"could not run it: {lines[-1][:200] if lines else type(error).__name__}"


def _judged(answer: Interpreted, data: list[bytes], held: Held) -> Fault | str:
    if answer.races:
        first = " ".join(answer.said.partition("\n\n")[0].split())
        text = "two accesses to the same memory, one of them a write, that nothing puts in order"
        return Fault("race", text, f"{first[:300]}\n{answer.said}")
    try:
        found = numerics.hold(wire.unpack(answer.arrays, data), held.standard)
    except SandboxError as error:
        return f"could not run it: {error}"
    if isinstance(found, numerics.Skip):
        return "no race; the op itself errs too much to compare values"
    if not found.ok:
        return Fault("incorrect", found.reason)
    return "no race"

"""Correctness gate: the artifact itself is run on inputs that only the judge holds, and every element is compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aka.errors import WireError, WorkerDied, WorkerTimeout
from aka.evaluate import inputs, numerics, wire
from aka.evaluate.patience import Expired, Patience
from aka.evaluate.pool import Pool, WorkerError
from aka.evaluate.references import Held, References
from aka.types import ShapeCase, Workload

EXECUTE_S = 120.0
GHOSTS = ((float("nan"), "NaN", 1), (0.0, "zeros", 0))
"""What takes the place of the kernels' results in ghost replay: floats, their word, integers."""
ROUNDED = "even with exact dots the result is off, so something else than a dot is rounded to fewer bits"
AGAIN, MOST_AGAIN = 3, 4
"""Further draws of a family that was passed near its limit, and how many such passes are looked into: a candidate that
is that near everywhere is told from the others by a few."""
FEW = ("normal", "spikes", "tail")
"""Families for the second shape and the many-step shape; the first small shape and the finalists see all of them."""


def families_for(workload: Workload) -> tuple[str, ...]:
    """The families that the workload is judged by. Where it turns floats into integers, what becomes of a NaN is the
    machine's own affair (XLA leaves it open; its CPU gives 0 or the largest integer): nobody is held to it."""
    leaves = workload.primary.outputs.leaves
    whole = any(leaf.dtype.startswith(("int", "uint")) for leaf in leaves)
    converts = whole and "convert_element_type" in workload.primitives
    return tuple(f for f in inputs.families() if f != "nonfinite" or not converts)


@dataclass(frozen=True)
class Fault:
    """Why a candidate is wrong: reason code, a sentence, and evidence for who writes the next one."""

    code: str
    message: str
    evidence: str = ""


@dataclass
class Tally:
    """What was compared: shapes x families, the worst margin (error over limit) and families that were skipped; `near`
    are the shapes and families that were passed near their limit."""

    compared: int = 0
    margin: float = 0.0
    skipped: list[str] | None = None
    notes: set[str] | None = None
    near: list[tuple[ShapeCase, str]] = field(default_factory=list)

    def summary(self) -> str:
        text = f"{self.compared} comparisons, worst error {self.margin:.2g} of its limit"
        if self.skipped:
            text += f"; skipped where the reference itself errs: {', '.join(sorted(set(self.skipped)))}"
        if self.notes:
            text += "; " + "; ".join(sorted(self.notes))
        return text


class Checker:
    """Runs artifacts and compares them with the references of one workload.

    `many_steps` are sizes at which candidates were seen with several steps, in the order in which they were first used:
    at these the references are likely to be there already.
    """

    def __init__(self, pool: Pool, references: References) -> None:
        self._pool, self.references = pool, references
        self.many_steps: list[dict[str, int]] = []

    def notes(self) -> set[str]:
        """What a reader must know of the references: an op without a float64 twin is judged by its own precision."""
        return {f"judged by the op's own precision: {why}" for why in self.references.notes.values()}

    def check(
        self, case: ShapeCase, artifact: bytes, families: Iterable[str], tally: Tally, patience: Patience
    ) -> Fault | None:
        """The first family in which the artifact is wrong, or None. Raises SandboxError for the machinery's faults,
        Expired or Unwanted when `patience` ends between two comparisons."""
        for number, family in enumerate(families):
            patience.cut(EXECUTE_S)
            with patience.spared():
                held = self.references.get(case, family)
            made = self._run("execute", _on_chip(number), artifact, held, patience.cut(EXECUTE_S))
            fault = made if isinstance(made, Fault) else self._compare(case, family, held, made, tally)
            if fault is not None:
                fault = self._raced(artifact, held, fault, patience)
                return Fault(fault.code, f"{fault.message} (at {case.label}, family {family})", fault.evidence)
        return None

    def _raced(self, artifact: bytes, held: Held, fault: Fault, patience: Patience) -> Fault:
        """The fault's right name: it is a race if all is well with one core."""
        if fault.code != "incorrect":
            return fault
        alone = self._run("execute", _on_chip(None), artifact, held, patience.cut(EXECUTE_S))
        found = alone if isinstance(alone, Fault) else numerics.hold(alone, held.standard)
        if not isinstance(found, numerics.Comparison) or not found.ok:
            return fault
        text = "right on one core, wrong on two: the steps of a grid axis that is declared parallel hang on each other"
        return Fault("race", text, f"{fault.message}\n{fault.evidence}")

    def exactly(
        self, case: ShapeCase, artifact: bytes, families: Iterable[str], patience: Patience
    ) -> tuple[int, Fault | None]:
        """With dots as exact as the op's own: what a dot may round, nothing else may. The number of comparisons, and
        the first fault. Only for kernels without narrow windows: what goes in or out as such may be meant for a dot."""
        compared = 0
        for family in families:
            held = self.references.get(case, family)
            if held.exactly is None:
                continue
            made = self._run("execute", {**_on_chip(None), "mxu": "exact"}, artifact, held, patience.cut(EXECUTE_S))
            found = made if isinstance(made, Fault) else numerics.hold(made, held.exactly)
            if isinstance(found, Fault):
                return compared, found
            if isinstance(found, numerics.Comparison):
                compared += 1
                if not found.ok:
                    return compared, Fault("incorrect", f"{ROUNDED}: {found.reason} (at {case.label}, family {family})")
        return compared, None

    def again(
        self, near: Sequence[tuple[ShapeCase, str]], artifacts: Mapping[str, bytes], patience: Patience
    ) -> Fault | None:
        """Passes near the limit, on further draws of their families. An honest kernel may miss a limit once, as limits
        follow from what the op happens to err; one that misses most of them passed by luck."""
        for case, family in near[:MOST_AGAIN]:
            missed: list[Fault] = []
            for seed in range(1, AGAIN + 1):
                patience.cut(EXECUTE_S)
                with patience.spared():
                    held = self.references.afresh(case, family, seed)
                made = self._run("execute", _on_chip(None), artifacts[case.label], held, patience.cut(EXECUTE_S))
                fault = made if isinstance(made, Fault) else self._compare(case, family, held, made, Tally())
                missed += [fault] if fault is not None else []
            if len(missed) > AGAIN // 2:
                text = f"passed once near its limit, and missed it on {len(missed)} of {AGAIN} further draws"
                return replace(missed[0], message=f"{missed[0].message} (at {case.label}, family {family}: {text})")
        return None

    def replay(self, case: ShapeCase, artifact: bytes, family: str, patience: Patience) -> Fault | None:
        """Ghost replay: with the kernels' results replaced, the output must come out wrong, or the work is done
        elsewhere. Nothing is asked where the op's own output cannot be judged on this family."""
        held = self.references.get(case, family)
        if not numerics.judges(held.standard):
            return None
        for fill, word, whole in GHOSTS:
            ghost = {"fill": str(fill), "whole": whole}
            made = self._run("ghost", ghost, artifact, held, patience.cut(EXECUTE_S))
            if isinstance(made, Fault):
                return made
            if not numerics.turned(made, held.standard):
                text = f"the output is right even with {word} in place of what the kernels give"
                return Fault("work_outside_kernel", f"{text}: it is computed outside them (at {case.label})")
        return None

    def early(self, case: ShapeCase, artifact: bytes, family: str, patience: Patience) -> Fault | None:
        """With copies that land when they are started: a chip may land them at any time up to their wait, so what is
        right at the wait must be right at the start."""
        held = self.references.get(case, family)
        made = self._run("execute", _on_chip(None, lazy=False), artifact, held, patience.cut(EXECUTE_S))
        found = made if isinstance(made, Fault) else numerics.hold(made, held.standard)
        if isinstance(found, numerics.Skip) or (isinstance(found, numerics.Comparison) and found.ok):
            return None
        if isinstance(found, Fault) and found.code != "incorrect":
            return found
        text = "right where copies land at their wait, wrong where they land at their start: memory is used meanwhile"
        why = found.message if isinstance(found, Fault) else found.reason
        return Fault("race", f"{text} (at {case.label})", why)

    def production(self, case: ShapeCase, artifact: bytes, patience: Patience) -> tuple[str, Fault | None]:
        """The artifact of a shape of any size, run whole: what was done, in words for the report, and the fault.

        What this machine cannot hold, or not in time, is no fault of the kernel; the words say so.
        """
        try:
            patience.cut(math.inf)
            held = self.references.production(case, patience)
            how = {**_on_chip(None), "rows": held.rows}
            made = self._run("execute", how, artifact, held, patience.cut(math.inf))
        except Expired as expired:
            return f"{case.label}: not run, {expired}", None
        except (WorkerTimeout, WorkerDied, WorkerError, WireError) as error:
            return f"{case.label}: not run, {' '.join(str(error).split())[:150]}", None
        if isinstance(made, Fault):
            return f"{case.label}: not run, {made.message}", made if made.code == "incorrect" else None
        found = numerics.hold(made, held.standard)
        if isinstance(found, numerics.Skip):
            return f"{case.label}: not judged, {found.reason}", None
        count = sum(a.size for a in made)
        share = "sampled" if any(held.rows or ()) else "run whole"
        text = f"{case.label}: {share}, {count} elements compared, worst error {found.margin:.2g} of its limit"
        fault = None if found.ok else Fault("incorrect", f"{found.reason} (at {case.label}, as it is)")
        return text, fault

    def _compare(self, case: ShapeCase, family: str, held: Held, made: list[Any], tally: Tally) -> Fault | None:
        found = numerics.hold(made, held.standard)
        if isinstance(found, numerics.Skip):
            tally.skipped = [*(tally.skipped or []), family]
            return None
        tally.compared += 1
        tally.margin = max(tally.margin, found.margin)
        tally.notes = {*(tally.notes or ()), *found.flags}
        if found.ok:
            tally.near += [(case, family)] if found.margin > numerics.NEAR else []
            return None
        return Fault("incorrect", found.reason, f"shape {case.label} ({case.inputs}), input family {family}")

    def _run(
        self, op: str, how: dict[str, Any], artifact: bytes, held: Held, timeout_s: float
    ) -> list[np.ndarray[Any, Any]] | Fault:
        specs, blobs = wire.pack(held.arguments)
        worker = self._pool.keep("runner")
        try:
            result, data = worker.call(op, {**how, "arrays": specs}, [artifact, *blobs], timeout_s=timeout_s)
        except WorkerTimeout:
            return Fault("timeout", f"the kernel did not end within {timeout_s:.0f} s on the CPU")
        except WorkerError as error:
            return Fault("unsupported_feature", f"the artifact could not be run here: {error}", error.trace)
        except (WorkerDied, WireError) as error:
            return Fault("unsupported_feature", f"running the artifact ended its process: {error}")
        if result.get("fault"):
            return Fault(result["fault"]["code"], result["fault"]["message"])
        return wire.unpack(result["arrays"], data)


def _on_chip(split: int | None, *, lazy: bool = True) -> dict[str, Any]:
    """How the artifact is run: as the chip would, its steps dealt to two cores along this parallel axis, and copies
    that land at their wait."""
    return {"split": split, "mxu": "bf16", "lazy": lazy}

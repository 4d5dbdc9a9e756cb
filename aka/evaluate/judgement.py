"""One candidate before the judge: its gates in order, stopping at the first that it fails.

The exporter process lives as long as the judgement: the gates ask it for further shapes once the production artifact
has told which ones show the grid at work.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aka.errors import WorkerDied, WorkerTimeout
from aka.evaluate import interpret, light, manysteps, static
from aka.evaluate.client import PlannerClient, small_sizes
from aka.evaluate.correctness import FEW, Checker, Fault, Tally, families_for
from aka.evaluate.exports import Exports, Failed
from aka.evaluate.patience import Beside, Expired, Patience, Unwanted
from aka.evaluate.performance import PROFILE_S, Meter
from aka.evaluate.pool import Pool, WorkerError
from aka.types import (
    Candidate,
    Chip,
    Evaluation,
    GateResult,
    Profile,
    ShapeCase,
    Timing,
    Workload,
    geomean,
)

COMPILE_S = 120.0
LARGE_BYTES = 32 << 20
"""Above this the many-step shape is run on two families of inputs, not three."""
VMEM_SLACK = 1.1
"""Arithmetic from block shapes may exceed what the compiler allocates by padding; only a clear excess is a fault."""
LIGHT = 0.98
"""A time may be this share of the workload's speed of light before it is suspicious: the clocks are rounded."""
SLOWER = "slower"
MESSAGE_CHARS, EVIDENCE_CHARS = 600, 4000


@dataclass
class Judgement:
    """`final` adds a held-out shape, every family at every shape, and `whole_s` seconds for the production shapes.
    `bar_us` is the time to beat; `skipped` gates are left out (a profile needs no correctness); `progress` is told each
    gate's name; `compiled` holds the floors (us) of artifacts that the chip's compiler has accepted, by hash.

    The meter is another process: it works beside the compile and correctness gates. What decides doesn't depend on who
    ends first: the first gate that fails, but before the correctness gate stands whether the bar is missed.
    """

    pool: Pool
    client: PlannerClient
    checker: Checker
    meter: Meter
    workload: Workload
    chip: Chip
    candidate: Candidate
    final: bool
    bar_us: float | None = None
    whole_s: float = 300.0
    static_gate: bool = True
    skipped: frozenset[str] = frozenset()
    progress: Callable[[str], None] = lambda gate: None
    compiled: dict[str, float] = field(default_factory=dict)
    patience: Patience = field(default_factory=Patience)
    gates: list[GateResult] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    _made: Exports = field(init=False)
    _floors: list[float] = field(default_factory=list)

    def run(self, sandbox: str) -> Evaluation:
        """Every gate, or up to the first that fails. Raises SandboxError only for the machinery's own faults."""
        if self._gate("static", self._static):
            with self.pool.borrow("exporter") as worker:
                loops = "while" in self.workload.primitives
                self._made = Exports(self.pool, worker, self.chip.name, self.candidate.code, self.patience, loops)
                self._with_exporter()
        timed = all(g.passed or g.code == SLOWER for g in self.gates)
        return Evaluation(
            candidate_id=self.candidate.id,
            chip=self.chip.name,
            gates=tuple(self.gates),
            timings=self._timings() if timed else (),
            profiles=tuple(self.profiles) if timed and not self._is_hopeless() else (),
            sandbox=sandbox,
        )

    def _timings(self) -> tuple[Timing, ...]:
        """Of a hopeless candidate its floors: they keep it behind, and name themselves."""
        made = [(p.shape, p.estimated_us, p.source, p.confidence) for p in self.profiles]
        if self._is_hopeless():
            floors = zip(self.workload.shapes, self._floors, strict=True)
            made = [(case.label, us, "estimated", "floor") for case, us in floors]
        return tuple(Timing(self.chip.name, *m) for m in made)

    def _with_exporter(self) -> None:
        steps = {"export": self._export, "structure": self._structure, "vmem": self._vmem}
        if all(self._gate(name, step) for name, step in steps.items()):
            with Beside(self._timed, self._end) as meter:
                self._with_meter(meter)

    def _with_meter(self, meter: Beside[GateResult]) -> None:
        if not self._gate("compile", self._compile):
            return
        if self._is_hopeless():
            self.gates.append(_answered("performance", self._floor))
            return
        checked = None if "correctness" in self.skipped else self._checked()
        failed = checked is not None and not checked.passed
        if not failed or self.bar_us is not None:
            self.progress("performance")
            timed = meter.result()
            if timed.code == SLOWER:
                checked, failed = None, False
        self.gates += [checked] if checked is not None else []
        self.gates += [timed] if not failed else []

    def _checked(self) -> GateResult | None:
        """The correctness gate's answer, or None if it was left because the candidate is too slow."""
        self.progress("correctness")
        try:
            return _answered("correctness", self._correctness)
        except Unwanted:
            return None

    def _timed(self) -> GateResult:
        """In a thread beside the others: the performance gate's answer."""
        made = _answered("performance", self._performance)
        if made.code == SLOWER:
            self.patience.stop()
        return made

    def _end(self) -> None:
        self.patience.stop()
        self.meter.end()

    def _gate(self, name: str, step: Callable[[], str]) -> bool:
        self.progress(name)
        made = _answered(name, step)
        self.gates.append(made)
        return made.passed

    def _static(self) -> str:
        found = static.problems(self.candidate.code) if self.static_gate else []
        if found:
            raise Failed(Fault("static_reject", found[0], "\n".join(found[:20])))
        return ""

    def _export(self) -> str:
        self._made.export([*self.workload.shapes, *self.workload.test_shapes])
        return ""

    def _structure(self) -> str:
        for case in [*self.workload.shapes, *self.workload.test_shapes]:
            self._made.hold_to_rules(case)
        kernels = self._made.facts(self.workload.primary.label).kernels
        return ", ".join(f"{k.name} grid {list(k.grid)}" for k in kernels)

    def _vmem(self) -> str:
        """Prune by arithmetic what the compiler would refuse after a second or two."""
        worst = 0
        for case in self.workload.shapes:
            for kernel in self._made.facts(case.label).kernels:
                limit = kernel.vmem_limit_bytes or self.chip.default_scoped_vmem_bytes
                worst = max(worst, kernel.vmem_bytes)
                if kernel.vmem_bytes > VMEM_SLACK * limit:
                    text = f"{kernel.name} needs {kernel.vmem_bytes / 2**20:.1f} MiB of VMEM by its block shapes"
                    raise Failed(Fault("compile_error", f"{text}; its limit is {limit / 2**20:.0f} MiB (scoped vmem)"))
        return f"{worst / 2**20:.1f} MiB by block shapes"

    def _compile(self) -> str:
        for case in self.workload.shapes:
            artifact = self._made.artifacts[case.label]
            digest = hashlib.sha256(artifact).hexdigest()
            if digest not in self.compiled:
                self.compiled[digest] = self._accepted(artifact)
            self._floors.append(self.compiled[digest])
        return f"accepted by the compiler for {self.chip.name}"

    def _accepted(self, artifact: bytes) -> float:
        timeout_s = self.patience.cut(COMPILE_S)
        try:
            result, _ = self.pool.keep("runner").call(
                "compile", {"chip": self.chip.name}, [artifact], timeout_s=timeout_s
            )
        except WorkerTimeout:
            raise Failed(Fault("timeout", f"no compile within {timeout_s:.0f} s")) from None
        except (WorkerDied, WorkerError) as error:
            raise Failed(Fault("compile_error", f"the compiler went down: {error}")) from None
        if not result["ok"]:
            raise Failed(Fault("compile_error", result["message"], result["evidence"]))
        return float(result["floor_us"])

    def _is_hopeless(self) -> bool:
        """Whether bytes and FLOP alone take as long as the time to beat: the simulation would only add to that, and
        XLA's copies around a kernel can take it a minute."""
        if self.bar_us is None or not self._floors:
            return False
        return all(self._floors) and geomean(self._floors) >= self.bar_us

    def _floor(self) -> str:
        us = geomean(self._floors)
        raise Failed(Fault(SLOWER, f"its bytes and FLOP alone take {us:.1f} us, no less than {self.bar_us:.1f}"))

    def _correctness(self) -> str:
        tally = Tally()
        families = families_for(self.workload)
        first, *others = self.workload.test_shapes
        planned = [(first, families), *((case, families if self.final else FEW) for case in others)]
        if self.final and (held_out := self._held_out()):
            planned.append((held_out, families))
        for case, chosen in planned:
            self._check(case, chosen, tally)
        self._replay(first, tally)
        self._exactly(first, tally)
        many, note = manysteps.find(self._made, self.client, self.workload, self.checker.many_steps)
        if many is not None:
            self._check(many, FEW if many.min_bytes <= LARGE_BYTES else FEW[::2], tally)
        self._again(tally)
        self._interpret(many, tally)
        if self.final:
            self._production(tally)
        tally.notes = {*(tally.notes or ()), *([note] if note else []), *self.checker.notes()}
        if not tally.compared:
            text = "the op itself errs too much on every family of inputs: nothing can be judged by it"
            raise Failed(Fault("unsupported_feature", text))
        return tally.summary()

    def _check(self, case: ShapeCase, families: Sequence[str], tally: Tally) -> None:
        fault = self.checker.check(case, self._made.artifacts[case.label], families, tally, self.patience)
        if fault is not None:
            raise Failed(fault)

    def _again(self, tally: Tally) -> None:
        near = [(case, family) for case, family in tally.near if case.min_bytes <= LARGE_BYTES]
        fault = self.checker.again(near, self._made.artifacts, self.patience)
        if fault is not None:
            raise Failed(fault)

    def _interpret(self, many: ShapeCase | None, tally: Tally) -> None:
        """The last of all: it may end the exporter."""
        fault = interpret.check(self._made, self.checker.references, self.workload, many, tally) if self.final else None
        if fault is not None:
            raise Failed(fault)

    def _replay(self, case: ShapeCase, tally: Tally) -> None:
        for look in (self.checker.early, self.checker.replay):
            fault = look(case, self._made.artifacts[case.label], FEW[0], self.patience)
            if fault is not None:
                raise Failed(fault)
        tally.notes = {*(tally.notes or ()), "wrong without its kernels, as it must be"}

    def _exactly(self, case: ShapeCase, tally: Tally) -> None:
        """Nothing but a dot may round as the chip's dots do."""
        if not any(k.narrow_windows for k in self._made.facts(case.label).kernels):
            compared, fault = self.checker.exactly(case, self._made.artifacts[case.label], FEW, self.patience)
            if fault is not None:
                raise Failed(fault)
            if compared:
                tally.notes = {*(tally.notes or ()), "right with exact dots too"}

    def _production(self, tally: Tally) -> None:
        """The very artifacts that are handed back, at the shapes that they are for."""
        patience = Patience(self.whole_s)
        for case in self.workload.shapes:
            told, fault = self.checker.production(case, self._made.artifacts[case.label], patience)
            if fault is not None:
                raise Failed(fault)
            tally.notes = {*(tally.notes or ()), f"production shape {told}"}

    def _held_out(self) -> ShapeCase | None:
        """A small shape that no proposer has been shown."""
        sizes = small_sizes(self.workload.primary.knobs, 3)[2]
        case = self.client.case(self.workload, sizes)
        if case is not None:
            self._made.export([case])
            self._made.hold_to_rules(case)
        return case

    def _performance(self) -> str:
        for case in self.workload.shapes:
            made = self.meter.profile(self._made.artifacts[case.label], case, self.patience.cut(PROFILE_S))
            if isinstance(made, Fault):
                raise Failed(made)
            floor_us, why = light.floor_us(self.workload, case, self.chip)
            if made.estimated_us < LIGHT * floor_us:
                text = f"{made.estimated_us:.1f} us is less than {why} takes"
                raise Failed(Fault("suspicious", f"{text} ({floor_us:.1f} us, at {case.label})"))
            self.profiles.append(made)
        us = geomean([p.estimated_us for p in self.profiles])
        if self.bar_us is not None and us >= self.bar_us:
            text = f"{us:.1f} us is no less than {self.bar_us:.1f}, so its values were not compared"
            raise Failed(Fault(SLOWER, text))
        return ", ".join(f"{p.estimated_us:.1f} us" for p in self.profiles)


def _answered(name: str, step: Callable[[], str]) -> GateResult:
    """A gate's answer; only the machinery's own faults, and Unwanted, are raised."""
    begun = time.monotonic()
    try:
        message, fault = step(), None
    except Failed as failed:
        message, fault = failed.fault.message, failed.fault
    except Expired as expired:
        message, fault = str(expired), Fault("timeout", str(expired))
    seconds = round(time.monotonic() - begun, 3)
    if fault is None:
        return GateResult(name, True, seconds, None, message)
    sentence, evidence = " ".join(message.split())[:MESSAGE_CHARS], (fault.evidence or message)[:EVIDENCE_CHARS]
    return GateResult(name, False, seconds, fault.code, sentence, evidence)

"""One candidate before the judge: its gates in order, stopping at the first that it fails.

The exporter process lives as long as the judgement: the gates ask it for further shapes once the production artifact
has told which ones show the grid at work.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aka.errors import WireError, WorkerDied, WorkerTimeout
from aka.evaluate import cases, inputs, static, structure
from aka.evaluate.client import PlannerClient, small_sizes
from aka.evaluate.correctness import FEW, Checker, Fault, Tally
from aka.evaluate.facts import ArtifactFacts, KernelFacts
from aka.evaluate.performance import Meter
from aka.evaluate.pool import Pool, Worker, WorkerEnded, WorkerError
from aka.types import Candidate, Chip, Evaluation, GateResult, Profile, ShapeCase, Timing, Workload, decode, encode

EXPORT_S = 60.0
RUNNER_S = 120.0
MAX_TEST_BYTES = 256 << 20
"""Inputs and outputs of the many-step shape: the NumPy machine has to walk through them."""
LARGE_BYTES = 32 << 20
"""Above this the many-step shape is run on two families of inputs, not three."""
VMEM_SLACK = 1.1
"""Arithmetic from block shapes may exceed what the compiler allocates by padding; only a clear excess is a fault."""
MESSAGE_CHARS, EVIDENCE_CHARS = 600, 4000
LOWERING = ("LoweringException", "NotImplementedError", "VerificationError", "MLIRError")


class _Failed(Exception):
    """A gate's answer is no; carries the fault to the one place that turns it into a GateResult."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass
class Judgement:
    """`final` adds a held-out shape and every family at every shape; `skipped` gates are left out (a profile needs no
    correctness); `progress` is told each gate's name."""

    pool: Pool
    client: PlannerClient
    checker: Checker
    meter: Meter
    workload: Workload
    chip: Chip
    candidate: Candidate
    final: bool
    static_gate: bool = True
    skipped: frozenset[str] = frozenset()
    progress: Callable[[str], None] = lambda gate: None
    gates: list[GateResult] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    _artifacts: dict[str, bytes] = field(default_factory=dict)
    _facts: dict[str, ArtifactFacts] = field(default_factory=dict)

    def run(self, sandbox: str) -> Evaluation:
        """Every gate, or up to the first that fails. Raises SandboxError only for the machinery's own faults."""
        if self._gate("static", self._static):
            with self.pool.borrow("exporter") as worker:
                self._with_exporter(worker)
        accepted = all(g.passed for g in self.gates)
        return Evaluation(
            candidate_id=self.candidate.id,
            chip=self.chip.name,
            gates=tuple(self.gates),
            timings=tuple(self.timings) if accepted else (),
            profiles=tuple(self.profiles) if accepted else (),
            sandbox=sandbox,
        )

    def _with_exporter(self, worker: Worker) -> None:
        steps: tuple[tuple[str, Callable[[Worker], str]], ...] = (
            ("export", self._export),
            ("structure", self._structure),
            ("vmem", self._vmem),
            ("compile", self._compile),
            ("correctness", self._correctness),
            ("performance", self._performance),
        )
        for name, step in steps:
            if name in self.skipped or self._gate(name, functools.partial(step, worker)):
                continue
            return

    def _gate(self, name: str, step: Callable[[], str]) -> bool:
        self.progress(name)
        begun = time.monotonic()
        try:
            message, fault = step(), None
        except _Failed as failed:
            message, fault = failed.fault.message, failed.fault
        seconds = round(time.monotonic() - begun, 3)
        if fault is None:
            self.gates.append(GateResult(name, True, seconds, None, message))
            return True
        sentence, evidence = " ".join(message.split())[:MESSAGE_CHARS], (fault.evidence or message)[:EVIDENCE_CHARS]
        self.gates.append(GateResult(name, False, seconds, fault.code, sentence, evidence))
        return False

    def _static(self) -> str:
        found = static.problems(self.candidate.code) if self.static_gate else []
        if found:
            raise _Failed(Fault("static_reject", found[0], "\n".join(found[:20])))
        return ""

    def _export(self, worker: Worker) -> str:
        self._export_cases(worker, [*self.workload.shapes, *self.workload.test_shapes])
        return ""

    def _export_cases(self, worker: Worker, shapes: Sequence[ShapeCase]) -> None:
        """Export the candidate at these shapes, and hold its outputs to the workload's."""
        args = {
            "source": self.candidate.code, "filename": "candidate.py", "chip": self.chip.name,
            "shapes": [encode(s.inputs) for s in shapes], "cpu": False,
        }  # fmt: skip
        result, blobs = self._ask_exporter(worker, args)
        if result.get("fault"):
            code = {"Forbidden": "forbidden_primitive", "Nondeterministic": "nondeterministic_trace"}
            raise _Failed(Fault(code.get(result["fault"], "candidate_error"), str(result.get("message"))))
        if len(result["shapes"]) != len(shapes) or len(blobs) != 2 * len(shapes):
            raise _Failed(Fault("protocol_error", "the exporter answered for other shapes than it was asked for"))
        for case, made, artifact in zip(shapes, result["shapes"], blobs[::2], strict=True):
            if made["outputs"] != encode(case.outputs):
                raise _Failed(Fault("bad_output", _other_output(case, made["outputs"])))
            self._artifacts[case.label] = artifact

    def _ask_exporter(self, worker: Worker, args: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        """Every way in which running a candidate's code can end, as a reason code."""
        try:
            return worker.call("export", args, timeout_s=EXPORT_S, reply_bytes=256 << 20)
        except WorkerError as error:
            raise _Failed(_candidate_error(error)) from None
        except WorkerTimeout:
            raise _Failed(Fault("timeout", f"no export within {EXPORT_S:.0f} s")) from None
        except WireError as error:
            raise _Failed(Fault("protocol_error", str(error))) from None
        except WorkerEnded as error:
            codes = {"resource_limit": "resource_limit", "log_limit": "log_limit", "exit": "protocol_error"}
            raise _Failed(Fault(codes.get(error.reason, "candidate_error"), str(error), error.log[-2000:])) from None

    def _inspect(self, label: str) -> ArtifactFacts:
        if label not in self._facts:
            worker = self.pool.keep("runner")
            try:
                result, _ = worker.call("inspect", {}, [self._artifacts[label]], timeout_s=RUNNER_S)
            except WorkerError as error:
                raise _Failed(
                    Fault("unsupported_feature", f"the artifact cannot be read: {error}", error.trace)
                ) from None
            except (WorkerDied, WorkerTimeout) as error:
                raise _Failed(Fault("unsupported_feature", f"reading the artifact failed: {error}")) from None
            self._facts[label] = decode(ArtifactFacts, result)
        return self._facts[label]

    def _structure(self, worker: Worker) -> str:
        for case in [*self.workload.shapes, *self.workload.test_shapes]:
            self._hold_to_rules(case)
        kernels = self._inspect(self.workload.primary.label).kernels
        return ", ".join(f"{k.name} grid {list(k.grid)}" for k in kernels)

    def _hold_to_rules(self, case: ShapeCase) -> None:
        """The structure rules at one shape: at every shape that is judged, or work could hide at another."""
        if found := structure.fault(self._inspect(case.label)):
            raise _Failed(Fault(found[0], f"{found[1]} (at {case.label})"))

    def _vmem(self, worker: Worker) -> str:
        """Prune by arithmetic what the compiler would refuse after a second or two."""
        worst = 0
        for case in self.workload.shapes:
            for kernel in self._inspect(case.label).kernels:
                limit = kernel.vmem_limit_bytes or self.chip.default_scoped_vmem_bytes
                worst = max(worst, kernel.vmem_bytes)
                if kernel.vmem_bytes > VMEM_SLACK * limit:
                    text = f"{kernel.name} needs {kernel.vmem_bytes / 2**20:.1f} MiB of VMEM by its block shapes"
                    raise _Failed(Fault("compile_error", f"{text}; its limit is {limit / 2**20:.0f} MiB (scoped vmem)"))
        return f"{worst / 2**20:.1f} MiB by block shapes"

    def _compile(self, worker: Worker) -> str:
        for case in self.workload.shapes:
            try:
                result, _ = self.pool.keep("runner").call(
                    "compile", {"chip": self.chip.name}, [self._artifacts[case.label]], timeout_s=RUNNER_S
                )
            except WorkerTimeout:
                raise _Failed(Fault("timeout", f"no compile within {RUNNER_S:.0f} s")) from None
            except (WorkerDied, WorkerError) as error:
                raise _Failed(Fault("compile_error", f"the compiler went down: {error}")) from None
            if not result["ok"]:
                raise _Failed(Fault("compile_error", result["message"], result["evidence"]))
        return f"accepted by the compiler for {self.chip.name}"

    def _correctness(self, worker: Worker) -> str:
        tally = Tally()
        families = inputs.families()
        first, *others = self.workload.test_shapes
        planned = [(first, families), *((case, families if self.final else FEW) for case in others)]
        if self.final and (held_out := self._held_out(worker)):
            planned.append((held_out, families))
        for case, chosen in planned:
            self._check(case, chosen, tally)
        many, note = self._many_steps(worker)
        if many is not None:
            self._check(many, FEW if many.min_bytes <= LARGE_BYTES else FEW[::2], tally)
        tally.notes = {*(tally.notes or ()), *([note] if note else []), *self.checker.notes()}
        if not tally.compared:
            text = "the op itself errs too much on every family of inputs: nothing can be judged by it"
            raise _Failed(Fault("unsupported_feature", text))
        return tally.summary()

    def _check(self, case: ShapeCase, families: Sequence[str], tally: Tally) -> None:
        fault = self.checker.check(case, self._artifacts[case.label], families, tally)
        if fault is not None:
            raise _Failed(fault)

    def _held_out(self, worker: Worker) -> ShapeCase | None:
        """A small shape that no proposer has been shown."""
        sizes = small_sizes(self.workload.primary.knobs, 3)[2]
        case = self.client.case(self.workload, sizes)
        if case is not None:
            self._export_cases(worker, [case])
            self._hold_to_rules(case)
        return case

    def _many_steps(self, worker: Worker) -> tuple[ShapeCase | None, str]:
        """A shape at which every grid axis takes 2 steps (3 on a reduction axis), and a note if there is none."""
        knobs = self.workload.primary.knobs
        production = self._inspect(self.workload.primary.label).kernels
        if not any(n > 1 for k in production for n in k.grid):
            return None, ""
        for small in self.workload.test_shapes:
            if not cases.missing_steps(production, self._inspect(small.label).kernels):
                return None, ""
        missing = ["the workload has no sizes that can be changed"]
        guesses = self._guesses(production)
        while guesses:
            sizes = guesses.pop(0)
            case = self._exported(worker, sizes)
            if case is not None:
                missing = cases.missing_steps(production, self._inspect(case.label).kernels)
                if not missing:
                    return case, ""
            if not guesses and case is not None and (larger := cases.doubled(sizes, knobs)):
                guesses = [larger]
        return None, f"not seen with several steps: {'; '.join(missing)}"

    def _guesses(self, production: Sequence[KernelFacts]) -> list[dict[str, int]]:
        """Many-step sizes that grow from the test shape whose sizes differ most from each other."""
        knobs = self.workload.primary.knobs
        known = [c for c in self.workload.test_shapes if c.knobs.keys() == knobs.keys()]
        if not knobs or not known:
            return cases.multi_step_sizes(production, knobs, small_sizes(knobs, 1)[0]) if knobs else []
        start = max(known, key=lambda c: len(set(c.knobs.values())))
        return cases.multi_step_sizes(production, knobs, start.knobs, self._inspect(start.label).kernels)

    def _exported(self, worker: Worker, sizes: dict[str, int]) -> ShapeCase | None:
        """The workload at these sizes with the candidate exported for it; None if it is too large or does not trace."""
        case = self.client.case(self.workload, sizes)
        if case is None or case.min_bytes > MAX_TEST_BYTES:
            return None
        self._export_cases(worker, [case])
        self._hold_to_rules(case)
        return case

    def _performance(self, worker: Worker) -> str:
        for case in self.workload.shapes:
            made = self.meter.profile(self._artifacts[case.label], case)
            if isinstance(made, Fault):
                raise _Failed(made)
            floor_us = 1e6 * case.min_bytes / self.chip.hbm_bytes_per_s
            if made.estimated_us < 0.98 * floor_us:
                text = f"{made.estimated_us:.1f} us is less than reading the inputs and writing the outputs takes"
                raise _Failed(Fault("suspicious", f"{text} ({floor_us:.1f} us, at {case.label})"))
            self.profiles.append(made)
            self.timings.append(Timing(self.chip.name, case.label, made.estimated_us, made.source, made.confidence))
        return ", ".join(f"{t.us:.1f} us" for t in self.timings)


def _candidate_error(error: WorkerError) -> Fault:
    """The candidate's own exception, or the Pallas lowering's refusal, or a limit that it hit."""
    text = f"{error.kind}: {error.message}"
    if error.kind in ("MemoryError", "XlaRuntimeError") or "No space left" in text or "File too large" in text:
        return Fault("resource_limit", text, error.trace)
    if error.kind in LOWERING or "Pallas TPU lowering" in text or "Mosaic" in text:
        return Fault("compile_error", text, error.trace)
    return Fault("candidate_error", text, error.trace)


def _other_output(case: ShapeCase, outputs: Any) -> str:
    got = ", ".join(f"{leaf['dtype']}{leaf['shape']}" for leaf in outputs["leaves"])
    return f"returns {got}; the workload returns {case.outputs} (structure included), at {case.label}"

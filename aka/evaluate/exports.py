"""A candidate's artifacts: exported by the one process that runs its Python, and the facts that are read off them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aka.errors import WireError, WorkerDied, WorkerTimeout
from aka.evaluate import structure
from aka.evaluate.correctness import Fault
from aka.evaluate.facts import ArtifactFacts
from aka.evaluate.patience import Patience
from aka.evaluate.pool import Pool, Worker, WorkerEnded, WorkerError
from aka.types import ShapeCase, decode, encode

EXPORT_S = 60.0
INSPECT_S = 120.0
LOWERING = ("LoweringException", "NotImplementedError", "VerificationError", "MLIRError")


class Failed(Exception):
    """A gate's answer is no; carries the fault to the one place that turns it into a GateResult."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass
class Exports:
    """The artifacts of one candidate by the label of their shape. Every method raises Failed for the candidate's own
    faults; `exporter` lives as long as the judgement; `loops`: the op has loops whose trips hang on values."""

    pool: Pool
    exporter: Worker
    chip: str
    code: str
    patience: Patience
    loops: bool = False
    artifacts: dict[str, bytes] = field(default_factory=dict)
    _facts: dict[str, ArtifactFacts] = field(default_factory=dict)

    def export(self, shapes: Sequence[ShapeCase]) -> None:
        """Export the candidate at these shapes, and hold its outputs to the workload's."""
        args = {
            "source": self.code, "filename": "candidate.py", "chip": self.chip,
            "shapes": [encode(s.inputs) for s in shapes], "configs": [s.config for s in shapes], "cpu": False,
        }  # fmt: skip
        result, blobs = self._ask(args)
        if result.get("fault"):
            code = {"Forbidden": "forbidden_primitive", "Nondeterministic": "nondeterministic_trace"}
            raise Failed(Fault(code.get(result["fault"], "candidate_error"), str(result.get("message"))))
        if len(result["shapes"]) != len(shapes) or len(blobs) != 2 * len(shapes):
            raise Failed(Fault("protocol_error", "the exporter answered for other shapes than it was asked for"))
        for case, made, artifact in zip(shapes, result["shapes"], blobs[::2], strict=True):
            if made["outputs"] != encode(case.outputs):
                raise Failed(Fault("bad_output", _other_output(case, made["outputs"])))
            self.artifacts[case.label] = artifact

    def _ask(self, args: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        """Every way in which running a candidate's code can end, as a reason code."""
        timeout_s = min(EXPORT_S, self.patience.cut(EXPORT_S))  # a busy machine is no excuse for an endless loop
        try:
            return self.exporter.call("export", args, timeout_s=timeout_s, reply_bytes=256 << 20)
        except WorkerError as error:
            raise Failed(_candidate_error(error)) from None
        except WorkerTimeout:
            raise Failed(Fault("timeout", f"no export within {timeout_s:.0f} s")) from None
        except WireError as error:
            raise Failed(Fault("protocol_error", str(error))) from None
        except WorkerEnded as error:
            codes = {"resource_limit": "resource_limit", "log_limit": "log_limit", "exit": "protocol_error"}
            raise Failed(Fault(codes.get(error.reason, "candidate_error"), str(error), error.log[-2000:])) from None

    def facts(self, label: str) -> ArtifactFacts:
        if label not in self._facts:
            timeout_s = self.patience.cut(INSPECT_S)
            worker = self.pool.keep("runner")
            try:
                result, _ = worker.call("inspect", {}, [self.artifacts[label]], timeout_s=timeout_s)
            except WorkerError as error:
                raise Failed(
                    Fault("unsupported_feature", f"the artifact cannot be read: {error}", error.trace)
                ) from None
            except (WorkerDied, WorkerTimeout) as error:
                raise Failed(Fault("unsupported_feature", f"reading the artifact failed: {error}")) from None
            self._facts[label] = decode(ArtifactFacts, result)
        return self._facts[label]

    def hold_to_rules(self, case: ShapeCase) -> None:
        """The structure rules at one shape: at every shape that is judged, or work could hide at another."""
        if found := structure.fault(self.facts(case.label), loops=self.loops):
            raise Failed(Fault(found[0], f"{found[1]} (at {case.label})"))


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

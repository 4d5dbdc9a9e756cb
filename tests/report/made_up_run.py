"""A run that never was, event by event: five trials, two of them the best in turn, one dropout, one resume."""

from __future__ import annotations

import hashlib
from typing import Any

from aka.types import (
    ArraySpec,
    Candidate,
    Evaluation,
    Event,
    GateResult,
    Profile,
    RunResult,
    ShapeCase,
    ShapeResult,
    Signature,
    Timing,
    Workload,
    encode,
)

FIRST = b'"""A kernel."""\n\nROWS = 256\n\n\ndef workload(x):\n    return x[:ROWS]\n'
CODE = FIRST.replace(b"256", b"512")
FIRST_SHA, SHA = (hashlib.sha256(code).hexdigest() for code in (FIRST, CODE))


class TwoBlobs:
    """A stand-in for the blob store that knows the sources of the kernels that were best."""

    def get(self, sha: str) -> bytes:
        return {FIRST_SHA: FIRST, SHA: CODE}[sha]


def case(label: str, rows: int) -> ShapeCase:
    array = Signature((ArraySpec((rows, 1024), "float32"),), 0)
    return ShapeCase(label, {"rows": rows}, array, array, 5.0 * rows * 1024, 8 * rows * 1024)


WORKLOAD = Workload(
    "row|softmax", "ops/my op.py", "def workload(x): ...", (case("big", 8192), case("small", 1024)),
    (case("tiny", 16),), {"exp": 1}, (), ("x",),
)  # fmt: skip


def profile(shape: str, us: float, **more: Any) -> Profile:
    case = next(case for case in WORKLOAD.shapes if case.label == shape)
    fields: dict[str, Any] = {
        "cycles": us * 940, "hbm_bytes": case.min_bytes, "bound": "hbm", "roofline_fraction": 0.91,
        "slots": {"vld": 0.62, "vst": 0.31, "eup": 0.2, "mxu": 0.0}, "spills": 0, "fills": 0, "vmem_bytes": 4 * 2**20,
    }  # fmt: skip
    return Profile("v5e", shape, "estimated", "exact loop", us, **{**fields, **more})


def accepted(candidate_id: str, big: float, small: float, confidence: str = "exact loop", **more: Any) -> Evaluation:
    gates = tuple(GateResult(gate, True, 0.5) for gate in ("static", "export", "compile", "correctness"))
    timings = tuple(Timing("v5e", shape, us, "estimated", confidence) for shape, us in (("big", big), ("small", small)))
    profiles = (profile("big", big, **more), profile("small", small, **more))
    return Evaluation(candidate_id, "v5e", gates, timings, profiles, "bwrap")


def rejected(candidate_id: str, gate: str, code: str, message: str, evidence: str = "") -> Evaluation:
    return Evaluation(
        candidate_id,
        "v5e",
        (GateResult("static", True, 0.1), GateResult(gate, False, 0.2, code, message, evidence)),
    )


def trial(index: int, evaluation: Evaluation, **params: Any) -> tuple[str, dict[str, Any]]:
    candidate = Candidate(
        "", "softmax by rows,\nin one pass", "catalog:kernel-softmax", family="softmax", params=params
    )
    data = {"index": index, "candidate": encode(candidate), "code": SHA, "evaluation": encode(evaluation)}
    return "trial", {**data, "seconds": 2.25, "speedup": None}


BASELINE = accepted("baseline", 100.0, 16.0, "floor", hbm_bytes=201326592, cycles=None, slots={}, spills=None)
TOO_BIG = "needs 140.0M of VMEM | limit 128.0M"
PAIRS: list[tuple[str, dict[str, Any]]] = [
    (
        "run_started",
        {
            "workload": encode(WORKLOAD),
            "chip": "v5e",
            "seed": 7,
            "settings": {"proposer": "offline", "max_trials": 5, "max_minutes": 10.0, "dropout": "both", "patience": 2},
            "versions": {"jax": "0.10.2", "aka": "0.1.0"},
            "sandbox": "bwrap",
            "op_path": "ops/my op.py",
        },
    ),
    ("baseline", {"evaluation": encode(BASELINE)}),
    (
        "retrieved",
        {
            "generation": 0,
            "query": "softmax exp reduce_max",
            "passages": [
                {"doc_id": "kernel-softmax", "title": "Softmax <by rows>", "score": 0.8123},
                {"doc_id": "note-vmem", "title": "What fits in VMEM", "score": 0.4},
            ],
        },
    ),
    trial(0, rejected("c0", "compile", "vmem_oom", TOO_BIG, "\x1b[31mRESOURCE_EXHAUSTED\x1b[0m\n```\nend"), rows=4096),
    trial(1, accepted("c1", 50.0, 8.0), rows=256),
    ("best", {"trial": 1, "candidate_id": "c1", "us": 20.0, "speedup": 2.0, "code": FIRST_SHA, "file": FIRST_SHA}),
    trial(2, rejected("c2", "compile", "vmem_oom", TOO_BIG), rows=2048),
    trial(3, rejected("c3", "correctness", "wrong_result", "row 3 differs"), rows=100),
    (
        "dropout",
        {"generation": 1, "trigger": "no gain in 2 trials", "mode": "both", "seed": 7, "masked": [0, 2], "fresh": True},
    ),
    ("interrupted", {"signal": "SIGINT"}),
    ("resumed", {"from_seq": 10}),
    ("retrieved", {"generation": 1, "query": "hbm bound", "passages": []}),
    trial(4, accepted("c4", 40.0, 6.4), rows=512),
    ("best", {"trial": 4, "candidate_id": "c4", "us": 16.0, "speedup": 2.5, "code": SHA, "file": SHA}),
    ("final_check", {"candidate_id": "c4", "evaluation": encode(accepted("c4", 40.0, 6.4))}),
]
RESULT = RunResult(
    "improved", "v5e", "estimated", "floor", "unverified", 40.0, 16.0, 2.5, 0.91,
    (
        ShapeResult("big", 100.0, 40.0, 2.5, "exact loop", "floor"),
        ShapeResult("small", 16.0, 6.4, 2.5, "exact loop", "floor"),
    ),
    5, "5 trials are done", "runs/20260101-000000-abcd/best.py", "20260101-000000-abcd", "bwrap", {"jax": "0.10.2"},
)  # fmt: skip
FINISHED = ("finished", {"result": encode(RESULT)})


def events(*pairs: tuple[str, dict[str, Any]]) -> list[Event]:
    return [Event(seq, type, data, float(seq)) for seq, (type, data) in enumerate(pairs)]

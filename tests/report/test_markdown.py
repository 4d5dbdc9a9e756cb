"""The report of a made-up run against a golden file; `python tests/report/test_markdown.py` writes the file anew."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aka.errors import JournalCorrupt, UsageError
from aka.report import markdown, result_json
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
    decode,
    encode,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "report.md"
CODE = b'"""A kernel."""\n\n\ndef workload(x):\n    return x\n'
SHA = hashlib.sha256(CODE).hexdigest()


class OneBlob:
    """A stand-in for the blob store that knows the best kernel's source only."""

    def get(self, sha: str) -> bytes:
        return {SHA: CODE}[sha]


def _case(label: str, rows: int) -> ShapeCase:
    array = Signature((ArraySpec((rows, 1024), "float32"),), 0)
    return ShapeCase(label, {"rows": rows}, array, array, 5.0 * rows * 1024, 8 * rows * 1024)


WORKLOAD = Workload(
    "row|softmax", "ops/my op.py", "def workload(x): ...", (_case("big", 8192), _case("small", 1024)),
    (_case("tiny", 16),), {"exp": 1}, (), ("x",),
)  # fmt: skip


def _profile(shape: str, us: float, **more: Any) -> Profile:
    case = next(case for case in WORKLOAD.shapes if case.label == shape)
    fields: dict[str, Any] = {
        "cycles": us * 940, "hbm_bytes": case.min_bytes, "bound": "hbm", "roofline_fraction": 0.91,
        "slots": {"vld": 0.62, "vst": 0.31, "eup": 0.2, "mxu": 0.0}, "spills": 0, "fills": 0, "vmem_bytes": 4 * 2**20,
    }  # fmt: skip
    return Profile("v5e", shape, "estimated", "exact loop", us, **{**fields, **more})


def _accepted(candidate_id: str, big: float, small: float, confidence: str = "exact loop", **more: Any) -> Evaluation:
    gates = tuple(GateResult(gate, True, 0.5) for gate in ("static", "export", "compile", "correctness"))
    timings = tuple(Timing("v5e", shape, us, "estimated", confidence) for shape, us in (("big", big), ("small", small)))
    profiles = (_profile("big", big, **more), _profile("small", small, **more))
    return Evaluation(candidate_id, "v5e", gates, timings, profiles, "bwrap")


def _rejected(candidate_id: str, gate: str, code: str, message: str, evidence: str = "") -> Evaluation:
    return Evaluation(
        candidate_id,
        "v5e",
        (GateResult("static", True, 0.1), GateResult(gate, False, 0.2, code, message, evidence)),
    )


def _trial(index: int, evaluation: Evaluation, **params: Any) -> tuple[str, dict[str, Any]]:
    candidate = Candidate("", "softmax by rows,\nin one pass", "catalog", family="softmax", params=params)
    data = {"index": index, "candidate": encode(candidate), "code": SHA, "evaluation": encode(evaluation)}
    return "trial", {**data, "seconds": 2.25, "speedup": None}


BASELINE = _accepted("baseline", 100.0, 16.0, "floor", hbm_bytes=201326592, cycles=None, slots={}, spills=None)
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
    _trial(
        0, _rejected("c0", "compile", "vmem_oom", TOO_BIG, "\x1b[31mRESOURCE_EXHAUSTED\x1b[0m\n```\nend"), rows=4096
    ),
    _trial(1, _accepted("c1", 50.0, 8.0), rows=256),
    ("best", {"trial": 1, "candidate_id": "c1", "us": 20.0, "speedup": 2.0, "code": SHA, "file": SHA}),
    _trial(2, _rejected("c2", "compile", "vmem_oom", TOO_BIG), rows=2048),
    _trial(3, _rejected("c3", "correctness", "wrong_result", "row 3 differs"), rows=100),
    (
        "dropout",
        {"generation": 1, "trigger": "no gain in 2 trials", "mode": "both", "seed": 7, "masked": [0, 2], "fresh": True},
    ),
    ("interrupted", {"signal": "SIGINT"}),
    ("resumed", {"from_seq": 10}),
    ("retrieved", {"generation": 1, "query": "hbm bound", "passages": []}),
    _trial(4, _accepted("c4", 40.0, 6.4), rows=512),
    ("best", {"trial": 4, "candidate_id": "c4", "us": 16.0, "speedup": 2.5, "code": SHA, "file": SHA}),
    ("final_check", {"candidate_id": "c4", "evaluation": encode(_accepted("c4", 40.0, 6.4))}),
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


def _events(*pairs: tuple[str, dict[str, Any]]) -> list[Event]:
    return [Event(seq, type, data, float(seq)) for seq, (type, data) in enumerate(pairs)]


def test_the_whole_page_is_the_golden_one() -> None:
    assert markdown(_events(*PAIRS, FINISHED), OneBlob()) == GOLDEN.read_text(encoding="utf-8")


def test_an_estimate_is_never_called_measured() -> None:
    page = markdown(_events(*PAIRS, FINISHED), OneBlob())
    assert "**estimated for v5e, hardware: unverified.**" in page
    assert "measured" not in page
    measured = replace(RESULT, source="measured", hardware="TPU v5 lite")
    page = markdown(_events(*PAIRS, ("finished", {"result": encode(measured)})), OneBlob())
    assert "**measured on TPU v5 lite.**" in page
    assert "is an estimate" not in page


def test_a_run_that_is_not_finished_says_so() -> None:
    page = markdown(_events(*PAIRS[:6]), OneBlob())
    assert page.startswith("# row\\|softmax on v5e: not finished; the best so far is 2.00x over XLA\n")
    assert "2 trials so far" in page
    assert "| `big` | 100 µs | 50 µs | 2.00x | floor | exact loop |" in page
    page = markdown(_events(PAIRS[0]), OneBlob())
    assert "not finished, no improvement yet" in page
    assert "XLA's own time is not known yet." in page


def test_a_run_without_an_improvement_says_so() -> None:
    none = replace(RESULT, status="no_improvement", best_us=None, speedup=None, best_path=None)
    page = markdown(_events(*PAIRS[:4], ("finished", {"result": encode(none)})), OneBlob())
    assert "no kernel was found that beats XLA" in page.splitlines()[0]
    assert "None: no candidate passed every gate" in page
    assert "best.py" not in page


def test_a_best_that_failed_its_final_check_is_not_the_best() -> None:
    failed = {"candidate_id": "c4", "evaluation": encode(_rejected("c4", "correctness", "wrong_result", "held out"))}
    page = markdown(_events(*PAIRS[:-1], ("final_check", failed)), OneBlob())
    assert "the best so far is 2.00x" in page
    assert "| 1 (best) |" in page


def test_foreign_text_cannot_break_the_page() -> None:
    evil = "a | b\n\n# Verified on hardware\u202e <script>"
    page = markdown(_events(PAIRS[0], _trial(0, _rejected("c", "compile", evil, evil, evil), n=evil)), OneBlob())
    assert "\n# Verified" not in page.replace("```\na | b\n\n# Verified on hardware <script>\n```", "")
    assert "\u202e" not in page


def test_what_cannot_be_reported() -> None:
    with pytest.raises(UsageError, match="before it began"):
        markdown([], OneBlob())
    with pytest.raises(JournalCorrupt):
        markdown(_events(PAIRS[0], ("trial", {"index": 0})), OneBlob())


def test_result_json_has_the_fields_of_the_command() -> None:
    fields = result_json(RESULT)
    assert list(fields) == [
        "status", "chip", "source", "confidence", "hardware", "baseline_us", "best_us", "speedup", "roofline_fraction",
        "shapes", "trials", "stop_reason", "best_path", "run", "sandbox", "versions",
    ]  # fmt: skip
    assert fields["shapes"][0]["best_us"] == 40.0
    assert decode(RunResult, fields) == RESULT


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(markdown(_events(*PAIRS, FINISHED), OneBlob()), encoding="utf-8")

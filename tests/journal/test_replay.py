"""Folding events into the state of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aka.errors import JournalCorrupt, UsageError
from aka.journal import Best, BlobStore, Dropout, fold
from aka.types import Event, RunResult, decode, encode

MakeTrial = Callable[[int, float, str], dict[str, Any]]
RESULT = RunResult(
    "improved", "v5e", "estimated", "exact loop", "unverified", 10.0, 4.0, 2.5, 0.5, (), 2, "trials", "b", "r", "s", {}
)


def _events(*pairs: tuple[str, dict[str, Any]], step_s: float = 1.0, start_s: float = 100.0) -> list[Event]:
    return [Event(seq, type, data, start_s + step_s * seq) for seq, (type, data) in enumerate(pairs)]


def test_a_whole_run(tmp_path: Path, started: dict[str, Any], trial: MakeTrial) -> None:
    blobs = BlobStore(tmp_path)
    shas = [blobs.put(f"code {index}".encode()) for index in range(2)]
    best = {"trial": 1, "candidate_id": "c1", "us": 4.0, "speedup": 2.5, "code": shas[1], "file": shas[1]}
    drop = {"generation": 1, "trigger": "stall", "mode": "both", "seed": 5, "masked": [0], "fresh": True}
    events = _events(
        ("run_started", started),
        ("baseline", {"evaluation": trial(0, 10.0, "")["evaluation"]}),
        ("retrieved", {"generation": 0, "query": "softmax", "passages": [{"doc_id": "d", "title": "t", "score": 1.0}]}),
        ("trial", trial(1, 4.0, shas[1])),
        ("trial", trial(0, 5.0, shas[0])),
        ("best", {**best, "trial": 0}),
        ("best", best),
        ("dropout", drop),
        ("final_check", {"candidate_id": "c1", "evaluation": trial(1, 4.0, "")["evaluation"]}),
        ("finished", {"result": encode(RESULT)}),
    )
    state = fold(events, blobs)
    assert (state.workload.name, state.chip, state.seed, state.op_path) == ("softmax", "v5e", 3, "op.py")
    assert state.baseline is not None
    assert state.baseline.us == pytest.approx(10.0)
    assert [(t.index, t.candidate.code, t.evaluation.us) for t in state.trials] == [
        (0, "code 0", pytest.approx(5.0)),
        (1, "code 1", pytest.approx(4.0)),
    ]
    assert state.trials[0].candidate.params == {"block": 0}
    assert state.best == Best(**best)
    assert state.dropouts == (Dropout(1, "stall", "both", 5, (0,), True),)
    assert (state.generation, state.masked) == (1, frozenset({0}))
    assert state.retrievals[0].doc_ids == ("d",)
    assert state.final_checks[0][0] == "c1"
    assert state.finished == RESULT == decode(RunResult, encode(RESULT))
    assert state.elapsed_s == 9.0


def test_trials_started_without_an_end_are_counted(tmp_path: Path, started: dict[str, Any], trial: MakeTrial) -> None:
    sha = BlobStore(tmp_path).put(b"code")
    starts = [("trial_started", {"index": index}) for index in (0, 1, 2, 2)]
    state = fold(_events(("run_started", started), *starts, ("trial", trial(0, 5.0, sha))), BlobStore(tmp_path))
    assert state.unfinished == {1: 1, 2: 2}
    assert (state.best, state.baseline, state.generation, state.finished) == (None, None, 0, None)


def test_time_between_sessions_does_not_count(tmp_path: Path, started: dict[str, Any]) -> None:
    first = _events(("run_started", started), ("interrupted", {"signal": "SIGINT"}), step_s=7.0)
    second = _events(("resumed", {"from_seq": 2}), ("tick", {}), step_s=5.0, start_s=9_999.0)
    assert fold(first + second, BlobStore(tmp_path)).elapsed_s == 12.0


def test_a_finished_run_that_was_resumed_is_not_finished(tmp_path: Path, started: dict[str, Any]) -> None:
    ended = ("finished", {"result": encode(RESULT)})
    assert fold(_events(("run_started", started), ended), BlobStore(tmp_path)).finished == RESULT
    resumed = _events(("run_started", started), ended, ("resumed", {"from_seq": 2}))
    assert fold(resumed, BlobStore(tmp_path)).finished is None


def test_a_best_that_fails_its_final_check_is_best_no_more(
    tmp_path: Path, started: dict[str, Any], trial: MakeTrial
) -> None:
    first = {"trial": 0, "candidate_id": "c0", "us": 4.0, "speedup": 2.5, "code": "", "file": ""}
    second = {**first, "trial": 1, "candidate_id": "c1"}
    failed = trial(1, 4.0, "")["evaluation"]
    failed["gates"][1] |= {"passed": False, "code": "wrong_result"}
    events = [("run_started", started), ("best", first), ("best", second)]
    checked = [*events, ("final_check", {"candidate_id": "c1", "evaluation": failed})]
    assert fold(_events(*events), BlobStore(tmp_path)).best == Best(**second)
    assert fold(_events(*checked), BlobStore(tmp_path)).best == Best(**first)


@pytest.mark.parametrize("events", [[], _events(("baseline", {}))])
def test_a_run_that_never_began(tmp_path: Path, events: list[Event]) -> None:
    with pytest.raises(UsageError, match="stopped before it began"):
        fold(events, BlobStore(tmp_path))


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("trial", {}),
        ("trial", {"index": 0, "code": "0" * 64}),
        ("trial_started", {"index": None}),
        ("best", {"trial": 1}),
        ("dropout", {"masked": 3}),
        ("finished", {"result": {"status": "maybe"}}),
    ],
)
def test_an_event_that_does_not_fit_is_named(tmp_path: Path, started: dict[str, Any], type: str, data: Any) -> None:
    with pytest.raises(JournalCorrupt):
        fold(_events(("run_started", started), (type, data)), BlobStore(tmp_path))

"""A run in one row, two side by side, and a run as JSON."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace

import pytest
from made_up_run import CODE, FINISHED, FIRST, PAIRS, RESULT, events, rejected, trial

from aka.report import STATUSES, compare, gather, run_json, summarise, words
from aka.report.facts import Facts
from aka.types import encode


def finished() -> Facts:
    return gather(events(*PAIRS, FINISHED))


def test_the_row_of_a_finished_run() -> None:
    row = summarise(finished(), "one", running=False)
    assert (row.run, row.op, row.chip, row.status, row.source) == ("one", "row|softmax", "v5e", "improved", "estimated")
    assert (row.baseline_us, row.best_us, row.speedup, row.trials) == (pytest.approx(40.0), 16.0, 2.5, 5)
    assert (row.begun, row.stop_reason) == ("1970-01-01T00:00:00+00:00", "5 trials are done")


def test_the_row_of_a_run_that_goes_on_has_the_best_so_far() -> None:
    row = summarise(gather(events(*PAIRS[:6])), "one", running=True)
    assert (row.status, row.best_us, row.trials, row.stop_reason) == ("running", pytest.approx(20.0), 2, "")
    assert row.speedup == pytest.approx(2.0)
    assert summarise(gather(events(PAIRS[0])), "one", running=True).baseline_us is None


def test_the_status() -> None:
    interrupted = next(place for place, pair in enumerate(PAIRS) if pair[0] == "interrupted")
    found = {
        summarise(facts, "", running=running).status
        for facts, running in (
            (finished(), True),
            (gather(events(*PAIRS, ("finished", {"result": encode(replace(RESULT, status="no_improvement"))}))), False),
            (gather(events(*PAIRS)), True),
            (gather(events(*PAIRS)), False),
            (gather(events(*PAIRS[: interrupted + 1])), False),
        )
    }
    assert found == set(STATUSES)


def test_two_runs_side_by_side() -> None:
    a, b = finished(), gather(events(*PAIRS[:6]))
    b = replace(b, seed=8, settings={**b.settings, "extra": 1}, versions={"jax": "0.11.0", "aka": "0.1.0"})
    rows = summarise(a, "one", running=False), summarise(b, "two", running=False)
    found = compare(a, b, rows, (CODE.decode(), FIRST.decode()))
    assert {(d.name, d.a, d.b) for d in found.settings} == {
        ("seed", 7, 8), ("extra", None, 1), ("version of jax", "0.10.2", "0.11.0"),
    }  # fmt: skip
    assert found.gates_a == {"compile": 2, "correctness": 1} and found.gates_b == {"compile": 1}
    assert found.families_a == {"softmax": 5} and found.families_b == {"softmax": 2} and found.same_op
    assert found.code is not None and found.code.startswith("--- one/best.py\n+++ two/best.py\n")
    assert "-ROWS = 512\n+ROWS = 256" in found.code
    assert compare(a, b, rows, (None, "x")).code is None and compare(a, b, rows, ("x", "x")).code == ""


def test_a_kernel_that_was_only_slower_is_counted_apart() -> None:
    facts = gather(events(*PAIRS[:3], trial(1, rejected("c", "performance", "slower", "")), PAIRS[3]))
    assert facts.gates == {"performance, for being no faster than the best or XLA": 1, "compile": 1}


def test_a_run_as_json_is_strict_and_whole() -> None:
    made = json.loads(json.dumps(run_json(finished(), "one", running=False), allow_nan=False))
    assert made["run"] == "one" and made["result"]["speedup"] == 2.5
    assert [(t["index"], t["verdict"], t["gate"]) for t in made["trials"]] == [
        (0, "vmem_oom", "compile"), (1, "ACCEPT", None), (2, "vmem_oom", "compile"),
        (3, "wrong_result", "correctness"), (4, "ACCEPT", None),
    ]  # fmt: skip
    assert made["trials"][1]["us"] == pytest.approx(20.0) and made["trials"][1]["params"] == {"rows": 256}
    assert [step["trial"] for step in made["improvements"]] == [1, 4]
    assert made["resets"][0]["masked"] == [0, 2] and made["resets"][0]["improved"] is True
    assert made["retrieved"][0]["documents"] == ["kernel-softmax", "note-vmem"]
    assert run_json(gather(events(*PAIRS[:3])), "one", running=False)["result"] is None


@pytest.mark.parametrize(("seconds", "said"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7300, "2 h"), (172800, "2 d")])
def test_how_long_ago(seconds: int, said: str) -> None:
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    then = (now - datetime.timedelta(seconds=seconds)).isoformat()
    assert words.ago(then, now) == f"{said} ago"
    assert words.count(seconds, "shape") == f"{seconds} shapes"


@pytest.mark.parametrize(
    ("confidence", "said"),
    [
        ("exact loop", "estimated"),
        ("extrapolated", "estimated"),
        ("bundle count", "estimated from bundle counts"),
        ("data-dependent control flow", "estimated without knowing its loop counts"),
        ("floor", "estimated as a lower bound"),
    ],
)
def test_a_time_that_rests_on_less_than_simulated_cycles_says_so(confidence: str, said: str) -> None:
    assert words.basis("estimated", confidence) == said

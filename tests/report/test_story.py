"""How a search went: what replaced what, and what each reset yielded."""

from __future__ import annotations

from made_up_run import FIRST_SHA, PAIRS, SHA, accepted, events, rejected, trial

from aka.report.story import Look, difference, document_of, look, resets, steps
from aka.types import Candidate, encode


def best(index: int, us: float, code: str) -> tuple[str, dict[str, object]]:
    return "best", {"trial": index, "candidate_id": f"c{index}", "us": us, "speedup": 40 / us, "code": code, "file": ""}


def test_each_step_knows_the_one_before_and_what_had_been_read() -> None:
    first, second = steps(events(*PAIRS))
    assert (first.trial, first.code, first.before, first.generation) == (1, FIRST_SHA, None, 0)
    assert (second.trial, second.code, second.before, second.generation) == (4, SHA, first, 1)
    assert first.look is not None and first.look.rank("note-vmem") == 2 and first.look.rank("other") is None
    assert second.look is not None and second.look.passages == ()


def test_a_best_that_is_written_again_on_a_resume_is_one_step() -> None:
    again = events(*PAIRS, ("resumed", {"from_seq": 1}), best(4, 16.0, SHA))
    assert [step.trial for step in steps(again)] == [1, 4]


def test_a_runner_up_is_no_improvement() -> None:
    failed = ("final_check", {"candidate_id": "c4", "evaluation": encode(rejected("c4", "correctness", "no", "held"))})
    made = steps(events(*PAIRS[:-1], failed, best(1, 20.0, FIRST_SHA)))
    assert [(step.trial, step.demoted) for step in made] == [(1, False), (4, False), (1, True)]


def test_what_a_reset_yields_is_counted_until_the_next() -> None:
    dropped = {"generation": 1, "trigger": "stall", "mode": "mask", "seed": 1, "masked": [0], "fresh": False, "new": 1}
    first, second = resets(
        events(
            best(0, 30.0, SHA),
            ("dropout", dropped),
            trial(1, rejected("c1", "compile", "vmem", "")),
            trial(2, accepted("c2", 40.0, 40.0)),
            trial(3, accepted("c3", 35.0, 35.0)),
            ("dropout", {**dropped, "generation": 2}),
            trial(4, accepted("c4", 20.0, 20.0)),
            best(4, 20.0, SHA),
        )
    )
    assert (first.trials, first.accepted, first.fastest) == ((1, 2, 3), (2, 3), 3)
    assert (first.before_us, first.after_us, first.improved) == (30.0, 30.0, False)
    assert (second.trials, second.before_us, second.after_us, second.improved) == ((4,), 30.0, 20.0, True)


def test_a_reset_before_any_best_and_without_trials() -> None:
    (reset,) = resets(events(next(pair for pair in PAIRS if pair[0] == "dropout")))
    assert (reset.trials, reset.fastest, reset.fastest_us, reset.after_us, reset.improved) == (
        (),
        None,
        None,
        None,
        False,
    )


def test_a_look_keeps_the_order() -> None:
    found = look({"generation": 2, "query": "q", "passages": [{"doc_id": "a", "title": "A", "score": 1.5}]})
    assert found == Look(2, "q", (("a", "A", 1.5),)) and found.rank("a") == 1


def test_the_document_behind_a_candidate() -> None:
    assert document_of(Candidate("", "", "catalog:softmax")) == "softmax"
    assert document_of(Candidate("", "", "file:softmax.py")) == "" == document_of(Candidate("", "", "list"))


def test_a_difference_names_both_sides() -> None:
    assert difference("a\n", "a\n", "one", "two") == ""
    assert difference("a\nb\n", "a\nc\n", "one", "two").splitlines() == [
        "--- one", "+++ two", "@@ -1,2 +1,2 @@", " a", "-b", "+c",
    ]  # fmt: skip

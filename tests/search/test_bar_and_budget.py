"""The loop's bar for candidates (the best time so far), and minutes that hold with the final check in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from standins import (
    CHIP,
    SLOWER,
    WORKLOAD,
    DictStore,
    ListJournal,
    ListProposer,
    ListRetriever,
    TableEvaluator,
    gates,
    profiled,
)

from aka.propose import tuner
from aka.search import memory
from aka.search.budget import Budget, expected_s
from aka.search.dropout import Dropout
from aka.search.loop import Search, symptoms
from aka.types import Candidate, Evaluation, Trial, Workload


@dataclass
class Clock:
    """Tells the time that it was told."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class SlowEvaluator(TableEvaluator):
    """Takes `trial_s` of the clock for a trial, `final_s` for a final check."""

    clock: Clock = field(default_factory=Clock)
    trial_s: float = 60.0
    final_s: float = 80.0

    def evaluate(
        self, workload: Workload, candidate: Candidate, *, final: bool = False, bar_us: float | None = None
    ) -> Evaluation:
        self.clock.now_s += self.final_s if final else self.trial_s
        return super().evaluate(workload, candidate, final=final, bar_us=bar_us)


def search_with(evaluator: TableEvaluator, count: int, budget: Budget) -> Search:
    return Search(
        workload=WORKLOAD, chip=CHIP, proposer=ListProposer(range(count)), evaluator=evaluator,
        retriever=ListRetriever(), journal=ListJournal(), store=DictStore(), budget=budget, dropout=Dropout("off"),
        publish=lambda trial, baseline: "file", retract=lambda: None,
    )  # fmt: skip


def test_each_trial_is_held_to_the_best_time_before_it_and_a_finalist_to_none() -> None:
    evaluator = TableEvaluator({0: 80.0, 1: "incorrect", 2: 50.0, 3: 60.0, 4: 40.0}, strict=True)
    search = search_with(evaluator, 5, Budget(50, 10.0))
    search.run()
    assert evaluator.bars == [None, *map(pytest.approx, [80.0, 80.0, 50.0, 50.0])]
    assert search.journal.of("final_check")[0]["evaluation"]["gates"][0]["passed"]  # type: ignore[attr-defined]
    assert search.best is not None and search.best.index == 4


def test_a_slower_candidate_is_no_success_but_its_time_is_remembered() -> None:
    search = search_with(TableEvaluator({0: 50.0, 1: 60.0}, strict=True), 2, Budget(50, 10.0))
    search.run()
    slower = search.trials[1].evaluation
    assert slower.slower and not slower.accepted and slower.us == pytest.approx(60.0)
    told = search.journal.of("trial")[1]  # type: ignore[attr-defined]
    assert told["speedup"] is None
    record = search.records[1]
    assert (record.outcome, record.us) == ("slower", slower.us)
    assert memory.protect(search.records, 0)[1].protected is False


def test_the_tuner_learns_from_a_slower_candidates_time() -> None:
    """Two records of one parameter, failed ones but for their times: the sampler must tell the two values apart."""
    space = {"b": list(range(8))}
    search = search_with(TableEvaluator({b: 20.0 + 10 * b for b in range(8)}, strict=True), 8, Budget(50, 10.0))
    search.run()
    study, _ = tuner._study(space, search.records, 100.0, 0)
    values = {trial.params["b"]: trial.value for trial in study.trials}
    assert [v for _, v in sorted(values.items())] == sorted(values.values())
    assert len(set(values.values())) == 8


@pytest.mark.parametrize(("trial_s", "final_s"), [(60.0, 80.0), (10.0, 15.0), (100.0, 150.0), (200.0, 100.0)])
def test_minutes_hold_with_the_final_check_in_them(trial_s: float, final_s: float) -> None:
    clock = Clock()
    evaluator = SlowEvaluator({b: 90.0 - b for b in range(80)}, clock=clock, trial_s=trial_s, final_s=final_s)
    budget = Budget(500, 10.0, clock=clock)
    search = search_with(evaluator, 80, budget)
    assert search.run() == "budget of 10 minutes: too little is left for a trial and the final check"
    assert search.journal.of("final_check")  # type: ignore[attr-defined]
    assert budget.whole_s == 90
    assert 600 - 2.5 * trial_s - final_s < clock.now_s + budget.whole_s <= 600


def test_the_first_trial_is_begun_whatever_is_left() -> None:
    clock = Clock(590.0)
    budget = Budget(50, 10.0, clock=clock)
    clock.now_s += 590.0
    assert budget.exhausted([]) is None
    clock.now_s += 10.0
    assert budget.exhausted([]) == "budget of 10 minutes used"


def trials(*told: tuple[float, str | None]) -> Iterator[Trial]:
    for index, (seconds, code) in enumerate(told):
        yield Trial(index, Candidate(str(index), "", "test"), Evaluation(str(index), "v5e", gates(code)), seconds)


@pytest.mark.parametrize(
    ("told", "wanted_s"),
    [
        ([], 0.0),
        ([(40.0, None)], 40 + 60.0),
        ([(40.0, None), (20.0, "slower"), (90.0, "incorrect")], 50 + 60.0),  # a final check is of a kernel that passed
        ([(10.0, "compile_error"), (30.0, "incorrect")], 20 + 30.0),
        ([(90.0, "compile_error"), (6.0, "slower"), (4.0, "slower")], 6 + 9.0),  # one long failure tells of no other
    ],
)
def test_expected_seconds(told: list[tuple[float, str | None]], wanted_s: float) -> None:
    assert expected_s(list(trials(*told))) == wanted_s


def test_being_slower_is_no_symptom_to_look_notes_up_by() -> None:
    """The notes are searched for what bounds the kernel, not for the sentence that says which time it had to beat."""
    evaluation = Evaluation("id", "v5e", SLOWER, (), profiled(0.5))
    trial = Trial(0, Candidate("code", "plan", "list"), evaluation, 1.0)
    assert symptoms([trial], WORKLOAD) == "hbm bound toy"

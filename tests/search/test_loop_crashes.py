"""A search that dies between two events, and what a resume makes of its journal."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from standins import CHIP, WORKLOAD, DictStore, ListJournal, ListProposer, ListRetriever, TableEvaluator

from aka.search.budget import Budget
from aka.search.dropout import Dropout
from aka.search.loop import Search

TABLE: dict[int, float | str] = {0: 80.0, 1: 50.0, 2: 70.0}


@dataclass
class Folder:
    """The place of best.py: which b lies there, if any."""

    best: int | None = None


@dataclass
class Run:
    """A run with candidates b = 0, 1, 2 that can be taken up again from the first `kept` events of its journal."""

    table: dict[int, float | str] = field(default_factory=lambda: dict(TABLE))
    finals: dict[int, str] = field(default_factory=dict)
    folder: Folder = field(default_factory=Folder)
    store: DictStore = field(default_factory=DictStore)
    journal: ListJournal = field(default_factory=ListJournal)

    def search(self) -> Search:
        def publish(trial: object, baseline: object) -> str:
            self.folder.best = trial.candidate.params["b"]  # type: ignore[attr-defined]
            return f"file of {self.folder.best}"

        def retract() -> None:
            self.folder.best = None

        return Search(
            workload=WORKLOAD, chip=CHIP, proposer=ListProposer(range(3)),
            evaluator=TableEvaluator(self.table, finals=self.finals), retriever=ListRetriever(), journal=self.journal,
            store=self.store, budget=Budget(50, 10.0), dropout=Dropout("off"), publish=publish, retract=retract,
        )  # fmt: skip

    def resumed(self, kept: int) -> Search:
        self.journal.lines = self.journal.lines[:kept]
        search = self.search()
        search.replay(self.journal.events())
        return search

    def journaled_best(self) -> int | None:
        made = self.journal.of("best")
        return int(made[-1]["trial"]) if made else None


def events(finals: dict[int, str] | None = None) -> int:
    run = Run(finals=finals or {})
    run.search().run()
    return len(run.journal.lines)


@pytest.mark.parametrize("kept", range(1, events() + 1))
def test_resumed_after_any_event_best_py_is_what_the_journal_calls_the_best(kept: int) -> None:
    run = Run()
    run.search().run()
    search = run.resumed(kept)
    assert run.folder.best == run.journaled_best() == (search.best and search.best.index)
    search.run()
    assert run.folder.best == run.journaled_best() == 1
    assert [d["index"] for d in run.journal.of("trial")] == [0, 1, 2]


@pytest.mark.parametrize("kept", range(1, events({1: "incorrect"}) + 1))
def test_resumed_around_a_failed_final_check_the_runner_up_is_the_best(kept: int) -> None:
    run = Run(finals={1: "incorrect"})
    run.search().run()
    search = run.resumed(kept)
    assert run.folder.best == run.journaled_best() == (search.best and search.best.index)
    search.run()
    assert run.folder.best == run.journaled_best() == 2


def test_a_kernel_that_fails_its_only_final_check_leaves_no_best_py() -> None:
    run = Run(table={0: 80.0, 1: "incorrect", 2: 99.0}, finals={0: "incorrect"})
    search = run.search()
    search.run()
    assert search.best is None and run.folder.best is None
    run.folder.best = 0  # as a crash before the removal would leave it
    assert run.resumed(len(run.journal.lines)).best is None and run.folder.best is None


def test_a_resume_retrieves_what_its_generation_had_retrieved() -> None:
    run = Run()
    run.search().run()
    kept = next(place for place, event in enumerate(run.journal.lines) if event.type == "trial_started")
    run.resumed(kept).run()
    first, again = run.journal.of("retrieved")[:2]
    assert first["generation"] == again["generation"] == 0 and first["passages"] == again["passages"]


def test_trials_that_the_user_interrupts_are_not_held_to_crash() -> None:
    run = Run()
    for _ in range(5):
        search = run.resumed(len(run.journal.lines))
        search.evaluator.interrupt_at = 0  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            search.run()
        run.journal.append("interrupted", {"signal": "SIGINT"})
    search = run.resumed(len(run.journal.lines))
    search.run()
    assert [t.evaluation.verdict for t in search.trials] == ["ACCEPT", "ACCEPT", "ACCEPT"]

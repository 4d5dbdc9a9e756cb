"""The loop on stand-ins: what it journals, what counts as better, when it stops, and that a resume loses nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from standins import (
    CHIP,
    WORKLOAD,
    DictStore,
    ListJournal,
    ListProposer,
    ListRetriever,
    TableEvaluator,
    profiled,
)

from aka.search.budget import Budget
from aka.search.dropout import Dropout
from aka.search.loop import Search
from aka.types import Brief, Candidate, Evaluation, Workload


@dataclass
class Rig:
    evaluator: TableEvaluator
    proposer: ListProposer
    journal: ListJournal = field(default_factory=ListJournal)
    store: DictStore = field(default_factory=DictStore)
    published: list[int | None] = field(default_factory=list)

    def search(self, *, max_trials: int = 50, mode: str = "off", patience: int = 100) -> Search:
        return Search(
            workload=WORKLOAD, chip=CHIP, proposer=self.proposer, evaluator=self.evaluator, retriever=ListRetriever(),
            journal=self.journal, store=self.store, budget=Budget(max_trials, 10.0),
            dropout=Dropout(mode=mode, patience=patience),  # type: ignore[arg-type]
            publish=lambda trial, baseline: str(self.published.append(trial.candidate.params["b"])),
            retract=lambda: self.published.append(None),
        )  # fmt: skip


def test_takes_the_fastest_accepted_kernel_and_stops_when_nothing_is_left() -> None:
    rig = Rig(TableEvaluator({0: 80.0, 1: "incorrect", 2: 50.0, 3: 70.0}), ListProposer(range(4)))
    search = rig.search()
    assert search.run() == "nothing left to try"
    assert search.best is not None and search.best.candidate.params == {"b": 2}
    assert rig.published == [0, 2]
    assert [d["index"] for d in rig.journal.of("trial")] == [0, 1, 2, 3]
    assert rig.journal.of("final_check")[0]["candidate_id"] == search.best.candidate.id


def test_budget_counts_all_trials() -> None:
    rig = Rig(TableEvaluator(dict.fromkeys(range(9), 90.0)), ListProposer(range(9)))
    assert rig.search(max_trials=3).run() == "budget of 3 trials used"
    assert rig.evaluator.judged == [0, 1, 2]


@pytest.mark.parametrize("us", [98.0, 100.0, 150.0])
def test_less_than_min_gain_is_no_improvement(us: float) -> None:
    rig = Rig(TableEvaluator({0: us}), ListProposer([0]))
    search = rig.search()
    search.run()
    assert search.best is None and rig.published == []


def test_a_finalist_that_fails_its_second_look_makes_way_for_the_runner_up() -> None:
    evaluator = TableEvaluator({0: 80.0, 1: 50.0}, finals={1: "incorrect"})
    rig = Rig(evaluator, ListProposer(range(2)))
    search = rig.search()
    search.run()
    assert search.best is not None and search.best.candidate.params == {"b": 0}
    assert rig.published == [0, 1, 0]


def test_a_stall_masks_half_of_what_is_unprotected_and_hides_it_from_the_proposer() -> None:
    table: dict[int, float | str] = {0: 50.0, **dict.fromkeys(range(1, 20), 60.0)}
    rig = Rig(TableEvaluator(table), ListProposer(range(20)))
    search = rig.search(max_trials=12, mode="both", patience=5)
    search.run()
    reset = rig.journal.of("dropout")[0]
    assert reset["trigger"] == "no gain of 3% in 5 trials" and reset["fresh"]
    # Of trials 0-5 the best (0) and the latest success (5) are protected; half of the other four go.
    assert len(reset["masked"]) == 2 and not {0, 5} & set(reset["masked"])
    assert rig.proposer.resets[0] == (1, tuple(reset["masked"]), True)
    seen = {r.trial for r in rig.proposer.briefs[7].memory}  # the seventh brief was the one before the reset
    assert seen == set(range(6)) - set(reset["masked"])
    first, second = rig.journal.of("retrieved")[:2]
    assert not {p["doc_id"] for p in first["passages"]} & {p["doc_id"] for p in second["passages"]}


def test_four_failures_in_a_row_at_one_gate_are_a_stall() -> None:
    rig = Rig(TableEvaluator(dict.fromkeys(range(6), "incorrect")), ListProposer(range(6)))
    rig.search(max_trials=5, mode="mask").run()
    assert rig.journal.of("dropout")[0]["trigger"] == "4 failures in a row at the correctness gate"
    assert not rig.journal.of("dropout")[0]["fresh"]


def test_off_never_resets() -> None:
    rig = Rig(TableEvaluator(dict.fromkeys(range(30), 60.0)), ListProposer(range(30)))
    rig.search(mode="off", patience=2).run()
    assert rig.journal.of("dropout") == []


@pytest.mark.parametrize("stop_at", range(8))
def test_interrupted_at_any_trial_and_resumed_ends_as_if_uninterrupted(stop_at: int) -> None:
    table: dict[int, float | str] = {0: 80.0, 1: 79.5, 2: "compile_error", 3: 60.0, 4: 61.0, 5: 62.0, 6: 40.0, 7: 90.0}
    whole = Rig(TableEvaluator(table), ListProposer(range(8)))
    wanted = whole.search(mode="both", patience=3)
    wanted.run()
    rig = Rig(TableEvaluator(table, interrupt_at=stop_at), ListProposer(range(8)))
    with pytest.raises(KeyboardInterrupt):
        rig.search(mode="both", patience=3).run()
    past = rig.journal.events()
    again = Rig(TableEvaluator(table), ListProposer(range(8)), rig.journal, rig.store)
    search = again.search(mode="both", patience=3)
    search.replay(past)
    assert [t.index for t in search.trials] == list(range(stop_at))
    search.run()
    assert [t.candidate for t in search.trials] == [t.candidate for t in wanted.trials]
    assert search.best == wanted.best or (search.best and wanted.best and search.best.index == wanted.best.index)
    assert rig.journal.of("dropout") == whole.journal.of("dropout")


def test_a_trial_that_brought_the_judge_down_twice_is_recorded_and_passed_over() -> None:
    rig = Rig(TableEvaluator({0: 80.0, 1: 50.0}), ListProposer(range(2)))
    for _ in range(2):
        rig.evaluator.interrupt_at = 0
        search = rig.search()
        search.replay(rig.journal.events())
        with pytest.raises(KeyboardInterrupt):
            search.run()
    rig.evaluator.interrupt_at = None
    search = rig.search()
    search.replay(rig.journal.events())
    search.run()
    assert [t.evaluation.verdict for t in search.trials] == ["crashed_evaluator", "ACCEPT"]


def test_when_nothing_is_left_no_reset_is_printed_and_the_library_is_read_on() -> None:
    """Fifteen kernels in pages of twelve, two candidates, and a stall due just when they are used up."""
    rig = Rig(TableEvaluator({0: 80.0, 1: 90.0}), ListProposer(range(2)))
    search = rig.search(mode="both", patience=1)
    search.retriever = ListRetriever(15)
    assert search.run() == "nothing left to try"
    assert rig.journal.of("dropout") == [] and rig.proposer.resets == []
    pages = [[p["doc_id"] for p in d["passages"] if "kernel" in p["doc_id"]] for d in rig.journal.of("retrieved")]
    assert pages == [[f"kernel{i}" for i in range(12)], [f"kernel{i}" for i in range(12, 15)]]
    assert {d["generation"] for d in rig.journal.of("retrieved")} == {0}
    assert [i for i in rig.proposer.briefs[-1].shown if "kernel" in i] == [f"kernel{i}" for i in range(15)]


@pytest.mark.parametrize(("fraction", "trials"), [(0.5, 3), (0.949, 3), (0.95, 1), (0.99, 1)])
def test_near_the_roofline_the_search_stops(fraction: float, trials: int) -> None:
    """The first of three kernels is this near."""
    rig = Rig(TableEvaluator({0: 50.0, 1: 51.0, 2: 52.0}), ListProposer(range(3)))
    rig.evaluator.profiles = {0: profiled(fraction)}
    search = rig.search()
    stop = search.run()
    assert len(search.trials) == trials
    assert stop == (f"best kernel at {fraction:.0%} of the roofline" if trials == 1 else "nothing left to try")


@pytest.mark.parametrize(("bytes_share", "trials"), [(0.5, 2), (0.97, 1)])
def test_beyond_the_roofline_of_the_op_as_written_memory_decides(bytes_share: float, trials: int) -> None:
    rig = Rig(TableEvaluator({0: 50.0, 1: 51.0}), ListProposer(range(2)))
    search = rig.search()
    floor_us = 1e6 * search.workload.primary.min_bytes / search.chip.hbm_bytes_per_s
    rig.evaluator.profiles = {0: (replace(profiled(6.67)[0], estimated_us=floor_us / bytes_share),)}
    search.run()
    assert len(search.trials) == trials


def test_the_slowest_shape_decides_how_near_the_roofline_is() -> None:
    rig = Rig(TableEvaluator({0: 50.0, 1: 51.0}), ListProposer(range(2)))
    rig.evaluator.profiles = {0: profiled(1.0, 0.6)}
    search = rig.search()
    search.run()
    assert len(search.trials) == 2


def test_a_kernel_at_the_roofline_that_is_no_improvement_does_not_stop_the_search() -> None:
    rig = Rig(TableEvaluator({0: 99.0, 1: 99.5}), ListProposer(range(2)))
    rig.evaluator.profiles = {0: profiled(1.0)}
    search = rig.search()
    search.run()
    assert len(search.trials) == 2


@dataclass
class Pieces(ListProposer):
    """The first five are kernels of a template, one by one."""

    def propose(self, brief: Brief) -> Candidate | None:
        made = super().propose(brief)
        if made is None or made.params["b"] >= 5:
            return made
        return replace(made, origin="piece:toy, kernel 1 of 2", op="def part")


@dataclass
class Noting(TableEvaluator):
    """Notes what each candidate was judged by."""

    ops: list[str] = field(default_factory=list)

    def evaluate(
        self, workload: Workload, candidate: Candidate, *, final: bool = False, bar_us: float | None = None
    ) -> Evaluation:
        self.ops.append(workload.source)
        return super().evaluate(workload, candidate, final=final, bar_us=bar_us)


def test_a_piece_is_judged_by_its_own_op_and_is_never_the_best() -> None:
    """Its time is below every whole kernel's, and five of them are no stall."""
    judge = Noting({b: float(b + 1) for b in range(5)} | {5: 50.0})
    rig = Rig(judge, Pieces(range(6)))
    search = rig.search(mode="both", patience=3)
    search.piece = lambda workload, op: replace(workload, source=op)
    search.run()
    assert rig.published == [5] and search.generation == 0
    assert judge.ops == ["def part"] * 5 + [WORKLOAD.source] * 2
    assert [d["speedup"] for d in rig.journal.of("trial")] == [None] * 5 + [pytest.approx(2.0)]
    assert [r.piece for r in search.records] == [True] * 5 + [False]


def test_what_is_no_faster_than_xla_is_not_compared_but_for_the_first_trial() -> None:
    rig = Rig(TableEvaluator({0: 150.0, 1: 120.0, 2: 110.0}, strict=True), ListProposer(range(3)))
    search = rig.search()
    search.run()
    assert rig.evaluator.bars == [None, pytest.approx(100.0), pytest.approx(100.0)]
    assert [r.outcome for r in search.records] == ["ACCEPT", "slower", "slower"] and search.best is None


def test_being_slower_is_no_failure_of_a_gate() -> None:
    table: dict[int, float | str] = {0: 50.0, **dict.fromkeys(range(1, 7), 60.0)}
    rig = Rig(TableEvaluator(table, strict=True), ListProposer(range(7)))
    rig.search(mode="both", patience=100).run()
    assert [d["evaluation"]["gates"][-1]["code"] for d in rig.journal.of("trial")[1:]] == ["slower"] * 6
    assert rig.journal.of("dropout") == []

"""Dropout that reopens the offline search: on recorded times, and on a table of two kernels."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import replay
from replay import Table
from standins import DictStore, ListJournal

from aka.propose.tuner import key
from aka.search.dropout import Mode
from aka.types import GateResult

TABLE = "matmul_f32_v6e.json"
TRIALS, PATIENCE = 9, 4
"""The budget of the comparison: enough for one stall and the four starts that follow it. Over 30 seeds, "both" reaches
the better region in 22 and "off" in 7 (`benchmarks/dropout.py 30`)."""
BETTER = 0.9
"""The better region: points that take at most this share of the first one's time."""


@pytest.fixture(scope="module")
def recorded() -> Table:
    return replay.load(TABLE)


def test_the_first_region_of_the_recorded_op_is_a_local_optimum(recorded: Table) -> None:
    start = recorded.points[recorded.first]
    assert isinstance(start, float)
    beside = recorded.neighbours()
    assert all(isinstance(value, GateResult) or value >= 0.99 * start for value in beside)
    assert 1 <= len(recorded.better(BETTER)) <= 0.04 * len(recorded.points)
    assert len(recorded.points) == len(list(itertools.product(*next(iter(recorded.spaces.values())).values())))


def reached(table: Table, mode: Mode) -> int:
    """Of ten seeds, how many reach the better region within the budget."""
    better = table.better(BETTER)
    return sum(
        replay.found_at(replay.search(table, mode, seed, TRIALS, patience=PATIENCE), better) is not None
        for seed in range(10)
    )


def test_dropout_finds_the_better_region_where_off_does_not(recorded: Table) -> None:
    assert reached(recorded, "both") >= 8
    assert reached(recorded, "off") <= 2


def two_kernels() -> Table:
    """The first kernel is good at once and nowhere much better; the second is slow but for one corner."""
    spaces: dict[str, dict[str, list[Any]]] = {
        "first": {"block_m": [256, 128, 64, 32], "block_n": [256, 128, 64, 32]},
        "second": {"block_m": [32, 64, 128, 256, 512], "block_n": [32, 64, 128, 256, 512]},
    }
    points: dict[tuple[str, str], float | GateResult] = {}
    for m, n in itertools.product((32, 64, 128, 256, 512), repeat=2):
        params = key({"block_m": m, "block_n": n})
        points["first", params] = 90.0 + 100 / min(m, n)
        points["second", params] = 40.0 if m + n > 700 else 300.0 - (m + n) / 10
    return Table(100.0, spaces, points)


def test_a_fresh_start_also_goes_to_another_kernel() -> None:
    table = two_kernels()
    better = table.better(0.5)
    ends = [replay.found_at(replay.search(table, "both", seed, 24), better) for seed in range(6)]
    assert sum(end is not None for end in ends) >= 5
    made = replay.search(table, "both", 0, 24)
    starts = [t.candidate.origin for t in made.trials if "fresh start" in t.candidate.plan]
    assert set(starts) == {"catalog:first", "catalog:second"}


@pytest.mark.parametrize("mode", ["off", "mask", "fresh", "both"])
def test_no_code_is_tried_twice_and_it_ends(mode: Mode) -> None:
    made = replay.search(two_kernels(), mode, 3, 100)
    assert len({t.candidate.id for t in made.trials}) == len(made.trials) == 16 + 25
    events = [e.type for e in made.journal.events()]
    assert events[-1] == "final_check" and "trial" in events[events.index("dropout") :] if mode != "off" else True
    last = len(events) - 1 - events[::-1].index("trial")
    assert "dropout" not in events[last:]


@pytest.mark.parametrize("kept", [1, 4, 9, 12, 17, 23])
def test_a_run_cut_off_anywhere_goes_on_as_if_it_had_not_been(kept: int) -> None:
    table = two_kernels()
    whole = replay.search(table, "both", 5, 30)
    events = whole.journal.events()
    ends = [i for i, e in enumerate(events) if e.type == "trial"]
    assert isinstance(whole.store, DictStore)
    journal = ListJournal(events[: ends[kept - 1] + 1])
    again = replay.build(table, "both", 5, 30, journal=journal, store=whole.store)
    again.replay(journal.events())
    assert len(again.trials) == kept
    again.run()
    assert [t.candidate for t in again.trials] == [t.candidate for t in whole.trials]
    assert journal.of("dropout") == [e.data for e in events if e.type == "dropout"]

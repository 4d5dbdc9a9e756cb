"""The offline proposer before a planner that answers from a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from propose_standins import TablePlanner, brief, finished, kernel, passages, record

from aka.errors import WorkloadError
from aka.propose import tuner
from aka.propose.catalog import OfflineProposer
from aka.types import Candidate, MemoryRecord, ReferenceKernel, Space

TWO = {
    "fast": Space({"block_rows": [256, 128, 64, 32], "block_cols": [128, 256, 512]}),
    "slow": Space({"block_rows": [8, 16, 24]}),
}
SHOWN = passages("note-1", "fast", "other", "slow")


def library(doc_id: str) -> ReferenceKernel | None:
    return kernel(doc_id) if not doc_id.startswith("note") else None


def proposer(spaces: dict[str, Space | WorkloadError] | None = None) -> tuple[OfflineProposer, TablePlanner]:
    planner = TablePlanner(dict(TWO) if spaces is None else spaces)
    return OfflineProposer(planner, library), planner


def us(candidate: Candidate) -> float | None:
    rows = candidate.params["block_rows"]
    if candidate.origin == "catalog:slow":
        return 90.0 + rows
    return None if rows == 32 else 20.0 + abs(rows - 128) / 8


def search(
    made: OfflineProposer, steps: int, *, seed: int = 0, hide: Callable[[MemoryRecord], bool] = lambda r: False
) -> list[Candidate]:
    """Propose and judge; `hide` masks records."""
    found: list[Candidate] = []
    memory: list[MemoryRecord] = []
    for i in range(steps):
        candidate = made.propose(brief(SHOWN, [r for r in memory if not hide(r)], trial=i, seed=seed))
        if candidate is None:
            break
        found.append(candidate)
        made.observe(finished(i, candidate, us(candidate)))
        memory.append(record(i, candidate, us(candidate)))
    return found


def test_defaults_of_every_binding_come_first() -> None:
    made, planner = proposer()
    first, second, third = search(made, 3)
    assert (first.origin, first.params) == ("catalog:fast", {"block_rows": 256, "block_cols": 128})
    assert (second.origin, second.params) == ("catalog:slow", {"block_rows": 8})
    assert third.origin in ("catalog:fast", "catalog:slow") and "tuned" in third.plan
    assert planner.asked == ["fast", "other", "slow"] and made.refused == {"other": "another op"}
    assert first.family == "toy" and "def workload(" in first.code


def test_nothing_is_proposed_twice_and_it_ends() -> None:
    made, _ = proposer()
    found = search(made, 40)
    assert len(found) == 12 + 3
    assert len({(c.binding, tuner.key(c.params)) for c in found}) == len({c.id for c in found}) == 15


def test_the_fast_binding_gets_most_of_the_trials() -> None:
    made, _ = proposer()
    assert sum(c.origin == "catalog:fast" for c in search(made, 11)[2:]) >= 6


def test_seed_and_history_decide() -> None:
    one, two, other = (search(proposer()[0], 12, seed=s) for s in (5, 5, 6))
    assert one == two and one != other


def test_a_masked_record_is_not_modelled_and_still_not_repeated() -> None:
    made, _ = proposer()
    seen = search(made, 12)
    blind = search(proposer()[0], 12, hide=lambda r: r.trial > 1)
    assert seen[:3] == blind[:3] and seen != blind
    assert len({c.id for c in blind}) == 12


def test_a_fresh_start_forgets_what_came_before() -> None:
    """After the reset, the same proposals whatever the memory says of earlier trials."""
    after = []
    for flip in (1.0, 50.0):
        made, _ = proposer({"fast": TWO["fast"]})
        memory = []
        for i in range(8):
            candidate = made.propose(brief(SHOWN, memory, trial=i, seed=2))
            assert candidate is not None
            fixed = replace(candidate, params=dict(list(_points())[i]))
            made.observe(finished(i, fixed, 1.0))
            memory.append(record(i, fixed, flip if fixed.params["block_cols"] == 512 else 51.0 - flip))
        made.reset(1, (), fresh=True)
        after.append(made.propose(brief(SHOWN, memory, trial=8, seed=2, generation=1)))
    assert after[0] is not None and after[0] == after[1]


def _points() -> list[dict[str, int]]:
    return [{"block_rows": r, "block_cols": c} for c in (128, 512) for r in (64, 256, 128, 32)]


def test_a_resumed_run_goes_on_with_the_kernels_that_it_used() -> None:
    """A later retrieval leaves out what was shown before; the best kernel must stay tunable."""
    before, _ = proposer()
    past = search(before, 4)
    made, planner = proposer()
    for i, candidate in enumerate(past):
        made.observe(finished(i, candidate, us(candidate)))
    memory = [record(i, c, us(c)) for i, c in enumerate(past)]
    went_on = before.propose(brief(SHOWN, memory, trial=4))
    resumed = made.propose(brief(passages("note-2"), memory, trial=4))
    assert resumed is not None and resumed == went_on and set(planner.asked) == {"fast", "slow"}


def test_a_kernel_for_another_chip_is_not_looked_at() -> None:
    planner = TablePlanner(dict(TWO))
    made = OfflineProposer(planner, lambda i: kernel(i, chips=("v6e",)))
    assert made.propose(brief(SHOWN)) is None and planner.asked == []


def test_a_kernel_without_a_usable_space_is_refused_with_a_reason() -> None:
    bad: dict[str, Space | WorkloadError] = {
        "fast": WorkloadError("op.py: ValueError: rows must be even"),
        "slow": Space({"block_rows": []}),
    }
    made, _ = proposer(bad)
    assert made.propose(brief(SHOWN)) is None
    assert "rows must be even" in made.refused["fast"] and "no values for block_rows" in made.refused["slow"]


def test_new_passages_bring_new_bindings() -> None:
    made, planner = proposer()
    first = made.propose(brief(passages("slow")))
    assert first is not None and first.origin == "catalog:slow"
    made.observe(finished(0, first, 98.0))
    second = made.propose(brief(passages("slow", "fast"), trial=1, generation=1))
    assert second is not None and second.origin == "catalog:fast" and planner.asked == ["slow", "fast"]

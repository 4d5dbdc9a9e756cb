"""Templates of several kernels before a planner and a judge that answer from tables: each kernel alone, then all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from propose_standins import TablePlanner, Verdict, brief, finished, kernel, passages, record

from aka.propose.catalog import OfflineProposer
from aka.types import Candidate, MemoryRecord, Piece, Space, Templates, Trial

ID = "template/2-kernels"
FIRST, SECOND = f"{ID}, kernel 1 of 2", f"{ID}, kernel 2 of 2"
SPACES = {
    ID: Space({"block_1_rows": [64, 128, 256], "block_2_rows": [8, 16]}),
    FIRST: Space({"block_rows": [64, 128, 256]}),
    SECOND: Space({"block_rows": [8, 16]}),
}
PIECES = (
    Piece("op of the first", kernel().source, {"block_rows": "block_1_rows"}),
    Piece("op of the second", kernel().source.replace("+ eps", "- eps"), {"block_rows": "block_2_rows"}),
)
TIMES = {FIRST: {64: 40.0, 128: 20.0, 256: 30.0}, SECOND: {8: 10.0, 16: 5.0}}
Judge = Callable[[Candidate], Verdict]


def proposer() -> OfflineProposer:
    made = Templates((replace(kernel(ID), pieces=PIECES),), {})
    return OfflineProposer(TablePlanner(dict(SPACES), made), lambda doc_id: None)


def us(candidate: Candidate) -> Verdict:
    if candidate.is_piece:
        return TIMES[candidate.family][candidate.params["block_rows"]]
    return TIMES[FIRST][candidate.params["block_1_rows"]] + TIMES[SECOND][candidate.params["block_2_rows"]]


def search(made: OfflineProposer, steps: int, judge: Judge = us, best_us: float | None = None) -> list[Candidate]:
    found: list[Candidate] = []
    memory: list[MemoryRecord] = []
    best: Trial | None = None
    if best_us is not None:
        best = finished(99, Candidate("other", "", "catalog:other", binding="other"), best_us)
    for i in range(steps):
        candidate = made.propose(replace(brief(passages(), memory, trial=i), best=best))
        if candidate is None:
            break
        found.append(candidate)
        made.observe(finished(i, candidate, judge(candidate)))
        memory.append(replace(record(i, candidate, judge(candidate)), piece=candidate.is_piece))
    return found


def whole(found: list[Candidate]) -> list[tuple[int, int]]:
    return [(c.params["block_1_rows"], c.params["block_2_rows"]) for c in found if not c.is_piece]


def test_each_kernel_is_tried_alone_and_then_all_together() -> None:
    found = search(proposer(), 3)
    assert [(c.origin, c.op) for c in found] == [
        (f"piece:{FIRST}", "op of the first"), (f"piece:{SECOND}", "op of the second"), (f"template:{ID}", ""),
    ]  # fmt: skip
    assert found[2].params == {"block_1_rows": 64, "block_2_rows": 8} and "the best of each kernel" in found[2].plan


def test_the_template_takes_the_best_of_each_and_needs_no_grid_of_all() -> None:
    found = search(proposer(), 9)
    assert (128, 16) in whole(found)
    assert len(whole(found)) <= 4 and sum(c.is_piece for c in found) == 5


def test_a_kernel_that_the_compiler_refuses_alone_closes_the_template() -> None:
    found = search(proposer(), 9, lambda c: ("static_reject", "no") if c.family == SECOND else us(c))
    assert {c.family for c in found if c.is_piece} == {FIRST, SECOND}
    assert not whole(found[:3])


def test_kernels_that_take_longer_together_than_the_best_spare_the_whole_a_trial() -> None:
    first, *_ = whole(search(proposer(), 6, best_us=45.0))
    assert TIMES[FIRST][first[0]] + TIMES[SECOND][first[1]] < 45 and first != (64, 8)
    assert whole(search(proposer(), 3, best_us=60.0)) == [(64, 8)]


def test_a_kernel_that_alone_takes_longer_than_the_best_spares_the_others_a_trial() -> None:
    """They come when it has been tuned below that."""
    found = search(proposer(), 4, best_us=35.0)
    assert [(c.family, c.params["block_rows"]) for c in found if c.is_piece][:3] == [
        (FIRST, 64),
        (FIRST, 128),
        (SECOND, 8),
    ]


def test_a_resumed_search_goes_on_with_the_same_kernel() -> None:
    before = proposer()
    past = search(before, 4)
    made = proposer()
    for i, candidate in enumerate(past):
        made.observe(finished(i, candidate, us(candidate)))
    memory = [replace(record(i, c, us(c)), piece=c.is_piece) for i, c in enumerate(past)]
    told = brief(passages(), memory, trial=4)
    assert made.propose(told) == before.propose(told)


def test_a_kernel_that_two_templates_share_is_tried_once_and_tells_both() -> None:
    other = "template/2-kernels-streamed-1"
    shared = (PIECES[0], replace(PIECES[1], source=kernel().source.replace("+ eps", "* eps"), op="op of another"))
    made = Templates((replace(kernel(ID), pieces=PIECES), replace(kernel(other), pieces=shared)), {})
    spaces = SPACES | {other: SPACES[ID], f"{other}, kernel 1 of 2": SPACES[FIRST]}
    spaces[f"{other}, kernel 2 of 2"] = Space({"block_rows": [8]})
    planner = TablePlanner(spaces, made)
    found = search(OfflineProposer(planner, lambda doc_id: None), 4, lambda c: 20.0 if c.is_piece else 60.0)
    names = [c.origin.partition(":")[2] for c in found]
    assert names == [FIRST, SECOND, ID, f"{other}, kernel 2 of 2"]


def test_trials_of_kernels_alone_are_turns_of_their_template() -> None:
    """A rival gets as many, although the template as a whole was tried once."""
    spaces = SPACES | {"rival": Space({"block_rows": list(range(8, 400, 8))})}
    planner = TablePlanner(dict(spaces), Templates((replace(kernel(ID), pieces=PIECES),), {}))
    made = OfflineProposer(planner, lambda doc_id: kernel("rival"))
    memory: list[MemoryRecord] = []
    found = []
    for i in range(8):
        candidate = made.propose(brief(passages("rival"), memory, trial=i))
        assert candidate is not None
        verdict = us(candidate) if candidate.family != "toy" else 50.0
        made.observe(finished(i, candidate, verdict))
        memory.append(replace(record(i, candidate, verdict), piece=candidate.is_piece))
        found.append(candidate.origin == "catalog:rival")
    assert sum(found[4:]) >= 2

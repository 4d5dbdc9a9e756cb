"""The offline proposer before a planner that answers from a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from propose_standins import TablePlanner, Verdict, brief, finished, kernel, passages, record

from aka.errors import WorkloadError
from aka.propose import tuner
from aka.propose.catalog import OfflineProposer
from aka.types import Candidate, MemoryRecord, Passage, ReferenceKernel, Space, Templates

TWO = {
    "fast": Space({"block_rows": [256, 128, 64, 32], "block_cols": [128, 256, 512]}),
    "slow": Space({"block_rows": [8, 16, 24]}),
}
SHOWN = passages("note-1", "fast", "other", "slow")
VMEM = "kernel needs 98.0 MiB of VMEM by its block shapes; its limit is 16 MiB (scoped vmem)"


def library(doc_id: str) -> ReferenceKernel | None:
    return kernel(doc_id) if not doc_id.startswith("note") else None


def proposer(
    spaces: dict[str, Space | WorkloadError] | None = None, made: Templates | WorkloadError | None = None
) -> tuple[OfflineProposer, TablePlanner]:
    planner = TablePlanner(dict(TWO) if spaces is None else spaces, made or Templates((), {}))
    return OfflineProposer(planner, library), planner


def us(candidate: Candidate) -> Verdict:
    rows = candidate.params["block_rows"]
    if candidate.origin == "catalog:slow":
        return 90.0 + rows
    return None if rows == 32 else 20.0 + abs(rows - 128) / 8


def search(
    made: OfflineProposer,
    steps: int,
    *,
    seed: int = 0,
    judge: Callable[[Candidate], Verdict] = us,
    hide: Callable[[MemoryRecord], bool] = lambda r: False,
    shown: Sequence[Passage] = SHOWN,
) -> list[Candidate]:
    """Propose and judge; `hide` masks records."""
    found: list[Candidate] = []
    memory: list[MemoryRecord] = []
    for i in range(steps):
        candidate = made.propose(brief(shown, [r for r in memory if not hide(r)], trial=i, seed=seed))
        if candidate is None:
            break
        found.append(candidate)
        made.observe(finished(i, candidate, judge(candidate)))
        memory.append(record(i, candidate, judge(candidate)))
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


def test_a_tuned_candidate_descends_from_the_best_of_its_kernel() -> None:
    found = search(proposer()[0], 9)
    by_id = {c.id: c for c in found}
    tuned = [c for c in found if c.parent is not None]
    assert len(tuned) == 7 and all(by_id[str(c.parent)].binding == c.binding for c in tuned)
    assert [c.parent for c in found[:2]] == [None, None]


TEMPLATES = Templates(
    (kernel("template/rows"), kernel("template/columns", chips=("v6e",)), kernel("template/tiles")),
    {"template/matmul": "no product in the op"},
)
TEMPLATE_SPACES: dict[str, Space | WorkloadError] = {
    **TWO,
    "template/rows": Space({"block_rows": [512, 256]}),
    "template/tiles": Space({"block_rows": [48]}),
}


def test_templates_follow_the_library_and_are_asked_for_once() -> None:
    made, planner = proposer(TEMPLATE_SPACES, TEMPLATES)
    found = search(made, 12, judge=lambda c: 50.0)
    assert [c.origin for c in found[:4]] == [
        "catalog:fast", "catalog:slow", "template:template/rows", "template:template/tiles",
    ]  # fmt: skip
    assert planner.opened == 1 and made.refused["template/matmul"] == "no product in the op"
    assert "(fusion template/rows)" in found[2].code and "kernel(x, scale, block_rows=TUNED" in found[2].code
    assert {c.origin for c in found[4:]} >= {"catalog:fast", "template:template/rows"}


def test_templates_that_cannot_be_made_are_refused_with_the_reason() -> None:
    made, planner = proposer(made=WorkloadError("op.py: no jaxpr"))
    assert [c.origin for c in search(made, 3)[:2]] == ["catalog:fast", "catalog:slow"]
    assert planner.opened == 1 and made.refused["templates"] == "op.py: no jaxpr"


def test_templates_are_not_written_while_the_library_has_first_tries_left() -> None:
    """A run that ends at the roofline before that never needs them."""
    made, planner = proposer(TEMPLATE_SPACES, TEMPLATES)
    assert [c.origin for c in search(made, 2)] == ["catalog:fast", "catalog:slow"] and planner.opened == 0


def test_a_resumed_run_repairs_the_template_that_failed_last() -> None:
    """It does so although a new kernel of the library waits for its first try."""

    def judge(c: Candidate) -> Verdict:
        return ("compile_error", VMEM) if c.origin.startswith("template:") else 50.0

    spaces = TEMPLATE_SPACES | {"new": TWO["slow"]}
    before, _ = proposer(spaces, TEMPLATES)
    past = search(before, 3, judge=judge)
    made, _ = proposer(spaces, TEMPLATES)
    for i, candidate in enumerate(past):
        made.observe(finished(i, candidate, judge(candidate)))
    memory = [record(i, c, judge(c)) for i, c in enumerate(past)]
    resumed = made.propose(brief(passages("fast", "slow", "new"), memory, trial=3))
    assert resumed is not None and resumed == before.propose(brief(passages("fast", "slow", "new"), memory, trial=3))
    assert resumed.plan.startswith("repair of trial 2") and resumed.origin == "template:template/rows"


def test_equal_programs_of_two_origins_are_tried_once() -> None:
    """The emitted files differ in their docstrings only."""
    spaces: dict[str, Space | WorkloadError] = {k: Space({"block_rows": [256, 128]}) for k in ("fast", "template/rows")}
    made, _ = proposer(spaces, Templates((kernel("template/rows"),), {}))
    found = search(made, 9, shown=passages("fast"))
    assert [c.origin for c in found] == ["catalog:fast"] * 2


def test_a_kernel_that_parameters_cannot_save_is_dropped() -> None:
    found = search(proposer()[0], 9, judge=lambda c: ("static_reject", "import os") if "fast" in c.origin else 9.0)
    assert [c.origin for c in found] == ["catalog:fast", *["catalog:slow"] * 3]


@pytest.mark.parametrize("code", ["compile_error", "vmem_limit"])
def test_blocks_that_do_not_fit_are_made_smaller_three_times_at_most(code: str) -> None:
    found = search(proposer()[0], 5, judge=lambda c: (code, VMEM) if "fast" in c.origin else 90.0)
    assert [(c.params["block_rows"], c.params["block_cols"]) for c in found[:4]] == [
        (256, 128), (128, 128), (64, 128), (32, 128),
    ]  # fmt: skip
    assert [c.plan[:18] for c in found[1:4]] == [f"repair of trial {i}:" for i in range(3)]
    assert [c.parent for c in found[1:4]] == [c.id for c in found[:3]]
    assert found[4].origin == "catalog:slow" and "defaults" in found[4].plan


def test_a_repair_that_works_ends_the_repairs() -> None:
    found = search(proposer()[0], 3, judge=lambda c: ("compile_error", VMEM) if c.params["block_rows"] == 256 else 40.0)
    assert found[1].plan.startswith("repair of trial 0: block_rows smaller") and found[2].origin == "catalog:slow"


def test_defaults_that_fail_otherwise_get_one_try_at_the_parameter_that_is_named() -> None:
    text = "ValueError: block_cols must divide 768"
    found = search(proposer()[0], 3, judge=lambda c: ("candidate_error", text) if "fast" in c.origin else 90.0)
    assert found[1].params == {"block_rows": 256, "block_cols": 256} and found[1].parent == found[0].id
    assert found[1].plan.startswith("repair of trial 0: another block_cols") and found[2].origin == "catalog:slow"


def test_a_failure_that_names_nothing_leads_on_to_the_next_kernel() -> None:
    found = search(proposer()[0], 2, judge=lambda c: ("incorrect", "off by 3") if "fast" in c.origin else 90.0)
    assert found[1].origin == "catalog:slow"


def fresh(flip: float, generation: int = 1) -> Candidate | None:
    """The first proposal after a fresh start behind twelve trials; `flip` moves the times of those."""
    made, _ = proposer({"fast": Space({"block_rows": [256, 128, 64, 32], "block_cols": [128, 256, 512, 1024]})})
    found = search(made, 6, seed=2, judge=lambda c: flip + c.params["block_cols"])
    memory = [record(i, c, flip + c.params["block_cols"]) for i, c in enumerate(found)]
    made.reset(1, (), fresh=True)
    return made.propose(brief(SHOWN, memory, trial=6, seed=2, generation=generation))


def test_a_fresh_start_goes_where_nothing_was_tried() -> None:
    one, other = fresh(1.0), fresh(50.0)
    assert one is not None and one == other and "fresh start" in one.plan


def test_after_a_fresh_start_the_tuner_models_this_generation_only() -> None:
    """Eight trials before the reset and four starts after it: what it asks for next is the same whatever the eight were
    worth, and another point if the four were worth something else."""
    made, _ = proposer({"fast": Space({"block_rows": [8 * i for i in range(1, 9)], "block_cols": [128, 256, 512]})})
    found: list[Candidate] = []
    for i in range(12):
        if i == 8:
            made.reset(1, (), fresh=True)
        memory = [record(j, c, 100.0 + j) for j, c in enumerate(found)]
        candidate = made.propose(brief(SHOWN, memory, trial=i, seed=3, generation=int(i >= 8)))
        assert candidate is not None and ("fresh start" in candidate.plan) == (i >= 8)
        made.observe(finished(i, candidate, 100.0 + i))
        found.append(candidate)
    asked = []
    for early, late in ((1.0, 1.0), (-1.0, 1.0), (1.0, -1.0)):
        times = [100.0 + (early if i < 8 else late) * c.params["block_rows"] for i, c in enumerate(found)]
        memory = [record(i, c, time) for i, (c, time) in enumerate(zip(found, times, strict=True))]
        candidate = made.propose(brief(SHOWN, memory, trial=12, seed=3, generation=1))
        assert candidate is not None and "tuned" in candidate.plan
        asked.append(candidate.params)
    assert asked[0] == asked[1] != asked[2]


def test_the_second_fresh_start_begins_with_another_kernel() -> None:
    starts = []
    for generation in (1, 2):
        made, _ = proposer()
        found = search(made, 4)
        memory = [record(i, c, us(c)) for i, c in enumerate(found)]
        made.reset(generation, (), fresh=True)
        candidate = made.propose(brief(SHOWN, memory, trial=4, generation=generation))
        assert candidate is not None
        starts.append(candidate.origin)
    assert starts == ["catalog:fast", "catalog:slow"]


@pytest.mark.parametrize("masked", [(), (1,)])
def test_a_masked_failure_opens_its_neighbourhood_again(masked: tuple[int, ...]) -> None:
    """Of rows 8, 16, .. 64, row 48 failed: 40 and 56 come last while that is remembered. It is never tried again."""
    made, _ = proposer({"fast": Space({"block_rows": [8 * i for i in range(1, 9)]})})
    memory = []
    for i, rows in enumerate((8, 48)):
        candidate = made.propose(brief(SHOWN, [], trial=i))
        assert candidate is not None
        code = candidate.code.replace(f"'block_rows': {candidate.params['block_rows']}", f"'block_rows': {rows}")
        tried = replace(candidate, params={"block_rows": rows}, code=code)
        verdict: Verdict = 50.0 if rows == 8 else ("incorrect", "")
        made.observe(finished(i, tried, verdict))
        memory.append(record(i, tried, verdict))
    made.reset(1, masked, fresh=True)
    seen = []
    for i in range(2, 6):
        started = made.propose(brief(SHOWN, [r for r in memory if r.trial not in masked], trial=i, generation=1))
        assert started is not None and "fresh start" in started.plan
        made.observe(finished(i, started, 60.0))
        seen.append(started.params["block_rows"])
    assert bool({40, 56} & set(seen)) == bool(masked) and 48 not in seen


def test_a_resumed_run_goes_on_with_the_kernels_of_earlier_retrievals() -> None:
    """A later retrieval leaves out what was shown before; the best kernel must stay tunable."""
    before, _ = proposer()
    past = search(before, 4)
    made, planner = proposer()
    for i, candidate in enumerate(past):
        made.observe(finished(i, candidate, us(candidate)))
    memory = [record(i, c, us(c)) for i, c in enumerate(past)]
    went_on = before.propose(brief(SHOWN, memory, trial=4))
    resumed = made.propose(brief(passages("note-2"), memory, trial=4, before=("note-1", "fast", "other", "slow")))
    assert resumed is not None and resumed == went_on and planner.asked == ["fast", "other", "slow"]


def test_a_kernel_for_another_chip_is_not_looked_at() -> None:
    planner = TablePlanner(dict(TWO))
    made = OfflineProposer(planner, lambda i: kernel(i, chips=("v6e",)))
    assert made.propose(brief(SHOWN)) is None and planner.asked == []


def test_a_kernel_that_the_planner_chokes_on_is_refused_and_the_others_bind() -> None:
    planner = TablePlanner(dict(TWO), chokes_on="other")
    made = OfflineProposer(planner, library)
    assert [c.origin for c in search(made, 2)] == ["catalog:fast", "catalog:slow"]
    assert made.refused == {"other": "op.py: no answer within 60 s"}


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

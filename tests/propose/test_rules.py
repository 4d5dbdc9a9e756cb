"""The proposer's rules one by one: what to repair, whose turn it is, where to start anew, what counts as the same."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from aka.propose import explore, population, repair
from aka.propose.past import fingerprint
from aka.types import GateResult, MemoryRecord

SPACE: dict[str, list[Any]] = {
    "block_m": [1024, 512, 256, 128], "block_k": [512, 256, 128], "buffers": [2, 3], "order": [["a"], ["b"]],
}  # fmt: skip
START = {"block_m": 512, "block_k": 256, "buffers": 2, "order": ["a"]}


def gate(code: str, message: str, evidence: str = "") -> GateResult:
    return GateResult("compile", False, 0.0, code, message, evidence)


def moved(gate: GateResult, params: dict[str, Any] = START) -> list[dict[str, Any]]:
    """What each repair changes."""
    found = [changed for _, changed in repair.changes(gate, params, SPACE)]
    return [{k: v for k, v in p.items() if v != params[k]} for p in found]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("compile_error", "kernel needs 98.0 MiB of VMEM by its block shapes; its limit is 16 MiB (scoped vmem)"),
        ("compile_error", "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom"),
        ("compile_error", "allocation exceeded scoped vmem limit by 1.2M"),
        ("vmem_limit", "vmem_limit_bytes is 99, but v4 has 16 bytes of VMEM per core"),
        ("candidate_error", "ValueError: Blocks of 2048 x 2048 do not fit in VMEM."),
    ],
)
def test_what_does_not_fit_is_made_smaller_the_largest_block_first(code: str, message: str) -> None:
    assert moved(gate(code, message)) == [{"block_m": 256}, {"block_k": 128}]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("resource_limit", "MemoryError"),
        ("timeout", "no compile within 120 s"),
        ("unsupported_feature", "the compiler could not simulate the kernel for v5e within its limits"),
    ],
)
def test_what_takes_too_many_steps_is_made_larger_the_smallest_block_first(code: str, message: str) -> None:
    assert moved(gate(code, message)) == [{"block_k": 512}, {"block_m": 1024}]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("compile_error", "no lowering for sort"),
        ("unsupported_feature", "the machine knows no operation tpu.rotate"),
        ("incorrect", "the rows exceed their limit"),
    ],
)
def test_other_failures_have_no_rule(code: str, message: str) -> None:
    assert moved(gate(code, message)) == []


def test_the_evidence_speaks_too_and_the_smallest_block_has_no_step_down() -> None:
    least = START | {"block_m": 128, "block_k": 128}
    assert moved(gate("compile_error", "failed", "Ran out of memory in memory space vmem"), least) == []


def test_the_parameter_that_a_message_names_gets_another_value() -> None:
    found = [p for _, p in repair.named(gate("incorrect", "block_k must divide 768"), START, SPACE)]
    assert [p["block_k"] for p in found] == [512, 128] and all(p["block_m"] == 512 for p in found)
    assert list(repair.named(gate("incorrect", "my_block_k and order_2 are bad"), START, SPACE)) == []


TIMES = {"a": 10.0, "b": 12.0, "c": 20.0, "d": 40.0, "e": 90.0}


def turns(tried: dict[str, int], own: str | None = None, width: int = 3) -> Counter[str]:
    keys = [*TIMES, "f"]
    return Counter(
        population.order(keys, TIMES, lambda k: tried.get(k, 9), width, random.Random(i), own)[0] for i in range(1000)
    )


def test_branches_share_the_trials_by_how_good_they_are() -> None:
    made = turns({})
    assert made["a"] > 1.5 * made["b"] > 4 * made["c"] > 0
    assert 60 <= made["d"] + made["e"] + made["f"] <= 140, "a tenth is for the others"


def test_the_promising_get_a_few_trials_first_and_the_rest_wait() -> None:
    assert turns({"b": 1, "c": 2, "e": 1}) == {"b": 1000}
    assert "e" not in {k for k, n in turns({"e": 1}).items() if n > 200}


def test_the_users_own_kernel_gets_its_trials_however_slow_it_is() -> None:
    assert turns({"e": 2, "a": 1}, own="e") == {"e": 1000} and turns({"e": 5, "a": 1}, own="e") == {"a": 1000}


def test_every_arm_is_in_the_order_once() -> None:
    made = population.order([*TIMES, "f"], TIMES, lambda k: 9, 3, random.Random(1))
    assert sorted(made) == [*TIMES, "f"]


def record(trial: int, params: dict[str, Any], us: float | None, outcome: str = "incorrect") -> MemoryRecord:
    return MemoryRecord(trial, "f", "b", params, "ACCEPT" if us else outcome, us)


def test_only_failures_that_parameters_cannot_change_drop_a_kernel() -> None:
    one = record(0, {}, None, "static_reject")
    assert population.dropped([one, one], "b") and not population.dropped([one], "other")
    assert not population.dropped([one, record(1, {}, None, "compile_error")], "b")
    assert not population.dropped([one, record(1, {}, 5.0)], "b")


GRID: dict[str, list[Any]] = {"m": [64, 8, 16, 32, 128], "n": [8, 16, 32, 64, 128]}


def first(tried: list[dict[str, int]], records: list[MemoryRecord], count: int = 1, seed: int = 0) -> list[Any]:
    found = explore.farthest(GRID, tried, records, seed, lambda p: dict(p) in tried)
    return [next(found) for _ in range(count)]


def test_a_start_is_far_from_what_was_tried() -> None:
    assert first([{"m": 8, "n": 8}], []) == [{"m": 128, "n": 128}]
    assert first([{"m": 8, "n": 8}, {"m": 128, "n": 128}, {"m": 8, "n": 128}], []) == [{"m": 128, "n": 8}]


def test_a_start_is_not_beside_a_failure_nor_a_hopeless_time() -> None:
    tried = [{"m": 8, "n": 8}, {"m": 64, "n": 64}]
    bad = [record(0, tried[0], 10.0), record(1, tried[1], None)]
    assert all(p["m"] < 32 or p["n"] < 32 for p in first(tried, bad, 12))
    slow = [record(0, tried[0], 10.0), record(1, tried[1], 25.0)]
    assert all(p["m"] < 32 or p["n"] < 32 for p in first(tried, slow, 12))


def test_a_start_follows_the_trend_of_the_times() -> None:
    tried = [{"m": 8, "n": 32}, {"m": 64, "n": 32}]
    up = [record(0, tried[0], 10.0), record(1, tried[1], 15.0)]
    down = [record(0, tried[0], 15.0), record(1, tried[1], 10.0)]
    assert first(tried, up)[0]["m"] <= 16 and first(tried, down)[0]["m"] == 128


def test_large_grids_are_sampled_and_the_seed_decides() -> None:
    grid = {name: [2**i for i in range(3, 13)] for name in "abcde"}
    made = [next(explore.farthest(grid, [], [], seed, lambda p: False)) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2] and set(made[0]) == set(grid)


def test_the_same_program_is_known_by_what_it_does() -> None:
    one = '"""A."""\n\nX = 1\n\n\ndef f(x):\n    return x  # why\n'
    assert fingerprint(one) == fingerprint('"""B."""\nX = 1\ndef f(x):\n    return x\n')
    assert fingerprint(one) != fingerprint(one.replace("X = 1", "X = 2")) and fingerprint("def (") == "def ("

"""What dropout may mask: never the best, the latest success, or the one pitfall that names a constraint."""

from __future__ import annotations

from dataclasses import replace

from aka.search.memory import choose_masked, protect
from aka.types import MemoryRecord


def record(trial: int, us: float | None, pitfall: str = "", outcome: str = "", binding: str = "b") -> MemoryRecord:
    return MemoryRecord(trial, "f", binding, {}, outcome or ("ACCEPT" if us else "compile_error"), us, pitfall)


def kept(records: list[MemoryRecord], best: int | None) -> set[int]:
    return {r.trial for r in protect(records, best) if r.protected}


def test_the_best_and_the_latest_success_are_kept() -> None:
    records = [record(0, 9.0), record(1, 5.0), record(2, 7.0), record(3, None, "x", "incorrect")]
    assert kept(records, 1) == {1, 2}


def test_without_a_best_the_fastest_is_kept() -> None:
    """What was rejected for being no faster than XLA counts then; a piece of a template never does."""
    records = [record(0, 9.0), record(1, 5.0, outcome="slower"), record(2, 7.0, outcome="slower")]
    assert kept([*records, replace(record(3, 1.0), piece=True)], None) == {1, 2}
    assert kept(records, 0) == {0}


def test_one_pitfall_of_each_constraint_of_a_kernel_is_kept() -> None:
    records = [
        record(0, None, "needs 98.0 MiB of VMEM; its limit is 16 MiB"),
        record(1, None, "needs 72.5 MiB of VMEM; its limit is 16 MiB"),
        record(2, None, "needs 72.5 MiB of VMEM; its limit is 16 MiB", binding="other"),
        record(3, None, "no lowering for sort"),
    ]
    assert kept(records, None) == {0, 2, 3}


def test_the_same_seed_masks_the_same_half_of_the_rest() -> None:
    records = protect([record(i, 10.0 - i) for i in range(9)], 8)
    masked = choose_masked(records, 0.5, 3)
    assert len(masked) == 4 and 8 not in masked
    assert masked == choose_masked(records, 0.5, 3) != choose_masked(records, 0.5, 4)

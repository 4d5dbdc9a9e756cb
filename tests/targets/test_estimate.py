"""The arithmetic of the meter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aka.targets import estimate
from aka.targets.chips import V5E
from aka.targets.estimate import Need, Op, Program
from aka.targets.llo import Bundles
from aka.types import Profile, decode

MILLISECOND_BYTES = int(V5E.hbm_bytes_per_s / 1000)
OP = Op("op", "fusion", None, 0, 0.0, "bfloat16", 1, False, 0, "exact loop")
COPY = replace(OP, name="copy-start", opcode="copy-start", overlaps=True)
TABLE = Bundles(1000, {"valu": 0.9, "mxu": 0.1}, 3, 4, 0.0)


def test_an_op_takes_the_largest_of_cycles_bytes_and_flops() -> None:
    op = replace(OP, cycles=1.5e6, hbm_bytes=2 * MILLISECOND_BYTES, flops=197e9 * 3)
    part = estimate.parts(op, V5E)
    assert (part.cycles_s, part.hbm_s, part.flops_s) == pytest.approx((1e-3, 2e-3, 3e-3))
    assert part.total_s == part.flops_s


def test_ops_add_up_with_their_trips() -> None:
    ops = [replace(OP, cycles=1.5e6, trips=3), replace(OP, hbm_bytes=MILLISECOND_BYTES)]
    assert estimate.total_s(ops, V5E) == pytest.approx(4e-3)


def test_copies_hide_behind_work_until_bandwidth_runs_out() -> None:
    work = replace(OP, cycles=3e6)
    assert estimate.total_s([work, replace(COPY, hbm_bytes=MILLISECOND_BYTES)], V5E) == pytest.approx(2e-3)
    assert estimate.total_s([work, replace(COPY, hbm_bytes=5 * MILLISECOND_BYTES)], V5E) == pytest.approx(5e-3)


@pytest.mark.parametrize(
    ("op", "bound"),
    [
        (replace(OP, hbm_bytes=MILLISECOND_BYTES, cycles=10), "hbm"),
        (replace(OP, flops=1e12, cycles=10), "mxu"),
        (replace(OP, cycles=1e6, steps=100, bundles=TABLE), "valu"),
        (replace(OP, cycles=1e6, steps=100, bundles=replace(TABLE, slots={"valu": 0.2})), "dma-latency"),
        (replace(OP, cycles=1e6, steps=800, bundles=replace(TABLE, slots={"valu": 0.2})), "cycles"),
        (replace(OP, cycles=1e6, steps=2000, bundles=TABLE), "grid-overhead"),
        (replace(OP, cycles=1e6), "cycles"),
    ],
)
def test_bound_names_what_the_longest_op_waits_for(op: Op, bound: str) -> None:
    assert estimate.bound([op, replace(OP, cycles=1.0)], V5E) == bound


def test_bandwidth_bounds_a_program_whose_copies_outlast_it() -> None:
    assert estimate.bound([replace(OP, cycles=10), replace(COPY, hbm_bytes=MILLISECOND_BYTES)], V5E) == "hbm"


def test_confidence_is_the_worst_part_that_matters() -> None:
    large = replace(OP, cycles=1e6, confidence="extrapolated")
    unseen = replace(OP, hbm_bytes=1000, confidence="floor")
    assert estimate.confidence([large, unseen], V5E) == "extrapolated"
    assert estimate.confidence([large, replace(unseen, hbm_bytes=MILLISECOND_BYTES)], V5E) == "floor"


def test_the_profile_has_the_form_that_the_journal_stores() -> None:
    op = replace(OP, cycles=3e6, hbm_bytes=MILLISECOND_BYTES, bundles=TABLE, steps=1000)
    made = estimate.profile(Program([op], 42, "8x8"), V5E, Need(MILLISECOND_BYTES, 0.0))
    profile = decode(Profile, made)
    assert profile.estimated_us == pytest.approx(2000)
    assert profile.roofline_fraction == pytest.approx(0.5)
    assert (profile.spills, profile.fills, profile.vmem_bytes) == (3, 4, 42)
    assert profile.ops[0]["us"] == pytest.approx(2000)


def test_the_roofline_is_the_larger_of_memory_and_compute() -> None:
    assert Need(MILLISECOND_BYTES, 197e9 * 5).floor_s(V5E) == pytest.approx(5e-3)
    assert Need(MILLISECOND_BYTES, 393e9 * 5, "int8").floor_s(V5E) == pytest.approx(5e-3)


def test_a_scaled_profile_reaches_the_same_fraction_of_its_roofline() -> None:
    need, whole = Need(MILLISECOND_BYTES, 0.0), Need(8 * MILLISECOND_BYTES, 0.0)
    reduced = estimate.profile(Program([replace(OP, cycles=3e6, hbm_bytes=MILLISECOND_BYTES)]), V5E, need)
    made = estimate.scaled(reduced, need, whole, V5E)
    assert made["estimated_us"] == pytest.approx(16_000)
    assert made["hbm_bytes"] == 8 * MILLISECOND_BYTES
    assert made["confidence"] == "extrapolated"


def test_a_scaled_profile_never_beats_its_roofline() -> None:
    need, whole = Need(2 * MILLISECOND_BYTES, 0.0), Need(4 * MILLISECOND_BYTES, 0.0)
    reduced = estimate.profile(Program([replace(OP, hbm_bytes=MILLISECOND_BYTES)]), V5E, need)
    assert estimate.scaled(reduced, need, whole, V5E)["estimated_us"] == pytest.approx(4000)

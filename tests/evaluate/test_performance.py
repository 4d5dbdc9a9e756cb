"""The meter's parent: what is asked of it once, what is kept on disk, and what isn't simulated whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from aka.errors import WorkerTimeout
from aka.evaluate.correctness import Fault
from aka.evaluate.performance import Meter
from aka.types import ArraySpec, Chip, Profile, ShapeCase, Signature, Workload, encode

CHIP = Chip("v5e", "TPU v5 lite", "v5e:2x2", 1, 1.5e9, {"bfloat16": 197e12}, 2**34, 819e9, 2**27, 2**24, 2**20, True)
ROW = Signature((ArraySpec((512, 512), "float32"),), {"tuple": [0]})
CASE = ShapeCase("rows=512", {}, ROW, ROW, 0.0, 2 << 20, {})
WORKLOAD = Workload("toy", "op.py", "", (CASE,), (CASE,), {}, (), ("x",))
PROFILE = Profile("v5e", CASE.label, "estimated", "exact loop", 10.0, 1e4, 2 << 20, "hbm", 0.3, {}, 0, 0, 1 << 20)


@dataclass
class Meters:
    """A pool whose every worker answers the same and counts what it is asked: op names in order."""

    answer: dict[str, Any] | Exception
    floor: dict[str, Any] = field(default_factory=lambda: encode(replace(PROFILE, confidence="floor")))
    asked: list[str] = field(default_factory=list)

    def keep(self, role: str) -> Meters:
        return self

    @contextlib.contextmanager
    def borrow(self, role: str) -> Iterator[Meters]:
        yield self

    def call(self, op: str, args: object, blobs: object, *, timeout_s: float) -> tuple[dict[str, Any], list[bytes]]:
        self.asked.append(op)
        if op == "floor":
            return self.floor, []
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer, []


class Client:
    def baseline(self, workload: Workload, case: ShapeCase) -> bytes:
        return case.label.encode()

    def case(self, workload: Workload, sizes: dict[str, int]) -> ShapeCase | None:
        return None


def meter(workers: Meters, folder: Path) -> Meter:
    return Meter(workers, Client(), CHIP, folder)  # type: ignore[arg-type]


def test_the_same_program_is_timed_once(tmp_path: Path) -> None:
    workers = Meters(encode(PROFILE))
    made = meter(workers, tmp_path)
    assert made.profile(b"artifact", CASE) == made.profile(b"artifact", CASE) == PROFILE
    assert workers.asked == ["profile"]
    made.profile(b"another", CASE)
    assert workers.asked == ["profile", "profile"]


def test_a_program_without_a_time_is_asked_for_again(tmp_path: Path) -> None:
    workers = Meters(WorkerTimeout("busy"))
    made = meter(workers, tmp_path)
    assert isinstance(made.profile(b"artifact", CASE), Fault)
    workers.answer = encode(PROFILE)
    assert made.profile(b"artifact", CASE) == PROFILE


def test_a_baseline_is_kept_on_disk(tmp_path: Path) -> None:
    workers = Meters(encode(PROFILE))
    assert meter(workers, tmp_path).baseline(WORKLOAD, CASE) == PROFILE
    assert meter(workers, tmp_path).baseline(WORKLOAD, CASE) == PROFILE
    assert workers.asked == ["baseline"]


def test_a_floor_that_a_busy_machine_led_to_is_not_kept(tmp_path: Path) -> None:
    workers = Meters(WorkerTimeout("busy"))
    assert meter(workers, tmp_path).baseline(WORKLOAD, CASE).confidence == "floor"
    workers.answer = encode(PROFILE)
    assert meter(workers, tmp_path).baseline(WORKLOAD, CASE) == PROFILE
    assert workers.asked == ["baseline", "floor", "baseline"]


@pytest.mark.parametrize(
    ("flops", "moved", "asked"),
    [
        (0.0, 3e9, ["baseline"]),
        (3.9e11, 1e9, ["floor", "baseline"]),
        (3.9e11, 3e9, ["floor"]),
        (4e11, 1e9, ["floor"]),
        (5.5e11, 3e9, ["floor"]),
    ],
)
def test_an_op_of_too_many_dots_or_too_large_ones_is_not_simulated_whole(
    tmp_path: Path, flops: float, moved: float, asked: list[str]
) -> None:
    workers = Meters(encode(PROFILE), encode(replace(PROFILE, confidence="floor", hbm_bytes=int(moved))))
    meter(workers, tmp_path).baseline(WORKLOAD, replace(CASE, flops=flops))
    assert workers.asked == asked

"""References are made once, kept within their bytes, and made alike when they have to be made again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from aka.evaluate import wire
from aka.evaluate.client import ReferenceArtifacts
from aka.evaluate.correctness import Checker, Tally
from aka.evaluate.numerics import Comparison, hold
from aka.evaluate.patience import Patience
from aka.evaluate.references import References
from aka.types import ArraySpec, ShapeCase, Signature, Workload

OUT = Signature((ArraySpec((8, 128), "float32"),), 0)
ROW = Signature((ArraySpec((8, 128), "float32"),), {"tuple": [0]})
CASES = [ShapeCase(f"case {i}", {}, ROW, OUT, 0.0, 8192, {}) for i in range(3)]
WORKLOAD = Workload("double", "op.py", "", (CASES[0],), (CASES[0],), {}, (), ("x",))


@dataclass
class Doubler:
    """A runner whose every artifact doubles its argument."""

    calls: int = 0

    def keep(self, role: str) -> Doubler:
        return self

    def call(
        self, op: str, args: dict[str, Any], blobs: Sequence[bytes], *, timeout_s: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        self.calls += 1
        (x,) = wire.unpack(args["arrays"], list(blobs[1:]))
        specs, data = wire.pack([(2 * x).astype(np.float32 if blobs[0] == b"native" else np.float64)])
        return {"arrays": specs}, [bytes(d) for d in data]


@dataclass
class Client:
    asked: list[str] = field(default_factory=list)

    def reference(self, workload: Workload, case: ShapeCase) -> ReferenceArtifacts:
        self.asked.append(case.label)
        return ReferenceArtifacts(b"exact", None, b"native", (), None, False, None)

    def sample(self, workload: Workload, case: ShapeCase, seed: int) -> list[np.ndarray[Any, Any]]:
        return [np.random.default_rng(seed).standard_normal((8, 128)).astype(np.float32)]


def references(runner: Doubler, held_bytes: int) -> References:
    return References(runner, Client(), WORKLOAD, 7, held_bytes)  # type: ignore[arg-type]


def test_a_reference_is_made_once() -> None:
    runner = Doubler()
    made = references(runner, 1 << 30)
    first = made.get(CASES[0], "normal")
    calls = runner.calls
    assert made.get(CASES[0], "normal") is first and runner.calls == calls > 0


def test_what_was_not_asked_for_the_longest_goes_first_and_comes_again_alike() -> None:
    runner = Doubler()
    one = references(runner, 1 << 30).get(CASES[0], "normal").size_bytes
    made = references(runner, 2 * one)
    first, second = (made.get(case, "normal") for case in CASES[:2])
    assert made.get(CASES[0], "normal") is first
    made.get(CASES[2], "normal")
    assert made.get(CASES[0], "normal") is first
    again = made.get(CASES[1], "normal")
    assert again is not second
    assert np.array_equal(again.arguments[0], second.arguments[0])


def test_one_that_is_larger_than_all_bytes_is_still_answered() -> None:
    held = references(Doubler(), 1).get(CASES[0], "normal")
    right = hold([2 * held.arguments[0]], held.standard)
    wrong = hold([2.01 * held.arguments[0]], held.standard)
    assert isinstance(right, Comparison) and right.ok
    assert isinstance(wrong, Comparison) and not wrong.ok


@dataclass
class Kernel(Doubler):
    """A runner whose kernels double their argument but for a relative error: one for each run in turn."""

    errors: list[float] = field(default_factory=list)

    def call(
        self, op: str, args: dict[str, Any], blobs: Sequence[bytes], *, timeout_s: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        result, data = super().call(op, args, blobs, timeout_s=timeout_s)
        if op == "execute":
            (made,) = wire.unpack(result["arrays"], data)
            specs, packed = wire.pack([(made * (1 + self.errors.pop(0))).astype(np.float32)])
            return {"arrays": specs}, [bytes(d) for d in packed]
        return result, data


NEAR, OVER = 4.7e-5, 7e-5
"""Relative errors: the limit of such elements is about 5.2e-5."""


@pytest.mark.parametrize(
    ("errors", "again", "wrong"),
    [
        ([1e-6], 0, False),
        ([NEAR] * 4, 1, False),
        ([NEAR, OVER, NEAR, NEAR], 1, False),  # limits follow from what the op happens to err
        ([NEAR, NEAR, OVER, OVER], 1, True),
    ],
)
def test_a_pass_near_the_limit_is_tried_on_further_draws(errors: list[float], again: int, wrong: bool) -> None:
    runner = Kernel(errors=list(errors))
    checker, tally, patience = Checker(runner, references(runner, 1 << 30)), Tally(), Patience()  # type: ignore[arg-type]
    assert checker.check(CASES[0], b"kernel", ["normal"], tally, patience) is None
    assert len(tally.near) == again
    fault = checker.again(tally.near, {CASES[0].label: b"kernel"}, patience)
    assert not runner.errors
    assert (fault is not None) == wrong
    if fault is not None:
        assert fault.code == "incorrect" and "missed it on 2 of 3 further draws" in fault.message

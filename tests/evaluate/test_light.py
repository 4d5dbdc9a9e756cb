"""The speed of light: bytes always count, products only where no honest kernel can leave some out."""

from __future__ import annotations

import pytest

from aka.evaluate.light import floor_us
from aka.targets.chips import V5E
from aka.types import ArraySpec, ShapeCase, Signature, Workload

N = 8192
PRODUCT = 2.0 * N**3


def workload(primitives: dict[str, int], dtype: str = "bfloat16", flops: float = PRODUCT) -> Workload:
    leaf = ArraySpec((N, N), dtype)
    case = ShapeCase("whole", {}, Signature((leaf, leaf), {}), Signature((leaf,), {}), flops, 3 * N * N * 2)
    return Workload("op", "op.py", "", (case,), (), primitives, (), ("x", "y"))


@pytest.mark.parametrize(
    ("op", "seconds"),
    [
        (workload({"dot_general": 1, "add": 1, "tanh": 1}), PRODUCT / 197e12),
        (workload({"dot_general": 1}, "float32"), PRODUCT / 197e12),
        (workload({"dot_general": 1}, "int8"), PRODUCT / 393e12),
        (workload({"dot_general": 1, "select_n": 1}), 3 * N * N * 2 / 819e9),
        (workload({"dot_general": 2}), 3 * N * N * 2 / 819e9),
        (workload({"dot_general": 1, "reduce_sum": 1}), 3 * N * N * 2 / 819e9),
        (workload({"add": 1}, flops=0.0), 3 * N * N * 2 / 819e9),
    ],
    ids=["epilogue", "float32", "int8", "masked", "two products", "summed", "no product"],
)
def test_floor(op: Workload, seconds: float) -> None:
    assert floor_us(op, op.primary, V5E)[0] == pytest.approx(1e6 * seconds)

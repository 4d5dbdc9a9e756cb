"""The matrix unit: `tpu.matmul`, with float32 operands rounded to bf16 as the chip's single pass does."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np

from aka.artifact.code import Builder, Machine, Step
from aka.artifact.dialect import numpy_dtype
from aka.artifact.program import Op

Array = Any
_LEFT, _RIGHT = "abcdefgh", "ijklmnop"
_PLAIN: tuple[list[int], ...] = ([1], [0], [0], [1], [0, 0, 1, 1], [], [])


def _dimension_numbers(op: Op) -> tuple[list[int], ...]:
    """Contracting (left, right), free (left, right), the output's (side, axis) pairs, batch (left, right)."""
    text = op.attributes.get("dimension_numbers")
    if text is not None:
        return tuple([int(v) for v in group.split(",") if v.strip()] for group in re.findall(r"\[(.*?)\]", str(text)))
    left, right = bool(op.attributes.get("transpose_lhs")), bool(op.attributes.get("transpose_rhs"))
    if left or right:
        return [1 - left], [int(right)], [int(left)], [1 - right], [0, int(left), 1, 1 - right], [], []
    return _PLAIN


def equation(op: Op) -> str:
    """The matmul as an einsum equation."""
    numbers = _dimension_numbers(op)
    left = list(_LEFT[: len(op.operand_types[0].shape)])
    right = list(_RIGHT[: len(op.operand_types[1].shape)])
    for mine, yours in [*zip(numbers[0], numbers[1], strict=True), *zip(numbers[5], numbers[6], strict=True)]:
        right[yours] = left[mine]
    order = numbers[4]
    out = [(left, right)[side][axis] for side, axis in zip(order[::2], order[1::2], strict=True)]
    return f"{''.join(left)},{''.join(right)}->{''.join(out)}"


def operand(x: Array, single_pass: bool) -> Array:
    """The operand as the machine multiplies it: integers exactly (in float64), floats in float32."""
    if x.dtype.kind in "iu" or "int" in x.dtype.name:
        return x.astype(np.float64)
    if single_pass and x.dtype == np.float32:
        return x.astype(ml_dtypes.bfloat16).astype(np.float32)
    return x.astype(np.float32, copy=False)


def _matmul(op: Op, machine: Machine) -> Step:
    how = equation(op)
    single_pass = machine.mxu == "bf16" and "fp32" not in str(op.attributes.get("precision", ""))
    dtype = numpy_dtype(op.result_types[0].dtype)

    def matmul(left: Array, right: Array, start: Array) -> Array:
        product = np.einsum(how, operand(left, single_pass), operand(right, single_pass), optimize=True)
        return product.astype(dtype, copy=False) + start

    return matmul


TABLE: dict[str, Builder] = {"tpu.matmul": _matmul}

"""Matrix FLOP of an HLO op: the dots and convolutions in it (on TPU, XLA turns most dots into convolutions).

A multiply-add is 2 FLOP. Positions that fall into padding or dilation are left out: XLA writes a batched matmul as a
convolution in which almost every tap is such a position.
"""

from __future__ import annotations

import math
import re

import numpy as np

from aka.targets.hlotext import Computation, Instruction, Shape

_DTYPES = {"bf16": "bfloat16", "f32": "float32", "s8": "int8", "s4": "int4"}
_DTYPES |= {"f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "u8": "int8", "u4": "int4"}
# Passes of the matrix unit that one float32 product takes: 3 at "high", 6 at "highest".
_PASSES = {"highest": 6, "high": 3}


def flops(op: Instruction, scope: Computation, computations: dict[str, Computation]) -> tuple[float, str]:
    """(FLOP in terms of the fastest pass, dtype of the operands) of `op` with everything that it calls."""
    if op.opcode in ("dot", "convolution"):
        sides = [scope[name].shapes[0] for name in op.operands[:2] if name in scope and scope[name].shapes]
        if len(sides) < 2 or not op.shapes:
            return 0.0, ""
        count = _dot(op, *sides) if op.opcode == "dot" else _convolution(op, *sides)
        return count * _passes(op, sides), _dtype(sides)
    if op.opcode != "fusion":
        return 0.0, ""
    inner = [
        flops(o, computations[c], computations) for c in op.called("calls") for o in computations.get(c, {}).values()
    ]
    return sum(count for count, _ in inner), max(inner, default=(0.0, ""))[1]


def _dtype(sides: list[Shape]) -> str:
    """The slower of the two operands' dtypes: the narrow one is widened first."""
    order = ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "int4"]
    names = [_DTYPES.get(s.dtype, s.dtype) for s in sides]
    return min(names, key=lambda n: order.index(n) if n in order else 0)


def _passes(op: Instruction, sides: list[Shape]) -> int:
    precision = re.search(r"operand_precision=\{(\w+)", op.attributes)
    wide = all(s.dtype == "f32" for s in sides)
    return _PASSES.get(precision[1], 1) if precision and wide else 1


def _dot(op: Instruction, lhs: Shape, rhs: Shape) -> float:
    dims = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", op.attributes)
    contracted = math.prod(lhs.dims[int(d)] for d in dims[1].split(",") if d) if dims else 1
    return 2.0 * op.shapes[0].size * contracted


def _convolution(op: Instruction, lhs: Shape, rhs: Shape) -> float:
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", op.attributes)
    if labels is None:
        return 0.0
    left, right, out = labels[1], labels[2], labels[3]
    window = _window(op.attributes)
    groups = re.search(r"batch_group_count=(\d+)", op.attributes)
    pairs = 1
    for axis in (c for c in left if c.isdigit()):
        sizes = [s.dims[names.index(axis)] for s, names in ((lhs, left), (rhs, right), (op.shapes[0], out))]
        pairs *= _valid_pairs(*sizes, *(window[key][int(axis)] for key in _WINDOW))
    features = op.shapes[0].dims[out.index("f")] * rhs.dims[right.index("i")]
    batch = lhs.dims[left.index("b")] // (int(groups[1]) if groups else 1)
    return 2.0 * pairs * features * batch


_WINDOW = {"stride": 1, "pad": 0, "lhs_dilate": 1, "rhs_dilate": 1}
_MAX_RANK = 8


def _window(attributes: str) -> dict[str, list[int]]:
    """Per spatial axis: stride, low padding, dilation of the operand and of the kernel."""
    text = re.search(r"window=\{([^}]*)\}", attributes)
    found = dict(item.split("=", 1) for item in text[1].split()) if text else {}
    return {
        key: [int(v.split("_")[0]) for v in found[key].split("x")] if key in found else [default] * _MAX_RANK
        for key, default in _WINDOW.items()
    }


def _valid_pairs(size: int, taps: int, out: int, stride: int, pad: int, dilate: int, tap_dilate: int) -> int:
    """Pairs of output position and kernel tap that meet a real element of the operand along one axis."""
    at = np.arange(out)[:, None] * stride + np.arange(taps)[None, :] * tap_dilate - pad
    return int(((at >= 0) & (at % dilate == 0) & (at // dilate < size)).sum())

"""Scalar arithmetic of index maps and control flow, for all grid points at once; None stands for "not known".

A value is an int, an array with one entry per grid point, or None. Evaluating a kernel's body this way runs no vector
operation: it follows the loops and branches, and reports every DMA that they reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aka.artifact.program import Block, Function, Op

Value = Any
DmaHook = Callable[[Op, Value], None]

COMPARE: tuple[Callable[[Any, Any], Any], ...] = (
    np.equal,
    np.not_equal,
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
)


def _truncating_divide(a: Any, b: Any) -> Any:
    quotient = np.abs(a) // np.maximum(np.abs(b), 1)
    return np.where((np.asarray(a) < 0) != (np.asarray(b) < 0), -quotient, quotient)


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.minui": np.minimum,
    "arith.maxui": np.maximum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.divsi": _truncating_divide,
    "arith.divui": np.floor_divide,
    "arith.remsi": np.fmod,
    "arith.remui": np.fmod,
    "arith.floordivsi": np.floor_divide,
    "arith.shli": np.left_shift,
    "arith.shrsi": np.right_shift,
}
_CASTS = frozenset({"arith.index_cast", "arith.extsi", "arith.trunci", "tpu.assume_multiple"})


def grid_points(grid: Sequence[int]) -> np.ndarray[Any, Any]:
    """All points of the grid in the order in which one core visits them: int64 of shape (steps, rank)."""
    if not grid:
        return np.zeros((1, 0), np.int64)
    return np.stack(np.meshgrid(*[np.arange(g) for g in grid], indexing="ij"), -1).reshape(-1, len(grid))


def index_map(
    fn: Function, points: np.ndarray[Any, Any], prefetched: Sequence[np.ndarray[Any, Any]] | None
) -> np.ndarray[Any, Any] | None:
    """Block indices at every grid point, int64 of shape (points, rank); None where they depend on unknown data."""
    known = list(prefetched) if prefetched is not None else []
    rest = len(fn.body.arguments) - points.shape[1]
    columns = [points[:, i] for i in range(points.shape[1])]
    arguments = columns + known + [None] * (rest - len(known))
    found = Evaluator(fn.size).run(fn.body, arguments)
    if any(v is None for v in found):
        return None
    return np.stack([np.broadcast_to(np.asarray(v, np.int64), len(points)) for v in found], -1)


@dataclass
class Evaluator:
    """Follows a body's scalars. `exact` turns False once a branch, a bound or the work limit made it guess.

    `limit` bounds the operations evaluated. With `trips_only` each loop's body is visited once: enough to count the
    loops whose trip count is not known (`unknown_loops`).
    """

    size: int
    on_dma: DmaHook | None = None
    limit: int = 400_000
    trips_only: bool = False
    exact: bool = True
    unknown_loops: int = 0
    spent: int = 0
    env: list[Value] = field(init=False)

    def __post_init__(self) -> None:
        self.env = [None] * self.size

    def run(self, block: Block, arguments: Sequence[Value], mask: Value = True) -> list[Value]:
        """Evaluate the block; the values that its terminator hands on. `mask` says which grid points get here."""
        for slot, value in zip(block.arguments, arguments, strict=True):
            self.env[slot] = value
        for op in block.ops:
            inputs = [self.env[i] for i in op.operands]
            if op.name in _TERMINATORS:
                return inputs
            self.spent += 1
            outputs = self._op(op, inputs, mask)
            for slot, value in zip(op.results, outputs, strict=True):
                self.env[slot] = value
        return []

    def _op(self, op: Op, inputs: list[Value], mask: Value) -> list[Value]:
        structured = _STRUCTURED.get(op.name)
        if structured is not None:
            return structured(self, op, inputs, mask)
        if op.name == "tpu.enqueue_dma" and self.on_dma is not None:
            self.on_dma(op, mask)
        if len(op.results) != 1 or op.result_types[0].kind != "scalar":
            return [None] * len(op.results)
        return [_scalar(op, inputs)]

    def _if(self, op: Op, inputs: list[Value], mask: Value) -> list[Value]:
        condition = inputs[0]
        if condition is None:
            self.exact = False
            for region in op.regions:
                self.run(region, [], mask)
            return [None] * len(op.results)
        if np.ndim(condition) == 0:
            return self.run(op.regions[0 if condition else 1], [], mask) if len(op.regions) > 1 or condition else []
        then = self.run(op.regions[0], [], np.logical_and(mask, condition))
        other = self.run(op.regions[1], [], np.logical_and(mask, ~condition)) if len(op.regions) > 1 else []
        return [_merge(condition, a, b) for a, b in zip(then, other, strict=False)]

    def _for(self, op: Op, inputs: list[Value], mask: Value) -> list[Value]:
        low, high, step, *carried = inputs
        if low is None or high is None or step is None:
            self.exact, self.unknown_loops = False, self.unknown_loops + 1
            self.run(op.regions[0], [None] * len(op.regions[0].arguments), mask)
            return [None] * len(carried)
        trips = np.maximum(-((low - high) // step), 0)
        for i in range(min(int(np.max(trips)), 1) if self.trips_only else int(np.max(trips))):
            if self.spent > self.limit:
                self.exact = False
                break
            active = True if np.ndim(trips) == 0 else i < trips
            here = np.logical_and(mask, active) if active is not True else mask
            made = self.run(op.regions[0], [low + i * step, *carried], here)
            carried = made if active is True else [_merge(active, a, b) for a, b in zip(made, carried, strict=True)]
        return carried

    def _while(self, op: Op, inputs: list[Value], mask: Value) -> list[Value]:
        state = inputs
        while True:
            condition, *state = self.run(op.regions[0], state, mask)
            if condition is None or self.spent > self.limit:
                self.exact, self.unknown_loops = False, self.unknown_loops + (condition is None)
                self.run(op.regions[1], state, mask)
                return [None] * len(op.results)
            active = np.logical_and(mask, condition)
            if not np.any(active):
                return state
            made = self.run(op.regions[1], state, active)
            state = made if np.all(condition) else [_merge(condition, a, b) for a, b in zip(made, state, strict=True)]
            mask = active

    def _region(self, op: Op, inputs: list[Value], mask: Value) -> list[Value]:
        return self.run(op.regions[0], inputs, mask)


_TERMINATORS = frozenset({"func.return", "scf.yield", "scf.condition", "tpu.yield", "memref.alloca_scope.return"})
_STRUCTURED: dict[str, Callable[[Evaluator, Op, list[Value], Value], list[Value]]] = {
    "scf.if": Evaluator._if,
    "scf.for": Evaluator._for,
    "scf.while": Evaluator._while,
    "tpu.region": Evaluator._region,
}


def _merge(condition: Value, yes: Value, no: Value) -> Value:
    return None if yes is None or no is None or condition is None else np.where(condition, yes, no)


def _scalar(op: Op, inputs: list[Value]) -> Value:
    """The one scalar result of an operation without regions, None if it is not known."""
    if op.name == "arith.constant":
        value = op.attributes["value"]
        return value if isinstance(value, (int, bool)) else None
    if any(v is None for v in inputs):
        return None
    if op.name in BINARY:
        return BINARY[op.name](*inputs)
    if op.name == "arith.cmpi":
        return COMPARE[op.attributes["predicate"]](*inputs)
    if op.name == "arith.select":
        return np.where(*inputs)
    if op.name in _CASTS:
        return inputs[0]
    if op.name == "arith.extui":
        return np.asarray(inputs[0]).astype(np.int64)
    if op.name == "memref.load":
        return _load(inputs[0], inputs[1:])
    return None


def _load(array: np.ndarray[Any, Any], indices: list[Value]) -> Value:
    """An element of a prefetched array; indices outside it are clipped (a branch not taken may hold some)."""
    return array[tuple(np.clip(i, 0, n - 1) for i, n in zip(indices, array.shape, strict=True))]

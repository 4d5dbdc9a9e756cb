"""Control flow, and the operations that do nothing here."""

from __future__ import annotations

from typing import Any

import numpy as np

from aka.artifact import ops_math, ops_matmul, ops_memory, ops_shape
from aka.artifact.code import Builder, Code, Machine, Step, translate
from aka.artifact.dialect import numpy_dtype
from aka.artifact.program import Op

Value = Any


def _regions(op: Op, machine: Machine) -> list[Code]:
    return [translate(region, machine, TABLE) for region in op.regions]


def _results(op: Op, values: list[Value]) -> Value:
    """A region's values in the form that a step returns."""
    return values[0] if len(op.results) == 1 else values


def _if(op: Op, machine: Machine) -> Step:
    branches = _regions(op, machine)

    def branch(condition: Value) -> Value:
        chosen = branches[0 if condition else 1] if condition or len(branches) > 1 else None
        return _results(op, chosen.run(machine.env)) if chosen else []

    return branch


def _for(op: Op, machine: Machine) -> Step:
    (body,) = _regions(op, machine)
    counter = numpy_dtype(op.operand_types[0].dtype).type

    def loop(low: Value, high: Value, step: Value, *carried: Value) -> Value:
        state: list[Value] = list(carried)
        for i in range(int(low), int(high), int(step)):
            state = body.run(machine.env, [counter(i), *state])
        return _results(op, state)

    return loop


def _while(op: Op, machine: Machine) -> Step:
    condition, body = _regions(op, machine)

    def loop(*carried: Value) -> Value:
        state: list[Value] = list(carried)
        while True:
            again, *state = condition.run(machine.env, state)
            if not again:
                return _results(op, state)
            state = body.run(machine.env, state)

    return loop


def _region(op: Op, machine: Machine) -> Step:
    (body,) = _regions(op, machine)
    return lambda *values: _results(op, body.run(machine.env, values))


def _nothing(op: Op, machine: Machine) -> Step:
    return lambda *values: None


def _bound(op: Op, machine: Machine) -> Step:
    axis = int(op.attributes["dim"])
    return lambda: np.int32(machine.grid[axis])


def _zero(op: Op, machine: Machine) -> Step:
    return lambda: np.int32(0)


TABLE: dict[str, Builder] = {
    **ops_math.TABLE,
    **ops_shape.TABLE,
    **ops_matmul.TABLE,
    **ops_memory.TABLE,
    "scf.if": _if,
    "scf.for": _for,
    "scf.while": _while,
    "tpu.region": _region,
    "tpu.iteration_bound": _bound,
    "tpu.device_id": _zero,
    **dict.fromkeys(("tpu.trace_start", "tpu.trace_stop", "tpu.trace_value", "tpu.delay", "tpu.log"), _nothing),
}

"""What a program does outside its kernels, and whether the kernels matter: facts for the structure gate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from jax.export import Exported
from jaxlib.mlir import ir

from aka.artifact import callsite, dialect, mlir
from aka.artifact.ghost import ghost
from aka.artifact.program import read_type
from aka.artifact.reach import feeds_output

__all__ = [
    "OutsideOp", "constants_bytes", "custom_call_targets", "endless", "feeds_output", "ghost", "interface_elements",
    "outside",
]  # fmt: skip

# Structure rather than work; what their regions hold is listed on its own.
_CONTAINERS = frozenset({"func.func", "func.return", "func.call", "stablehlo.return"})


@dataclass(frozen=True)
class OutsideOp:
    """A StableHLO operation outside every kernel; a composite goes by its own name. `elements` is the size of its
    largest operand or result; it runs `runs` times in one call of the program, None if that hangs on values."""

    name: str
    elements: int
    result_type: str
    runs: int | None = 1


def outside(exported: Exported) -> list[OutsideOp]:
    """Every operation outside the kernels, in textual order, through called functions and regions.

    Each operation is listed once, however often it runs. Custom calls of other targets than a kernel are listed.
    """
    with mlir.context():
        module = mlir.module_of(exported)
        runs = callsite.Runs(mlir.functions(module))
        found = [o for o in mlir.walk(module.operation) if o.name not in _CONTAINERS]
        return [_describe(o, runs) for o in found if mlir.target(o) != mlir.KERNEL_TARGET]


def endless(exported: Exported) -> bool:
    """Whether some loop's trips cannot be read off the program."""
    with mlir.context():
        module = mlir.module_of(exported)
        return any(o.name == "stablehlo.while" and callsite.trips(o) is None for o in mlir.walk(module.operation))


def interface_elements(exported: Exported) -> int:
    """Elements that go in and come out, in sum."""
    return sum(math.prod(a.shape) for a in (*exported.in_avals, *exported.out_avals))


def _describe(op: Any, runs: callsite.Runs) -> OutsideOp:
    values = [*op.operands, *op.results]
    elements = max((math.prod(read_type(str(v.type)).shape) for v in values), default=0)
    result = str(op.results[0].type) if len(op.results) else ""
    name = op.attributes["name"].value if op.name == "stablehlo.composite" else op.name
    return OutsideOp(name, elements, result, runs.of(op)[0])


def custom_call_targets(exported: Exported) -> list[str]:
    """The target of every custom call, in textual order."""
    with mlir.context():
        module = mlir.module_of(exported)
        targets = [mlir.target(o) for o in mlir.walk(module.operation)]
        return [t for t in targets if t is not None]


def constants_bytes(exported: Exported) -> int:
    """Bytes of all constants outside the kernels that are not one repeated value."""
    with mlir.context():
        module = mlir.module_of(exported)
        values = [o.attributes["value"] for o in mlir.walk(module.operation) if o.name == "stablehlo.constant"]
        return sum(_dense_bytes(v) for v in values)


def _dense_bytes(value: Any) -> int:
    type_ = read_type(str(value.type))
    splat = isinstance(value, ir.DenseElementsAttr) and value.is_splat
    return 0 if splat and type_.shape else math.prod(type_.shape) * dialect.bits(type_.dtype) // 8

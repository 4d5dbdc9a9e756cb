"""Where a program calls its kernels: operand and result shapes, aliases, and how many times the call runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from aka.artifact import mlir
from aka.artifact.program import Type, read_type


@dataclass(frozen=True)
class CallSite:
    """One `tpu_custom_call`. `runs` is how often a call of the program runs it, None inside a loop of unknown length.

    `operands` and `results` are shapes; `types` the results' types; `aliases` are (operand, result) pairs.
    """

    operands: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    types: tuple[Type, ...]
    aliases: tuple[tuple[int, int], ...]
    in_loop: bool
    runs: int | None


def call_sites(module: ir.Module) -> list[tuple[Any, CallSite]]:
    """Every kernel call with its site, in the order of `mlir.kernel_calls`."""
    return [(op, site(op, mlir.functions(module))) for op in mlir.kernel_calls(module)]


def site(op: Any, functions: dict[str, Any]) -> CallSite:
    """Read one kernel call."""
    operands = tuple(read_type(str(v.type)) for v in op.operands)
    results = tuple(read_type(str(v.type)) for v in op.results)
    runs, in_loop = _runs(op, functions)
    return CallSite(
        tuple(t.shape for t in operands), tuple(t.shape for t in results), results, _aliases(op), in_loop, runs
    )


def _aliases(op: Any) -> tuple[tuple[int, int], ...]:
    if "output_operand_aliases" not in op.attributes:
        return ()
    found = []
    for alias in op.attributes["output_operand_aliases"]:
        text = str(alias)
        operand = re.search(r"operand_index = (\d+)", text)
        result = re.search(r"output_tuple_indices = \[(\d+)\]", text)
        found.append((int(operand[1]) if operand else 0, int(result[1]) if result else 0))
    return tuple(found)


def _runs(op: Any, functions: dict[str, Any]) -> tuple[int | None, bool]:
    """(runs per call of the program, whether a loop is around it), through every caller."""
    runs: int | None = 1
    in_loop = False
    at, parent = op, op.parent
    while parent is not None and parent.name != "func.func":
        at, parent = parent, parent.parent
        if at.name == "stablehlo.while":
            trips = _trips(at)
            in_loop, runs = True, None if trips is None or runs is None else runs * trips
    name = parent.attributes["sym_name"].value if parent is not None else "main"
    if name == "main":
        return runs, in_loop
    callers = [_runs(c, functions) for c in _callers(name, functions)]
    total = sum(r or 0 for r, _ in callers)
    unknown = runs is None or any(r is None for r, _ in callers)
    return None if unknown else (runs or 0) * total, in_loop or any(inner for _, inner in callers)


def _callers(name: str, functions: dict[str, Any]) -> list[Any]:
    calls = (o for f in functions.values() for o in mlir.walk(f) if o.name in ("func.call", "call"))
    return [o for o in calls if o.attributes["callee"].value == name]


def _trips(loop: Any) -> int | None:
    """Trip count of a counting loop (fori_loop and scan with constant bounds lower to one), None for any other."""
    condition = loop.regions[0].blocks[0]
    compares = [o.operation for o in condition if o.operation.name == "stablehlo.compare"]
    if len(compares) != 1 or "LT" not in str(compares[0].attributes["comparison_direction"]):
        return None
    left, right = compares[0].operands
    number = next((i for i, a in enumerate(condition.arguments) if a == left), None)
    if number is None:
        return None
    low, high = _constant(loop.operands[number]), _constant(right)
    return None if low is None or high is None or not _steps_by_one(loop, number) else max(0, high - low)


def _steps_by_one(loop: Any, number: int) -> bool:
    body = loop.regions[1].blocks[0]
    last = [o.operation for o in body][-1].operands[number]
    if isinstance(last.owner, ir.Block) or last.owner.operation.name != "stablehlo.add":
        return False
    counter, step = last.owner.operation.operands
    return bool(counter == body.arguments[number]) and _constant(step) == 1


def _constant(value: Any) -> int | None:
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "stablehlo.constant":
        return None
    splat = value.owner.operation.attributes["value"]
    if not splat.is_splat or not isinstance(splat.get_splat_value(), ir.IntegerAttr):
        return None
    return int(splat.get_splat_value().value)

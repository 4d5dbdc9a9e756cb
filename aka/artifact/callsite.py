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
    runs = Runs(mlir.functions(module))
    return [(op, site(op, runs)) for op in mlir.kernel_calls(module)]


def site(op: Any, how_often: Runs) -> CallSite:
    """Read one kernel call."""
    operands = tuple(read_type(str(v.type)) for v in op.operands)
    results = tuple(read_type(str(v.type)) for v in op.results)
    runs, in_loop = how_often.of(op)
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


class Runs:
    """How often each operation of a module runs, through loops and every caller."""

    def __init__(self, functions: dict[str, Any]) -> None:
        self._calls: dict[str, list[Any]] = {}
        self._known: dict[str, tuple[int | None, bool]] = {"main": (1, False)}
        for op in (o for f in functions.values() for o in mlir.walk(f) if o.name in ("func.call", "call")):
            self._calls.setdefault(op.attributes["callee"].value, []).append(op)

    def of(self, op: Any) -> tuple[int | None, bool]:
        """(runs per call of the program, None if unknown; whether a loop is around it)."""
        runs: int | None = 1
        in_loop = False
        at, parent = op, op.parent
        while parent is not None and parent.name != "func.func":
            at, parent = parent, parent.parent
            if at.name == "stablehlo.while":
                in_loop, runs = True, _product(runs, trips(at))
        above, looped = self._function(parent.attributes["sym_name"].value if parent is not None else "main")
        return _product(runs, above), in_loop or looped

    def _function(self, name: str) -> tuple[int | None, bool]:
        if name not in self._known:
            callers = [self.of(c) for c in self._calls.get(name, ())]
            total = None if any(r is None for r, _ in callers) else sum(r or 0 for r, _ in callers)
            self._known[name] = total, any(inner for _, inner in callers)
        return self._known[name]


def _product(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one * other


def trips(loop: Any) -> int | None:
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

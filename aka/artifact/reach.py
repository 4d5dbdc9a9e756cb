"""Which kernels' results reach the program's result: a value flow backwards through calls, loops and branches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jax.export import Exported
from jaxlib.mlir import ir

from aka.artifact import mlir


def feeds_output(exported: Exported) -> list[bool]:
    """For each kernel, in the order of `decode.kernels`: whether any of its results can reach the module's result.

    Loops and calls are followed value by value, other operations with regions as a whole. A result that is only
    multiplied by zero does reach it: ghost replay is there to see that.
    """
    with mlir.context():
        module = mlir.module_of(exported)
        flow = _Backward(mlir.functions(module))
        flow.mark(_ends(flow.functions["main"].regions[0]))
        return [any(r in flow.live for r in op.results) for op in mlir.kernel_calls(module)]


def _ends(region: Any) -> list[Any]:
    """The values that the region's terminator hands on."""
    return list([o.operation for o in region.blocks[0]][-1].operands)


class _Backward:
    def __init__(self, functions: dict[str, Any]) -> None:
        self.functions = functions
        self.live: set[Any] = set()
        self.callers: dict[str, list[Any]] = {}
        for op in (o for f in functions.values() for o in mlir.walk(f) if o.name == "func.call"):
            self.callers.setdefault(op.attributes["callee"].value, []).append(op)

    def mark(self, values: Iterable[Any]) -> None:
        """Mark the values and everything that they are computed from."""
        pending = list(values)
        while pending:
            value = pending.pop()
            if value not in self.live:
                self.live.add(value)
                pending.extend(self._sources(value))

    def _sources(self, value: Any) -> list[Any]:
        if isinstance(value.owner, ir.Block):
            return self._argument(value.owner.owner.operation, ir.BlockArgument(value).arg_number)
        op, index = value.owner.operation, ir.OpResult(value).result_number
        if op.name == "func.call":
            return [_ends(self.functions[op.attributes["callee"].value].regions[0])[index]]
        if op.name == "stablehlo.optimization_barrier":
            return [op.operands[index]]
        if op.name == "stablehlo.while":
            return [op.operands[index], _ends(op.regions[1])[index], *_ends(op.regions[0])]
        return [*op.operands, *(end for region in op.regions for end in _ends(region))]

    def _argument(self, parent: Any, index: int) -> list[Any]:
        """What can enter a block as its argument of this number."""
        if parent.name == "func.func":
            return [call.operands[index] for call in self.callers.get(parent.attributes["sym_name"].value, ())]
        if parent.name == "stablehlo.while":
            return [parent.operands[index], _ends(parent.regions[1])[index]]
        return list(parent.operands)

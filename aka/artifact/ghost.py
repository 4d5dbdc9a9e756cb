"""Ghost replay: the artifact with every kernel's results replaced by a fill value. What is left is the outside work.

An honest program's result turns NaN under a NaN fill, and changes under zeros; one that computes outside its kernels
comes out right.
"""

from __future__ import annotations

from typing import Any

from jax.export import Exported
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from aka.artifact import mlir


def ghost(exported: Exported, fill: float = float("nan"), whole: int = 0) -> tuple[Exported, int]:
    """(the artifact for the CPU without its kernels, how many kernel calls were replaced).

    Floating-point results become `fill`; integers and booleans become `whole`.
    """
    with mlir.context():
        module = mlir.module_of(exported)
        calls = [o for o in mlir.walk(module.operation) if mlir.target(o) == mlir.KERNEL_TARGET]
        for op in calls:
            _replace(op, fill, whole)
        return mlir.with_module(exported, module, platforms=("cpu",)), len(calls)


def _replace(op: Any, fill: float, whole: int) -> None:
    with ir.InsertionPoint(op), ir.Location.unknown():
        for result in op.results:
            type_ = ir.RankedTensorType(result.type)
            splat = ir.DenseElementsAttr.get_splat(type_, _scalar(type_.element_type, fill, whole))
            result.replace_all_uses_with(stablehlo.constant(splat))
    op.erase()


def _scalar(element: ir.Type, fill: float, whole: int) -> ir.Attribute:
    if isinstance(element, ir.FloatType):
        return ir.FloatAttr.get(element, fill)
    return ir.IntegerAttr.get(element, whole)

"""Moving a block along one of its dimensions: `roll`, an operation of the rewrites. Its last elements come first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aka.fuse.graph import Node

if TYPE_CHECKING:
    from aka.fuse.body import Body


def roll(body: Body, node: Node) -> None:
    """Element j holds what element j - shift held. The compiler rolls forward only, and 32-bit numbers only."""
    dim = body.plan.axes.dims(node.arrays[0])[node.params[0]["dimension"]]
    assert dim is not None
    local = body.holding(node.arrays[0], [dim.axis])
    at = next(i for i, d in enumerate(local.slots) if d is not None and d.axis == dim.axis)
    by = node.params[0]["shift"]
    shift = str(by) if by >= 0 else f"{local.name}.shape[{at}] - {-by}"
    body.let(node, f"pltpu.roll({local.name}, {shift}, {at})", local.slots, local.dtype, "rolled")

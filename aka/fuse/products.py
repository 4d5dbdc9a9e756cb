"""Matrix products inside a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aka.fuse.axes import Dim
from aka.fuse.graph import Node
from aka.fuse.local import Slots
from aka.fuse.sizes import NoFit

if TYPE_CHECKING:
    from aka.fuse.body import Body


def dot(body: Body, node: Node) -> tuple[str, Slots, str]:
    (left, lslots), (right, rslots), out, contract = dot_operands(body, node)
    places = [[i for i, d in enumerate(s) if d is not None and d.axis in contract] for s in (lslots, rslots)]
    numbers = f"((({places[0][0]},), ({places[1][0]},)), ((), ()))"
    whole = "int" in body.plan.graph.values[node.arrays[0]].dtype
    kind = "int32" if whole else "float32"
    precise = node.params[0].get("precision")
    extra = ", precision=lax.Precision.HIGHEST" if precise is not None and "HIGHEST" in str(precise) else ""
    text = f"lax.dot_general({left}, {right}, {numbers}, preferred_element_type=jnp.{kind}{extra})"
    if len(out) > 2:
        text = f"{text}.reshape({body.lengths(out)})"
    return text, out, kind


def _is_better_turned(body: Body, out: Slots) -> bool:
    """Whether most values of the op have the product's two axes the other way round."""
    first, second = (d.axis if d is not None else None for d in out)
    turned = 0
    for value in (o for n in body.plan.graph.nodes for o in n.outputs):
        layout = [d.axis for d in body.plan.axes.layout(value)]
        if first in layout and second in layout:
            turned += 1 if layout.index(second) < layout.index(first) else -1
    return turned > 0


def dot_operands(body: Body, node: Node) -> tuple[tuple[str, Slots], tuple[str, Slots], Slots, set[int]]:
    (lc, _), (lb, _) = node.params[0]["dimension_numbers"]
    axes = body.plan.axes
    contract = {axes.merged(d.axis) for i in lc if (d := axes.dims(node.arrays[0])[i]) is not None}
    if len(contract) != 1:
        raise NoFit(f"a matrix product over {len(contract)} dimensions at once")
    batch = {axes.merged(d.axis) for i in lb if (d := axes.dims(node.arrays[0])[i]) is not None}
    if not batch <= set(body.plan.squeezed):
        raise NoFit("a batched matrix product whose batch is held whole")
    sides = [_side(body, v, contract) for v in node.arrays]
    free = [[d for d in slots if d is None or d.axis not in contract] for _, slots, _ in sides]
    merged = [outer or inner for inner, (_, _, outer) in zip(free, sides, strict=True)]
    out = (*merged[0], *merged[1])
    if len(out) == 2 and _is_better_turned(body, out):
        sides, out = sides[::-1], out[::-1]
    return sides[0][:2], sides[1][:2], out, contract


def _side(body: Body, value: int, contract: set[int]) -> tuple[str, Slots, list[Dim | None]]:
    """A matrix operand as two dimensions, in the dtype that the op multiplies; and the dimensions that were folded
    into its rows, if there were several."""
    dtype = body.plan.graph.values[value].dtype
    local = body.local(value)
    if not contract <= {d.axis for d in local.slots if d is not None}:
        local = body.holding(value, sorted(contract))
    slots = local.slots
    text = local.raw if local.raw_dtype == dtype else local.name
    if local.dtype != dtype != local.raw_dtype:
        text = f"{local.name}.astype(jnp.{dtype})"
    folded: list[Dim | None] = []
    if len(slots) != 2:
        own: list[Dim | None] = [d for d in slots if d is not None]
        if len(own) > 2:
            return _folded(body, text, own, contract)
        slots = body.padded(own)
        text = f"{text}.reshape({body.lengths(slots)})"
    return text, slots, folded


def _folded(body: Body, text: str, own: list[Dim | None], contract: set[int]) -> tuple[str, Slots, list[Dim | None]]:
    """An operand of more dimensions: all but the contracted one, which must be the last, become rows."""
    *rows, last = own
    if last is None or last.axis not in contract:
        raise NoFit("a matrix product of blocks of three dimensions, not over the last")
    count = " * ".join(f"({t})" if " " in t else t for t in map(body.length, rows))
    return f"{text}.reshape({count}, {body.length(last)})", (rows[0], last), rows

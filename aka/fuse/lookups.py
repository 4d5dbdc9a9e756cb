"""Operations that make or follow an index: iota, argmax, picking one element of a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aka.fuse import phrases
from aka.fuse.axes import picked
from aka.fuse.graph import Node
from aka.fuse.local import Local, Slots

if TYPE_CHECKING:
    from aka.fuse.body import Body


def choice(body: Body, node: Node) -> None:
    """argmax and argmin by a comparison and the smallest index: the compiler's own give no columns."""
    gone = body.gone(node)
    local = body.holding(node.arrays[0], gone)
    at = next(i for i, d in enumerate(local.slots) if d is not None and d.axis in gone)
    slots: Slots = tuple(None if i == at else d for i, d in enumerate(local.slots))
    extreme = "max" if node.op == "argmax" else "min"
    top = body.name("top")
    body.line(f"{top} = jnp.{extreme}({local.name}, axis={at}, keepdims=True)")
    index = f"lax.broadcasted_iota(jnp.int32, {local.name}.shape, {at})"
    found = body.name("found")
    # A NaN counts as the extreme, the first one wins.
    odd, odd_row = body.name("odd"), body.name("odd_row")
    body.line(f"{odd} = jnp.where({local.name} != {local.name}, 1, 0)")
    body.line(f"{odd_row} = jnp.max({odd}, axis={at}, keepdims=True)")
    body.line(f"{found} = jnp.where({odd_row} == 1, {odd}, jnp.where({local.name} == {top}, 1, 0))")
    where = f"jnp.where({found} == 1, {index}, {body.length(local.slots[at])})"
    body.let(node, f"jnp.min({where}, axis={at}, keepdims=True)", slots, "int32", "index")


def iota(body: Body, node: Node) -> None:
    dim = body.plan.axes.dims(node.outputs[0])[node.params[0]["dimension"]]
    dtype = phrases.working(body.plan.graph.values[node.outputs[0]].dtype)
    if dim is None:
        body.locals[node.outputs[0]] = Local("0", (), dtype)
        return
    if dim.axis in body.plan.squeezed:
        at_once = f"jnp.full((1, 1), pl.program_id({body.plan.grid.index(dim.axis)}), jnp.int32)"
        text = f"{at_once}.astype(jnp.float32)" if dtype == "float32" else at_once
        body.let(node, text, (None, None), dtype, "index")
        return
    slots = body.padded([dim])
    at = slots.index(dim)
    text = f"lax.broadcasted_iota(jnp.int32, ({body.lengths(slots)}), {at})"
    if dim.axis in body.plan.grid:
        step = body.length(dim) if dim.axis in body.block_names else body.size(dim.factor)
        text = f"pl.program_id({body.plan.grid.index(dim.axis)}) * {step} + {text}"
    if dtype == "float32":
        text = f"({text}).astype(jnp.float32)"
    body.let(node, text, slots, dtype, "index")


def gather(body: Body, node: Node) -> None:
    """One element of each row by a comparison with its index, and a sum: lanes cannot be addressed one by one."""
    table, chosen = node.arrays
    dim = body.plan.axes.dims(table)[picked(body.plan.graph, node)]
    assert dim is not None
    local, index = body.holding(table, [dim.axis]), body.computing(chosen)
    at = next(i for i, d in enumerate(local.slots) if d is not None and d.axis == dim.axis)
    target: Slots = tuple(None if i == at else d for i, d in enumerate(local.slots))
    lanes = f"lax.broadcasted_iota(jnp.int32, {local.name}.shape, {at})"
    place = body.to(index, target)
    if "CLIP" in str(node.params[0]["mode"]).upper():
        place = f"jnp.clip({place}, 0, {body.length(local.slots[at])} - 1)"
    where = f"jnp.where({lanes} == {place}, {local.name}, 0)"
    made = body.let(node, f"jnp.sum({where}, axis={at}, keepdims=True)", target, local.dtype, "picked")
    if "FILL" in str(node.params[0]["mode"]).upper() and local.dtype == "float32":
        number = body.to(index, target)
        inside = f"({number} >= 0) & ({number} < {body.length(local.slots[at])})"
        body.let(node, f"jnp.where({inside}, {made.name}, jnp.nan)", target, local.dtype, "picked")

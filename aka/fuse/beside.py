"""Shifts in a kernel's body: a block moved by a few places, with rows from beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aka.fuse.axes import Dim
from aka.fuse.graph import Literal, Node
from aka.fuse.local import Local

if TYPE_CHECKING:
    from aka.fuse.body import Body

MOVES = '''def _behind(x: jax.Array, before: jax.Array, by: int, axis: int) -> jax.Array:
    """Row i holds row i - by of x; the first ones hold the last of `before`."""
    edge, size = before.shape[axis], x.shape[axis]
    if axis != x.ndim - 2 or edge % 8 or size % 8 or edge > size:
        start = max(edge - by, 0)
        return lax.slice_in_dim(jnp.concatenate([before, x], axis=axis), start, start + size, axis=axis)
    rows, moved = lax.broadcasted_iota(jnp.int32, before.shape, axis), pltpu.roll(x, by % size, axis)
    own, beside = lax.slice_in_dim(moved, 0, edge, axis=axis), pltpu.roll(before, by % edge, axis)
    first, rest = jnp.where(rows < by, beside, own), lax.slice_in_dim(moved, edge, size, axis=axis)
    return jnp.concatenate([first, rest], axis=axis) if edge < size else first


def _ahead(x: jax.Array, after: jax.Array, by: int, axis: int) -> jax.Array:
    """Row i holds row i + by of x; the last ones hold the first of `after`."""
    edge, size = after.shape[axis], x.shape[axis]
    if axis != x.ndim - 2 or edge % 8 or size % 8 or edge > size:
        start = min(edge, by)
        return lax.slice_in_dim(jnp.concatenate([x, after], axis=axis), start, start + size, axis=axis)
    rows, moved = lax.broadcasted_iota(jnp.int32, after.shape, axis), pltpu.roll(x, (size - by) % size, axis)
    own, beside = lax.slice_in_dim(moved, size - edge, size, axis=axis), pltpu.roll(after, (edge - by) % edge, axis)
    last, rest = jnp.where(rows < edge - by, own, beside), lax.slice_in_dim(moved, 0, size - edge, axis=axis)
    return jnp.concatenate([rest, last], axis=axis) if edge < size else last
'''
"""Rows move by rotations, which the compiler only has for whole tiles of 8 rows; other dimensions by slices."""


def shift(body: Body, node: Node) -> None:
    value, *halo = node.arrays
    dim, by = body.plan.axes.dims(value)[node.params[0]["dimension"]], node.params[0]["by"]
    assert dim is not None
    local = body.holding(value, [dim.axis])
    at = _place(local, dim)
    if halo:
        beside = body.plan.axes.dims(halo[0])[node.params[0]["dimension"]]
        assert beside is not None
        rows = body.to(
            body.holding(halo[0], [beside.axis]), tuple(beside if i == at else d for i, d in enumerate(local.slots))
        )
    else:
        count = max(8, 1 << (abs(by) - 1).bit_length())
        lengths = ", ".join(str(count) if i == at else body.length(d) for i, d in enumerate(local.slots))
        rows = f"jnp.full(({lengths}), {_fill(body, node)}, jnp.{local.dtype})"
    text = f"{'_behind' if by > 0 else '_ahead'}({local.name}, {rows}, {abs(by)}, {at})"
    body.let(node, text, local.slots, local.dtype, "shifted")


def edge(body: Body, node: Node) -> None:
    """A constant in place of the rows that the array does not have."""
    value, fill = node.arrays[0], _fill(body, node)
    dim = body.plan.axes.dims(value)[node.params[0]["dimension"]]
    assert dim is not None
    halo = body.plan.axes.halos.get(dim.axis)
    local = body.holding(value, [dim.axis])
    main = dim.axis if halo is None else halo.main
    if main not in body.plan.grid:
        text = local.name if halo is None else f"jnp.full_like({local.name}, {fill})"
        body.let(node, text, local.slots, local.dtype, "inside")
        return
    step = f"pl.program_id({body.plan.grid.index(main)})"
    if halo is not None and not halo.ahead:
        body.let(node, f"jnp.where({step} == 0, {fill}, {local.name})", local.slots, local.dtype, "inside")
        return
    block, size = body.length(Dim(main, (1,) * body.sizes.cases)), body.size(body.plan.axes.size(main))
    start = f"{step} * {block}" if halo is None else f"({step} + 1) * {block}"
    place = f"{start} + lax.broadcasted_iota(jnp.int32, {local.name}.shape, {_place(local, dim)})"
    text = f"jnp.where({place} < {size}, {local.name}, {fill})"
    if halo is None:
        text = f"{local.name} if {size} % {block} == 0 else {text}"
    body.let(node, text, local.slots, local.dtype, "inside")


def _place(local: Local, dim: Dim) -> int:
    return next(i for i, d in enumerate(local.slots) if d is not None and d.axis == dim.axis)


def _fill(body: Body, node: Node) -> str:
    return body.number(*next((i, i.dtype) for i in node.inputs if isinstance(i, Literal)))

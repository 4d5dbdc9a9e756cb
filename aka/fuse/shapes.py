"""Operations that cut, join and rearrange a block: slice, pad, split, concatenate, reshape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aka.fuse import phrases
from aka.fuse.axes import Dim, groups
from aka.fuse.graph import Node
from aka.fuse.local import Local
from aka.fuse.sizes import NoFit

if TYPE_CHECKING:
    from aka.fuse.body import Body


def reshape(body: Body, node: Node) -> None:
    value, out = node.arrays[0], node.outputs[0]
    if any(d is not None and d.axis in body.plan.squeezed for v in (value, out) for d in _split_dims(body, node, v)):
        raise NoFit("a reshape of a batch axis")
    local = body.computing(value)
    own = {d.axis for d in local.slots if d is not None}
    split = {d.axis for d in _split_dims(body, node, value) if d is not None}
    if split & own:
        local = body.holding(value, sorted({d.axis for d in body.dims(value)}))
        slots = body.padded(list(body.dims(out)))
        source = body.to(local, body.padded(list(body.dims(value))))
        body.let(node, f"{source}.reshape({body.lengths(slots)})", slots, local.dtype)
    else:
        body.locals[out] = local


def _split_dims(body: Body, node: Node, value: int) -> list[Dim | None]:
    side = 0 if value == node.arrays[0] else 1
    shapes = body.plan.axes.shape(node.arrays[0]), body.plan.axes.shape(node.outputs[0])
    parts = [pair[side] for pair in groups(*shapes) if len(pair[0]) != 1 or len(pair[1]) != 1]
    return [body.plan.axes.dims(value)[i] for part in parts for i in part]


def slices(body: Body, node: Node) -> None:
    starts, limits = ([p[k] for p in node.params] for k in ("start_indices", "limit_indices"))
    if any(s is not None and set(s) != {1} for s in (p["strides"] for p in node.params)):
        raise NoFit("a slice with strides")
    take(body, node, node.outputs[0], starts, limits)


def pad(body: Body, node: Node) -> None:
    value, out = node.arrays[0], node.outputs[0]
    configs = [p["padding_config"] for p in node.params]
    places = [i for i in range(len(configs[0])) if any(c[i][:2] != (0, 0) for c in configs)]
    constant = node.inputs[1]
    if len(places) != 1 or any(min(c[places[0]][:2]) < 0 for c in configs) or isinstance(constant, int):
        raise NoFit("padding of more than one dimension, or by less than nothing")
    dim, new = body.plan.axes.dims(value)[places[0]], body.plan.axes.dims(out)[places[0]]
    if dim is None or new is None:
        raise NoFit("padding of a dimension of one")
    local = body.holding(value, sorted({d.axis for d in body.dims(value)}))
    at = next(i for i, d in enumerate(local.slots) if d is not None and d.axis == dim.axis)
    parts = [local.name]
    for side in (0, 1):
        width = tuple(c[places[0]][side] for c in configs)
        if set(width) != {0}:
            lengths = [body.size(width) if i == at else body.length(d) for i, d in enumerate(local.slots)]
            kind = f"jnp.{local.dtype}"
            filler = f"jnp.full(({', '.join(lengths)}), {body.number(constant, constant.dtype)}, {kind})"
            parts.insert(0 if side == 0 else len(parts), filler)
    slots = tuple(new if i == at else d for i, d in enumerate(local.slots))
    body.let(node, f"jnp.concatenate([{', '.join(parts)}], axis={at})", slots, local.dtype, "padded")


def split(body: Body, node: Node) -> None:
    axis = node.params[0]["axis"]
    rank = len(body.plan.axes.shape(node.arrays[0]))
    start = [0] * len(node.params)
    for which, out in enumerate(node.outputs):
        stop = [s + p["sizes"][which] for s, p in zip(start, node.params, strict=True)]
        starts = [[start[c] if i == axis else 0 for i in range(rank)] for c in range(len(start))]
        shape = body.plan.axes.shape(node.arrays[0])
        limits = [[stop[c] if i == axis else shape[i][c] for i in range(rank)] for c in range(len(start))]
        take(body, node, out, starts, limits)
        start = stop


def take(body: Body, node: Node, out: int, starts: Sequence[Sequence[int]], limits: Sequence[Sequence[int]]) -> None:
    value = node.arrays[0]
    shape, new = body.plan.axes.shape(value), body.plan.axes.shape(out)
    changed = [i for i in range(len(shape)) if shape[i] != new[i]]
    dims = [body.plan.axes.dims(value)[i] for i in changed]
    local = body.holding(value, [d.axis for d in dims if d is not None])
    slots = list(local.slots)
    index = [":"] * len(slots)
    for i, dim in zip(changed, dims, strict=True):
        at = next(j for j, d in enumerate(local.slots) if d is not None and dim is not None and d.axis == dim.axis)
        low, high = (tuple(x[i] for x in side) for side in (starts, limits))
        index[at] = f"{_bound(body, low)}:{'' if high == shape[i] else body.size(high)}"
        slots[at] = body.plan.axes.dims(out)[i]
    name = body.name("part")
    body.line(f"{name} = {local.name}[{', '.join(index)}]")
    body.locals[out] = Local(name, tuple(slots), local.dtype)


def _bound(body: Body, size: tuple[int, ...]) -> str:
    return "" if set(size) == {0} else body.size(size)


def concatenate(body: Body, node: Node) -> None:
    out, along = node.outputs[0], node.params[0]["dimension"]
    dims = body.padded(list(body.dims(out)))
    target = body.plan.axes.dims(out)[along]
    at = next(i for i, d in enumerate(dims) if d is not None and target is not None and d.axis == target.axis)
    parts = []
    for value in node.arrays:
        local = body.holding(value, [d.axis for d in body.dims(value)])
        own = body.plan.axes.dims(value)[along]
        parts.append(body.to(local, tuple(own if i == at else d for i, d in enumerate(dims))))
    dtype = phrases.working(body.plan.graph.values[out].dtype)
    body.let(node, f"jnp.concatenate([{', '.join(parts)}], axis={at})", dims, dtype, "joined")

"""Groups of channels inside a kernel: each group to one value, and back to its channels.

Where there is one row of channels, a mask of groups by channels turns it into a column of groups, and back. Where there
are many rows, each group is a slice of lanes. Nothing is multiplied by a mask, so that a NaN stays in its group.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from aka.fuse.axes import ELEMENTWISE, LANES, Dim
from aka.fuse.graph import LAYOUT, Node
from aka.fuse.local import Local, Slots
from aka.fuse.sizes import NoFit, literal

if TYPE_CHECKING:
    from aka.fuse.body import Body

PASSED = LAYOUT - {"transpose"}


def reduce(body: Body, node: Node) -> None:
    channels, groups = _dims(body, node.arrays[0], node), _dims(body, node.outputs[0], node)
    local = body.holding(node.arrays[0], [channels.axis])
    kind = node.params[0]["kind"]
    if node.params[0]["rows"]:
        _reduce_rows(body, node, local, channels, groups, kind)
        return
    line = _line(body, node, channels)
    at, slots = _across(line, groups)
    inside = _mask(body, line, channels, groups)
    neutral = _neutral(kind, local.dtype)
    text = f"jnp.{kind}(jnp.where({inside}, {body.to(local, line)}, {neutral}), axis={at}, keepdims=True)"
    body.let(node, text, slots, local.dtype, "of_groups")


def spread(body: Body, node: Node) -> None:
    channels, groups = _dims(body, node.outputs[0], node), _dims(body, node.arrays[0], node)
    local = body.computing(node.arrays[0])
    if groups.axis not in {d.axis for d in local.slots if d is not None}:
        body.locals[node.outputs[0]] = local
        return
    if node.params[0]["rows"]:
        _spread_rows(body, node, local, channels, groups)
        return
    line = _line(body, node, channels)
    at, across = _across(line, groups)
    inside = _mask(body, line, channels, groups)
    text = f"jnp.sum(jnp.where({inside}, {body.to(local, across)}, 0), axis={1 - at}, keepdims=True)"
    body.let(node, text, line, local.dtype, "of_channels")


def _dims(body: Body, value: int, node: Node) -> Dim:
    dim: Dim | None = body.plan.axes.dims(value)[node.params[0]["dimension"]]
    if dim is None:
        raise NoFit("a single group of channels")
    return dim


def _line(body: Body, node: Node, channels: Dim) -> Slots:
    """The slots of one row (or column) of channels."""
    others = {d.axis for v in (node.arrays[0], node.outputs[0]) for d in body.dims(v)} - {channels.axis}
    if others:
        raise NoFit("groups of channels in several rows at once")
    return body.padded([channels])


def _across(line: Slots, groups: Dim) -> tuple[int, Slots]:
    """Where groups lie when channels lie along `line`: the dimension of the channels, and the slots of the groups."""
    at = 0 if line[1] is None else 1
    return at, (groups, None) if at == 1 else (None, groups)


def _mask(body: Body, line: Slots, channels: Dim, groups: Dim) -> str:
    """The name of the mask of channels in their groups; written once."""
    at, _ = _across(line, groups)
    lengths = [body.length(channels), body.length(groups)]
    shape = ", ".join(lengths if at == 0 else lengths[::-1])
    width = body.size(channels.factor)
    channel = _once(body, "channel", f"lax.broadcasted_iota(jnp.int32, ({shape}), {at})")
    start = _once(body, "start", f"lax.broadcasted_iota(jnp.int32, ({shape}), {1 - at}) * {_inner(width)}")
    return _once(body, "inside", f"({channel} >= {start}) & ({channel} < {start} + {width})")


def _once(body: Body, base: str, text: str) -> str:
    """The variable that holds `text`, from a line before or a new one."""
    for line in body.lines:
        name, equals, made = line.partition(" = ")
        if equals and made == text:
            return name
    name = body.name(base)
    body.line(f"{name} = {text}")
    return name


def _neutral(kind: str, dtype: str) -> str:
    if kind == "sum":
        return "0" if dtype == "int32" else "0.0"
    if dtype == "int32":
        return f"jnp.iinfo(jnp.int32).{'min' if kind == 'max' else 'max'}"
    return literal(float("-inf" if kind == "max" else "inf"), dtype)


def _reduce_rows(body: Body, node: Node, local: Local, channels: Dim, groups: Dim, kind: str) -> None:
    last = len(local.slots) - 1
    width, count = body.size(channels.factor), body.length(groups)
    column = f"jnp.{kind}({_lanes(local, width, channels)}, axis={last}, keepdims=True)"
    if not _stays(body, node, groups.axis):
        columns = f"[{column} for k in range({count})]"
        slots: Slots = (*local.slots[:-1], groups)
        body.let(node, f"jnp.concatenate({columns}, axis={last})", slots, local.dtype, "of_groups")
        return
    # What a reduction leaves fills its register anyway: kept that way, it needs no move between lanes.
    tile, wide = _tile(body, width, channels)
    lengths = ", ".join([*map(body.length, local.slots[:-1]), tile])
    columns = f"[jnp.broadcast_to({column}, ({lengths})) for k in range({count})]"
    body.let(node, f"jnp.concatenate({columns}, axis={last})", (*local.slots[:-1], wide), local.dtype, "of_groups")


def _spread_rows(body: Body, node: Node, local: Local, channels: Dim, groups: Dim) -> None:
    last = len(local.slots) - 1
    slots: Slots = (*local.slots[:-1], channels)
    width, count = body.size(channels.factor), body.length(groups)
    if local.slots[last] != groups:
        tile, wide = _tile(body, width, channels)
        times = f"for k in range({count}) for _ in range({_inner(width)} // {tile})"
        parts = f"[{_lanes(local, tile, wide)} {times}]"
    else:
        lengths = ", ".join([*map(body.length, local.slots[:-1]), width])
        parts = f"[jnp.broadcast_to({_lanes(local, '1', groups)}, ({lengths})) for k in range({count})]"
    body.let(node, f"jnp.concatenate({parts}, axis={last})", slots, local.dtype, "of_channels")


def _tile(body: Body, width: str, channels: Dim) -> tuple[str, Dim]:
    """Lanes that hold a group's value over and over: a register of them where the group is as wide. The variable that
    says how many, and the dimension of such groups."""
    lanes = tuple(math.gcd(w, LANES) for w in channels.factor)
    return _once(body, "tile", f"math.gcd({width}, {LANES})"), Dim(channels.axis, lanes)


def _stays(body: Body, node: Node, axis: int) -> bool:
    """Whether all that comes of a reduction goes back to channels, and meets no other array of groups on its way."""
    graph = body.plan.graph
    found, size = {node.outputs[0]}, 0
    near = [n for n in graph.nodes if n.op in ELEMENTWISE or n.op in PASSED]
    while size < len(found):
        size = len(found)
        for n in near:
            ends = {v for v in (*n.arrays, *n.outputs) if axis in {d.axis for d in body.dims(v)}}
            found |= ends if ends & found else set()
    makers = {n.op for n in graph.nodes if n not in near and found & set(n.outputs)}
    readers = {n.op for n in graph.nodes if n not in near and found & set(n.arrays)}
    return makers == {"group_reduce"} and readers <= {"group_spread"} and not found & {*graph.inputs, *graph.outputs}


def _lanes(local: Local, width: str, dim: Dim) -> str:
    """The lanes of group k."""
    if local.slots[-1] is None or local.slots[-1].axis != dim.axis:
        raise NoFit("groups of channels that do not lie along lanes")
    before = ":, " * (len(local.slots) - 1)
    lanes = "k : k + 1" if width == "1" else f"k * {_inner(width)} : (k + 1) * {_inner(width)}"
    return f"{local.name}[{before}{lanes}]"


def _inner(text: str) -> str:
    return f"({text})" if " " in text else text

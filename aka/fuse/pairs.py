"""Where an op takes every k-th element of a dimension, and where it joins k values element by element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aka.fuse.axes import groups
from aka.fuse.graph import LAYOUT, Graph, Node
from aka.fuse.sizes import NoFit, Size, is_constant, is_unit, over, times


@dataclass(frozen=True)
class Join:
    """`out` holds the elements of `parts` in turns along `dim` of these; `unit` where they have a dimension of 1 after
    it. `shape` is what the elements in turns have before the reshape to `out`."""

    out: int
    parts: tuple[int, ...]
    dim: int
    unit: bool
    shape: tuple[Size, ...]


@dataclass(frozen=True)
class Strided:
    """Elements `offset`, `offset` + `stride`, ... of `source` along `dim`, the source seen as `shape` and converted to
    the dtypes of the values `converts` in turn."""

    source: int
    dim: int
    offset: int
    stride: int
    shape: tuple[Size, ...]
    converts: tuple[int, ...] = ()


def joins(graph: Graph) -> dict[int, Join]:
    """The joins of an op by the value that they make; those of one value with itself only where there is another."""
    makers = graph.makers()
    found = [j for n in graph.nodes if n.op == "reshape" and (j := _join(graph, makers, n)) is not None]
    return {j.out: j for j in found} if any(len(set(j.parts)) > 1 for j in found) else {}


def _join(graph: Graph, makers: Mapping[int, Node], reshape: Node) -> Join | None:
    stacked = reshape.arrays[0]
    node = makers.get(stacked)
    if node is None or (found := _stacked(graph, node)) is None:
        return None
    parts, axis, unit = found
    shape = graph.values[stacked].shape
    if axis == 0 or is_unit(shape[axis - 1]) or not _together(graph, shape, reshape.outputs[0], axis):
        return None
    joined = (*shape[: axis - 1], times(shape[axis - 1], shape[axis]), *shape[axis + 1 :])
    return Join(reshape.outputs[0], parts, axis - 1, unit, joined)


def _stacked(graph: Graph, node: Node) -> tuple[tuple[int, ...], int, bool] | None:
    """What is put side by side along a new dimension, which one, and whether the parts have it already."""
    out = graph.values[node.outputs[0]].shape
    if len(node.arrays) != len(node.inputs):
        return None
    if node.op == "stack":
        return tuple(node.arrays), node.params[0]["axis"] % len(out), False
    if node.op == "concatenate":
        axis = node.params[0]["dimension"]
        alone = all(is_unit(graph.values[v].shape[axis]) for v in node.arrays)
        return (tuple(node.arrays), axis, True) if alone else None
    if node.op == "broadcast_in_dim":
        return _repeated(graph, node)
    return None


def _repeated(graph: Graph, node: Node) -> tuple[tuple[int, ...], int, bool] | None:
    """jnp.repeat along the last dimension, of what the op computes: XLA repeats arguments well enough."""
    out, value = graph.values[node.outputs[0]].shape, node.arrays[0]
    axis = len(out) - 1
    plain = (
        tuple(node.params[0]["broadcast_dimensions"]) == tuple(range(axis)) and graph.values[value].shape == out[:-1]
    )
    if not plain or not is_constant(out[axis]) or is_unit(out[axis]) or is_given(graph, value):
        return None
    return (value,) * out[axis][0], axis, False


def is_given(graph: Graph, value: int) -> bool:
    """Whether a value is an argument, but for its layout."""
    makers = graph.makers()
    while (node := makers.get(value)) is not None:
        if node.op not in LAYOUT or not node.arrays:
            return False
        value = node.arrays[0]
    return True


def _together(graph: Graph, shape: tuple[Size, ...], out: int, axis: int) -> bool:
    """Whether a reshape joins `axis` with the dimension before it."""
    try:
        parts = groups(shape, graph.values[out].shape)
    except NoFit:
        return False
    return any({axis - 1, axis} <= set(left) for left, _ in parts)


def strided(graph: Graph) -> dict[int, Strided]:
    """By value: a slice with a stride, or one of the parts of a dimension that was split into pairs."""
    makers = graph.makers()
    found: dict[int, Strided | None] = {}
    for node in graph.nodes:
        if node.op == "slice":
            found[node.outputs[0]] = _slice(graph, node)
        elif node.op in ("squeeze", "reshape"):
            found[node.outputs[0]] = _of_split(graph, makers, node)
    return {v: s for v, s in found.items() if s is not None}


def _slice(graph: Graph, node: Node) -> Strided | None:
    shape = graph.values[node.arrays[0]].shape
    strides = node.params[0]["strides"] or (1,) * len(shape)
    dims = [i for i, s in enumerate(strides) if s != 1]
    if len(dims) != 1 or any(p["strides"] != node.params[0]["strides"] for p in node.params):
        return None
    (dim,) = dims
    starts = {p["start_indices"][dim] for p in node.params}
    out = graph.values[node.outputs[0]].shape
    others = all(a == b for i, (a, b) in enumerate(zip(shape, out, strict=True)) if i != dim)
    offset, stride = next(iter(starts)), strides[dim]
    if len(starts) != 1 or not others or offset >= stride or over(shape[dim], out[dim]) != (stride,) * graph.cases:
        return None
    return Strided(node.arrays[0], dim, offset, stride, shape)


def _of_split(graph: Graph, makers: Mapping[int, Node], drop: Node) -> Strided | None:
    """x.reshape(..., n, k)[..., t]: a slice of one element along the last dimension, which is then dropped."""
    taken = makers.get(drop.arrays[0])
    if taken is None or taken.op not in ("slice", "split"):
        return None
    split, one = graph.values[taken.arrays[0]].shape, graph.values[drop.arrays[0]].shape
    axis = len(split) - 1
    if not is_unit(one[axis]) or split[:axis] != one[:axis] or graph.values[drop.outputs[0]].shape != split[:axis]:
        return None
    offset = _offset(taken, drop.arrays[0], axis)
    value, converts = taken.arrays[0], []
    while (node := makers.get(value)) is not None and node.op == "convert_element_type":
        converts.append(value)
        value = node.arrays[0]
    if offset is None or axis == 0 or not is_constant(split[axis]) or node is None or node.op != "reshape":
        return None
    shape = (*split[: axis - 1], times(split[axis - 1], split[axis]))
    return Strided(node.arrays[0], axis - 1, offset, split[axis][0], shape, tuple(reversed(converts)))


def _offset(taken: Node, value: int, axis: int) -> int | None:
    """Which element along `axis` a slice or split takes, if it is the same one at every size."""
    if taken.op == "slice":
        starts = {p["start_indices"][axis] for p in taken.params}
        return next(iter(starts)) if len(starts) == 1 else None
    return taken.outputs.index(value) if taken.params[0]["axis"] == axis else None


def taken(graph: Graph, makers: Mapping[int, Node], value: int, dim: int) -> tuple[int, Size, Size, Size] | None:
    """(source, start, stop, length of the source) of a value that is cut from another along `dim` alone."""
    node = makers.get(value)
    if node is None or node.op not in ("slice", "split"):
        return None
    whole, own = graph.values[node.arrays[0]].shape, graph.values[value].shape
    if any(a != b for i, (a, b) in enumerate(zip(whole, own, strict=True)) if i != dim):
        return None
    if node.op == "slice":
        start = tuple(p["start_indices"][dim] for p in node.params)
        strides = {s for p in node.params for s in p["strides"] or ()}
        if strides - {1}:
            return None
    else:
        if node.params[0]["axis"] != dim:
            return None
        which = node.outputs.index(value)
        start = tuple(sum(p["sizes"][:which]) for p in node.params)
    return node.arrays[0], start, tuple(s + n for s, n in zip(start, own[dim], strict=True)), whole[dim]

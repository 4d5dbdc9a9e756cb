"""Where an op reads its neighbours along a dimension: windows of a padded array as shifts.

A causal convolution pads once and cuts as many windows as it has taps. Each of them is the array itself, some places
further on, with a constant where that has no element: a `shift`, which is as long as the array, so that its axis can be
cut into blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aka.fuse.axes import ELEMENTWISE, REDUCTIONS
from aka.fuse.graph import Graph, Literal, Node
from aka.fuse.rebuild import Params, Rebuild, places
from aka.fuse.sizes import NoFit, Size

FAR = 64
"""Places that a shift may reach: a halo is read for each block, so that it has to stay small."""
MOVES = {"slice", "pad", "concatenate"}
FOLLOWED = ELEMENTWISE | {"broadcast_in_dim", *REDUCTIONS}
"""Operations that a window of their result can be handed through."""


def shifted(graph: Graph) -> Graph:
    """The graph with shifts for windows of padded values that are as long as these were; itself where it has none."""
    moving = [n for n in graph.nodes if n.op in MOVES]
    if not any(n.op != "slice" for n in moving):
        return graph
    made = graph
    for dim in range(max(len(graph.values[n.outputs[0]].shape) for n in moving) - 1):
        rewrite = _Rewrite(made, dim=dim)
        after = rewrite.finished()
        made = after if any(n.op == "shift" and n.params[0]["dimension"] == dim for n in after.nodes) else made
    return made


@dataclass
class _Rewrite(Rebuild):
    """Follows each slice, pad and concatenation with a constant along `dim` back to values of the length that it has.
    `_shifts` are those made so far with nothing in particular where there is no element: of what, and how far."""

    dim: int = 0
    _shifts: dict[int, tuple[int, int]] = field(default_factory=dict)

    def rewritten(self, node: Node) -> int | None:
        out = self.graph.values[node.outputs[0]]
        if self.dim >= len(out.shape) - 1 or not self._moves(node, self.dim):
            return None
        return self._window(out.id, self.dim, (0,) * self.graph.cases, out.shape[self.dim])

    def _moves(self, node: Node | None, dim: int) -> bool:
        """Whether a node cuts, pads or joins along a dimension."""
        if node is None or node.op not in MOVES or not node.arrays:
            return False
        if node.op == "concatenate":
            return bool(node.params[0]["dimension"] == dim)
        if node.op == "pad":
            return any(tuple(p["padding_config"][dim]) != (0, 0, 0) for p in node.params)
        return self._length(node.arrays[0], dim) != self._length(node.outputs[0], dim)

    def _length(self, value: int, dim: int) -> Size:
        return self.graph.values[value].shape[dim]

    def _window(self, value: int, dim: int, by: Size, length: Size) -> int:
        """A value `length` long whose element i is element i - `by` of `value` wherever that has one."""
        node = self.makers.get(value)
        if node is not None and self._moves(node, dim):
            if node.op == "slice":
                return self._cut(node, dim, by, length)
            if (edges := _edges(self.graph, node, dim)) is not None:
                return self._padded(node, dim, by, length, *edges)
        if self._length(value, dim) == length and value in self.new:
            if len(set(by)) != 1:
                raise NoFit("a window that is elsewhere at other sizes")
            return self._shift(self.new[value], dim, by[0]) if by[0] else self.new[value]
        if node is None:
            raise NoFit("a window of an argument of another length")
        return self._followed(node, dim, by, length)

    def _followed(self, node: Node, dim: int, by: Size, length: Size) -> int:
        """A window of what is computed element by element: of windows of its operands."""
        own = self.graph.values[node.outputs[0]]
        at = places(self.graph, node, dim) if node.op in FOLLOWED else None
        if node.op in ("slice", "pad") and not self._moves(node, dim):
            at = {node.arrays[0]: dim}
        if at is None or (not at and node.op != "broadcast_in_dim"):
            raise NoFit("a window of what is not computed element by element")
        inputs = tuple(
            self._window(i, at[i], by, length) if i in at else self.new[i] if isinstance(i, int) else i
            for i in node.inputs
        )
        params = _whole(node, dim, length) if node.op == "slice" else node.params
        return self.emit(node.op, inputs, _long(own.shape, dim, length), own.dtype, params)

    def _cut(self, node: Node, dim: int, by: Size, length: Size) -> int:
        """A window of a slice: of what it is cut from, cut along its other dimensions."""
        if any(s != 1 for p in node.params for s in p["strides"] or ()):
            raise NoFit("every other element")
        out = self.graph.values[node.outputs[0]]
        start = tuple(int(p["start_indices"][dim]) for p in node.params)
        made = self._window(node.arrays[0], dim, _minus(by, start), length)
        shape = _long(out.shape, dim, length)
        return (
            made
            if self.values[made].shape == shape
            else self.emit("slice", (made,), shape, out.dtype, _whole(node, dim, length))
        )

    def _padded(self, node: Node, dim: int, by: Size, length: Size, before: Size, fill: Literal) -> int:
        """A window of a padded value: one of what was padded, with the constant beside it, padded along its other
        dimensions."""
        out, value = self.graph.values[node.outputs[0]], node.arrays[0]
        start = _plus(by, before)
        made = self._filled(value, dim, start, length, fill)
        if self.values[made].shape == (shape := _long(out.shape, dim, length)):
            return made
        none = (0, 0, 0)
        params = tuple(
            {"padding_config": tuple(none if i == dim else c for i, c in enumerate(p["padding_config"]))}
            for p in node.params
        )
        return self.emit("pad", (made, fill), shape, out.dtype, params)

    def _filled(self, value: int, dim: int, start: Size, length: Size, fill: Literal) -> int:
        """A window of a value, with a constant wherever that has no element."""
        made = self._window(value, dim, start, length)
        low, high = _clipped(start, length), _clipped(_plus(start, self._length(value, dim)), length)
        if made in self._shifts:
            source, far = self._shifts[made]
            every = (far,) * self.graph.cases
            if (low, high) == (_clipped(every, length), _clipped(_plus(length, every), length)):
                return self._shift(source, dim, far, fill)
        if any(low):
            made = self._kept("ge", low, made, dim, fill)
        return made if high == length else self._kept("lt", high, made, dim, fill)

    def _kept(self, op: str, bound: Size, value: int, dim: int, fill: Literal) -> int:
        """The value where the place along `dim` is at least, or below, a bound; `fill` elsewhere."""
        own = self.values[value]
        alone = tuple(s if i == dim else (1,) * self.graph.cases for i, s in enumerate(own.shape))
        place = self.emit("iota", (), alone, "int32", self.same({"dimension": dim}))
        inside = self.emit(op, (place, Literal(bound, "int32")), alone, "bool")
        return self.emit("select_n", (inside, fill, value), own.shape, own.dtype)

    def _shift(self, value: int, dim: int, by: int, fill: Literal | None = None) -> int:
        """The new value with its elements `by` places further on; where it has none `fill`, 0 if that is not known."""
        own = self.values[value]
        if abs(by) > FAR or own.dtype == "bool":
            raise NoFit("a window far away, or of a mask, which the compiler does not move")
        filler = fill or Literal((0 if "int" in own.dtype else 0.0,) * self.graph.cases, own.dtype)
        made = self.emit("shift", (value, filler), own.shape, own.dtype, self.same({"dimension": dim, "by": by}))
        if fill is None:
            self._shifts[made] = value, by
        return made


def _clipped(place: Size, length: Size) -> Size:
    return tuple(min(max(p, 0), n) for p, n in zip(place, length, strict=True))


def _plus(a: Size, b: Size) -> Size:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _long(shape: tuple[Size, ...], dim: int, length: Size) -> tuple[Size, ...]:
    return (*shape[:dim], length, *shape[dim + 1 :])


def _minus(a: Size, b: Size) -> Size:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def _whole(node: Node, dim: int, length: Size) -> Params:
    """The params of a slice that leaves a dimension of this length whole."""
    return tuple(
        {
            "start_indices": _with(p["start_indices"], dim, 0),
            "limit_indices": _with(p["limit_indices"], dim, n),
            "strides": None,
        }
        for p, n in zip(node.params, length, strict=True)
    )


def _with(numbers: Sequence[int], at: int, number: int) -> tuple[int, ...]:
    return tuple(number if i == at else int(n) for i, n in enumerate(numbers))


def _edges(graph: Graph, node: Node, dim: int) -> tuple[Size, Literal] | None:
    """(elements before, the constant) of a value that is padded along `dim`: by a pad, or by joining it with a block of
    one constant."""
    if node.op not in ("pad", "concatenate") or len(node.inputs) != 2 or len(node.arrays) != 1:
        return None
    fill = next(i for i in node.inputs if isinstance(i, Literal))
    if node.op == "concatenate":
        more = _minus(graph.values[node.outputs[0]].shape[dim], graph.values[node.arrays[0]].shape[dim])
        return more if node.inputs[0] is fill else (0,) * graph.cases, fill
    configs = [p["padding_config"] for p in node.params]
    return None if any(c[2] for cs in configs for c in cs) else (tuple(int(c[dim][0]) for c in configs), fill)

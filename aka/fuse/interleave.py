"""Ops on interleaved pairs, rewritten so that no element is ever gathered: rotary embeddings of even and odd lanes.

The compiler has no strided slices of lanes, and no reshape that joins k values element by element. So the n elements of
each part stand k times side by side instead: a part is computed along k * n lanes, every k-th slice becomes a roll, and
the join a choice by lane % k. Lanes of each phase (lane % k) choose one part only, so each part is computed for its own
phase: where a part reads x[t::k], lanes of phase r find it r - t lanes away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aka.fuse.axes import LANES
from aka.fuse.graph import Graph, Literal, Node
from aka.fuse.pairs import Join, Strided, is_given, joins, strided, taken
from aka.fuse.rebuild import PLAIN, Rebuild, places
from aka.fuse.sizes import NoFit, Size, times


@dataclass(frozen=True)
class _Phase:
    """The lanes with lane % k = r of a join that is computed `length` lanes wide."""

    k: int
    r: int
    length: Size


def interleaved(graph: Graph) -> Graph:
    """The graph with joins of interleaved parts as choices between rolled values; itself where it has none, or where a
    part is neither computed from the op's own strided slices nor a small array."""
    found = joins(graph)
    if not found:
        return graph
    rewrite = _Rewrite(graph, joins=found, strided=strided(graph))
    made = rewrite.finished()
    return made if rewrite.joined else graph


@dataclass
class _Rewrite(Rebuild):
    """The graph again, with choices for its joins; `joined` counts them."""

    joins: dict[int, Join] = field(default_factory=dict)
    strided: dict[int, Strided] = field(default_factory=dict)
    joined: int = 0

    def rewritten(self, node: Node) -> int | None:
        join = self.joins.get(node.outputs[0])
        if join is not None:
            made = self._join(join, join.shape[join.dim])
            shape = self.graph.values[join.out].shape
            dtype = self.graph.values[join.out].dtype
            return made if shape == join.shape else self.emit("reshape", (made,), shape, dtype)
        return self._extended(node) if node.op == "concatenate" else None

    def _extended(self, node: Node) -> int | None:
        """concatenate([f(x[..., :n]), x[..., n:]], -1) as a choice between f(x) and x, where f has joins and n is no
        multiple of the lanes: the compiler moves lanes slowly."""
        out, dim = self.graph.values[node.outputs[0]], node.params[0]["dimension"]
        first = self.graph.values[node.arrays[0]].shape[dim]
        if len(node.inputs) != 2 or len(node.arrays) != 2 or first[0] % LANES == 0:
            return None
        before = self.joined
        phase = _Phase(1, 0, out.shape[dim])
        rest = self._rest(node.arrays[1], dim, first, out.shape[dim])
        if rest is None:
            return None
        made = self._spread(node.arrays[0], dim, phase)
        if self.joined == before:
            return None
        inside = self._mask("lt", self._lane(phase.length), Literal(first, "int32"), out.shape, dim)
        return self.emit("select_n", (inside, rest, made), out.shape, out.dtype)

    def _rest(self, value: int, dim: int, start: Size, stop: Size) -> int | None:
        """The whole of what `value` is the end of, from `start` on; None if it isn't."""
        node = self.makers.get(value)
        if node is not None and node.op == "convert_element_type":
            made = self._rest(node.arrays[0], dim, start, stop)
            if made is None:
                return None
            shape, dtype = self.values[made].shape, self.graph.values[value].dtype
            return self.emit(node.op, (made,), shape, dtype, node.params)
        part = taken(self.graph, self.makers, value, dim)
        return self.new[part[0]] if part is not None and part[1:] == (start, stop, stop) else None

    # Joins

    def _join(self, join: Join, length: Size) -> int:
        """The elements in turns, `length` lanes wide: what is in lanes beyond the join's own is never used."""
        k = len(join.parts)
        shape = (*join.shape[: join.dim], length, *join.shape[join.dim + 1 :])
        parts = [self._part(join, _Phase(k, r, length), shape) for r in range(k)]
        made = parts[-1]
        for r in reversed(range(k - 1)):
            if parts[r] != made:
                turn = self.emit("rem", (self._lane(length), self.number(k)), (length,), "int32")
                chosen = self._mask("eq", turn, self.number(r), shape, join.dim)
                made = self.emit("select_n", (chosen, made, parts[r]), shape, self.graph.values[join.out].dtype)
        self.joined += 1
        return made

    def _part(self, join: Join, phase: _Phase, shape: tuple[Size, ...]) -> int:
        made = self._spread(join.parts[phase.r], join.dim, phase)
        return self.emit("reshape", (made,), shape, self.values[made].dtype) if join.unit else made

    def _lane(self, length: Size) -> int:
        return self.emit("iota", (), (length,), "int32", self.same({"dimension": 0}))

    def _mask(self, op: str, numbers: int, limit: Literal, shape: tuple[Size, ...], dim: int) -> int:
        """A comparison of numbers along one dimension, as a mask of a shape."""
        chosen = self.emit(op, (numbers, limit), self.values[numbers].shape, "bool")
        places = self.same({"broadcast_dimensions": (dim,)})
        return self.emit("broadcast_in_dim", (chosen,), shape, "bool", places)

    # Parts: a value of n elements along `dim`, each of them k times side by side

    def _spread(self, value: int, dim: int, phase: _Phase) -> int:
        leaf = self._leaf(value, dim, phase)
        if leaf is not None:
            return leaf
        node = self.makers.get(value)
        at = None if node is None else places(self.graph, node, dim)
        if node is not None and at is not None:
            return self._derived(node, dim, at, phase)
        outputs = max(_elements(self.graph.values[o].shape) for o in self.graph.outputs)
        if is_given(self.graph, value) and _elements(self._wide(value, dim, phase)) < outputs:
            return self._repeated(value, dim, phase)
        raise NoFit("a part that is no elementwise function of strided slices and small arrays")

    def _leaf(self, value: int, dim: int, phase: _Phase) -> int | None:
        """A value that ends the way up: a strided slice, an iota, what is cut from something of the whole length."""
        place, node = self.strided.get(value), self.makers.get(value)
        if phase.k > 1 and place is not None and place.dim == dim:
            return self._rolled(place, phase)
        if node is not None and node.op == "iota":
            return self._counted(node, dim, phase)
        join = self.joins.get(value)
        if join is not None and phase.k == 1 and join.shape == self.graph.values[value].shape and join.dim == dim:
            return self._join(join, phase.length)
        part = taken(self.graph, self.makers, value, dim)
        if part is not None and phase.k == 1 and not any(part[1]) and part[3] == phase.length:
            return self.new[part[0]]
        return None

    def _wide(self, value: int, dim: int, phase: _Phase) -> tuple[Size, ...]:
        shape = self.graph.values[value].shape
        return (*shape[:dim], phase.length, *shape[dim + 1 :])

    def _rolled(self, place: Strided, phase: _Phase) -> int:
        """x[t::k], as lanes of phase r need it: x, r - t lanes further on."""
        if place.stride != phase.k:
            raise NoFit("slices with another stride than the join has")
        whole = phase.length == place.shape[place.dim]
        shape = (*place.shape[: place.dim], phase.length, *place.shape[place.dim + 1 :])
        made = self.new[place.source] if whole else self._spread(place.source, place.dim, replace(phase, k=1))
        if shape != self.values[made].shape:
            made = self.emit("reshape", (made,), shape, self.values[made].dtype)
        for value in place.converts:
            node = self.makers[value]
            made = self.emit(node.op, (made,), shape, self.graph.values[value].dtype, node.params)
        if phase.r == place.offset:
            return made
        params = self.same({"dimension": place.dim, "shift": phase.r - place.offset})
        return self.emit("roll", (made,), shape, self.values[made].dtype, params)

    def _counted(self, node: Node, dim: int, phase: _Phase) -> int:
        """An iota: the same number k times where it counts along `dim`."""
        shape, dtype = self._wide(node.outputs[0], dim, phase), self.graph.values[node.outputs[0]].dtype
        along = self.same({"dimension": node.params[0]["dimension"]})
        if node.params[0]["dimension"] != dim or phase.k == 1:
            return self.emit("iota", (), shape, dtype, along)
        index = self.emit("iota", (), shape, "int32", along)
        made = self.emit("div", (index, self.number(phase.k)), shape, "int32")
        if dtype == "int32":
            return made
        params = self.same({"new_dtype": dtype})
        return self.emit("convert_element_type", (made,), shape, dtype, params)

    def _derived(self, node: Node, dim: int, places: Mapping[int, int], phase: _Phase) -> int:
        """The node's operation on wider operands; `places` tells where each of them has the dimension."""
        inputs = tuple(
            i if not isinstance(i, int) else self._spread(i, places[i], phase) if i in places else self.new[i]
            for i in node.inputs
        )
        out = self.graph.values[node.outputs[0]]
        shape, params = self._wide(out.id, dim, phase), node.params
        if node.op == "slice":
            limits = (
                tuple(s[c] if i == dim else n for i, (s, n) in enumerate(zip(shape, p["limit_indices"], strict=True)))
                for c, p in enumerate(params)
            )
            params = tuple({**p, "limit_indices": n} for p, n in zip(params, limits, strict=True))
        return self.emit(PLAIN.get(node.op, node.op), inputs, shape, out.dtype, params)

    def _repeated(self, value: int, dim: int, phase: _Phase) -> int:
        """An argument: repeated before the kernel, and made longer in it."""
        old, made = self.graph.values[value], self.new[value]
        count = (phase.k,) * self.graph.cases
        shape = (*old.shape[:dim], times(old.shape[dim], count), *old.shape[dim + 1 :])
        if phase.k > 1:
            split = (*old.shape[: dim + 1], count, *old.shape[dim + 1 :])
            places = self.same({"broadcast_dimensions": tuple(i for i in range(len(split)) if i != dim + 1)})
            made = self.emit("broadcast_in_dim", (made,), split, old.dtype, places)
            made = self.emit("reshape", (made,), shape, old.dtype)
        wide = self._wide(value, dim, phase)
        if wide == shape:
            return made
        more = (b - a for a, b in zip(shape[dim], phase.length, strict=True))
        params = tuple({"padding_config": tuple((0, m if i == dim else 0, 0) for i in range(len(shape)))} for m in more)
        return self.emit("pad", (made, Literal((0.0,) * self.graph.cases, old.dtype)), wide, old.dtype, params)


def _elements(shape: tuple[Size, ...]) -> int:
    return math.prod(s[0] for s in shape)

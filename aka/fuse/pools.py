"""Pooling along lanes: neighbours that are reduced to one, where all of these are reduced in the end.

`y.reshape(rows, -1, 2).max(-1)` asks for every second lane, which the compiler has no way to gather. So each pool's
value stays in all lanes of its pool, found by rolls in log2(width) steps, and what is computed from it is computed
there. A maximum over pools is one over lanes then; a sum counts the first lane of each pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aka.fuse.axes import ELEMENTWISE
from aka.fuse.graph import Graph, Literal, Node
from aka.fuse.rebuild import PLAIN, Rebuild
from aka.fuse.sizes import Size, is_constant, is_unit, times

MAX_WIDTH = 64
COMBINED = {"reduce_max": "max", "reduce_min": "min", "reduce_sum": "add"}


@dataclass(frozen=True)
class Pool:
    """`out` is what node `op` makes of pools of `width` neighbours along the last dimension of `source`."""

    out: int
    source: int
    op: str
    width: int


def pooled(graph: Graph) -> Graph:
    """The graph with its pools left in their lanes; itself where it has none, or needs them side by side."""
    found = {p.out: p for n in graph.nodes if (p := _pool(graph, n)) is not None}
    regions = {out: region for out in found if (region := _region(graph, out)) is not None}
    if not regions:
        return graph
    inside = {v: found[out] for out, region in regions.items() for v in region}
    return _Rewrite(graph, inside=inside).finished()


def _pool(graph: Graph, node: Node) -> Pool | None:
    if node.op not in COMBINED:
        return None
    makers, split = graph.makers(), node.arrays[0]
    before, shape = makers.get(split), graph.values[split].shape
    last = len(shape) - 1
    if before is None or before.op not in PLAIN or last < 1 or tuple(node.params[0]["axes"]) != (last,):
        return None
    source = graph.values[before.arrays[0]].shape
    whole = (*shape[: last - 1], times(shape[last - 1], shape[last]))
    width = shape[last][0]
    fits = is_constant(shape[last]) and 1 < width <= MAX_WIDTH and width & (width - 1) == 0
    if not fits or source != whole or len(source) < 2:
        return None
    return Pool(node.outputs[0], before.arrays[0], node.op, width)


def _region(graph: Graph, out: int) -> set[int] | None:
    """What is computed from a pool's values elementwise, up to reductions over all pools; None where something else
    reads them."""
    last = len(graph.values[out].shape) - 1
    region = {out}
    for node in graph.nodes:
        if not region & set(node.arrays):
            continue
        if node.op in ELEMENTWISE and all(v in region or _is_narrow(graph, v, last) for v in node.arrays):
            region |= set(node.outputs)
        elif node.op not in COMBINED or last not in node.params[0]["axes"]:
            return None
    return None if region & set(graph.outputs) else region


def _is_narrow(graph: Graph, value: int, dim: int) -> bool:
    """Whether an operand is alike for all pools."""
    shape = graph.values[value].shape
    if not shape or is_unit(shape[dim]):
        return True
    node = graph.makers().get(value)
    if node is None or node.op != "broadcast_in_dim" or not node.arrays:
        return False
    places = list(node.params[0]["broadcast_dimensions"])
    return dim not in places or is_unit(graph.values[node.arrays[0]].shape[places.index(dim)])


@dataclass
class _Rewrite(Rebuild):
    """`inside` are the values that are kept in all lanes of their pools."""

    inside: Mapping[int, Pool] = field(default_factory=dict)

    def rewritten(self, node: Node) -> int | None:
        pool = self.inside.get(node.outputs[0])
        if pool is not None:
            return self._spread(pool) if pool.out == node.outputs[0] else self._derived(node, pool)
        read = next((self.inside[v] for v in node.arrays if v in self.inside), None)
        return self._reduced(node, read) if read is not None else None

    def _spread(self, pool: Pool) -> int:
        made, step = self.new[pool.source], 1
        shape, dtype = self.values[made].shape, self.values[made].dtype
        while step < pool.width:
            back, ahead = (self._rolled(made, by) for by in (step, -step))
            upper = self._mask(pool, step, shape)
            partner = self.emit("select_n", (upper, ahead, back), shape, dtype)
            made = self.emit(COMBINED[pool.op], (made, partner), shape, dtype)
            step *= 2
        return made

    def _rolled(self, value: int, by: int) -> int:
        shape = self.values[value].shape
        params = self.same({"dimension": len(shape) - 1, "shift": by})
        return self.emit("roll", (value,), shape, self.values[value].dtype, params)

    def _mask(self, pool: Pool, bits: int, shape: tuple[Size, ...]) -> int:
        """Where the lane's number has one of the bits."""
        lanes = (shape[-1],)
        lane = self.emit("iota", (), lanes, "int32", self.same({"dimension": 0}))
        some = self.emit("and", (lane, self.number(bits)), lanes, "int32")
        mask = self.emit("ne", (some, self.number(0)), lanes, "bool")
        return self.emit("broadcast_in_dim", (mask,), shape, "bool", self._last(shape))

    def _last(self, shape: tuple[Size, ...]) -> tuple[Mapping[str, object], ...]:
        return self.same({"broadcast_dimensions": (len(shape) - 1,)})

    def _derived(self, node: Node, pool: Pool) -> int:
        out = self.graph.values[node.outputs[0]]
        shape = (*out.shape[:-1], self.graph.values[pool.source].shape[-1])
        inputs = tuple(self._operand(i, shape) if isinstance(i, int) else i for i in node.inputs)
        return self.emit(node.op, inputs, shape, out.dtype, node.params)

    def _operand(self, value: int, shape: tuple[Size, ...]) -> int:
        own = self.graph.values[value].shape
        if value in self.inside or not own or is_unit(own[-1]):
            return self.new[value]
        node = self.makers[value]
        return self.emit(node.op, (self.new[node.arrays[0]],), shape, self.graph.values[value].dtype, node.params)

    def _reduced(self, node: Node, pool: Pool) -> int:
        value = self.new[node.arrays[0]]
        shape, dtype = self.values[value].shape, self.values[value].dtype
        if node.op == "reduce_sum":
            zero = Literal((0,) * self.graph.cases if "int" in dtype else (0.0,) * self.graph.cases, dtype)
            value = self.emit("select_n", (self._mask(pool, pool.width - 1, shape), value, zero), shape, dtype)
        out = self.graph.values[node.outputs[0]]
        return self.emit(node.op, (value,), out.shape, out.dtype, node.params)

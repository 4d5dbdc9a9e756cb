"""A graph built again node by node, with other nodes in place of some: what rewrites have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aka.fuse.axes import ELEMENTWISE, REDUCTIONS, groups
from aka.fuse.graph import Graph, Literal, Node, Operand, Value, pruned
from aka.fuse.sizes import NoFit, Size

Params = tuple[Mapping[str, Any], ...]
PLAIN = dict.fromkeys(("reshape", "squeeze", "expand_dims"), "reshape")
"""Operations that are reshapes, whatever they are called."""


@dataclass
class Rebuild:
    """Emits the new graph in order, so that ids still grow along the program. Nodes that are not rewritten are copied;
    those that nothing needs any more are pruned at the end. `new` are values by what they were before."""

    graph: Graph
    values: dict[int, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    new: dict[int, int] = field(default_factory=dict)
    _emitted: dict[Any, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.makers = self.graph.makers()
        for value in self.graph.inputs:
            self._copied(value)

    def rewritten(self, node: Node) -> int | None:
        """The new value for a node's only output, or None (or NoFit raised) where the node is kept."""
        raise NoFit("nothing to rewrite")

    def finished(self) -> Graph:
        for node in self.graph.nodes:
            try:
                made = self.rewritten(node)
            except NoFit:
                made = None
            if made is not None:
                self.new[node.outputs[0]] = made
                continue
            inputs = tuple(self.new[i] if isinstance(i, int) else i for i in node.inputs)
            self.nodes.append(replace(node, inputs=inputs, outputs=tuple(map(self._copied, node.outputs))))
        inputs, outputs = (tuple(self.new[v] for v in ends) for ends in (self.graph.inputs, self.graph.outputs))
        return pruned(Graph(self.values, inputs, outputs, tuple(self.nodes)))

    def _copied(self, value: int) -> int:
        self.new[value] = self._value(self.graph.values[value].shape, self.graph.values[value].dtype)
        return self.new[value]

    def _value(self, shape: tuple[Size, ...], dtype: str) -> int:
        made = len(self.values)
        self.values[made] = Value(made, shape, dtype)
        return made

    def emit(
        self, op: str, inputs: tuple[Operand, ...], shape: tuple[Size, ...], dtype: str, params: Params | None = None
    ) -> int:
        """A new node's value; the same one again for the same operation."""
        every = params or ({},) * self.graph.cases
        key = (op, inputs, shape, dtype, tuple(tuple(p.items()) for p in every))
        if key not in self._emitted:
            self._emitted[key] = self._value(shape, dtype)
            self.nodes.append(Node(op, inputs, (self._emitted[key],), every))
        return self._emitted[key]

    def same(self, params: Mapping[str, Any]) -> Params:
        """Params that are alike at every size."""
        return (params,) * self.graph.cases

    def number(self, value: int) -> Literal:
        return Literal((value,) * self.graph.cases, "int32")


def places(graph: Graph, node: Node, dim: int) -> dict[int, int] | None:
    """Where the operands have the dimension `dim` of a node's result; None where its operation can't be done with every
    element of that standing several times."""
    out = graph.values[node.outputs[0]].shape
    shapes = {v: graph.values[v].shape for v in node.arrays}
    if node.op in ELEMENTWISE:
        return {v: dim for v, s in shapes.items() if len(s) == len(out) and s[dim] == out[dim]}
    if len(node.outputs) != 1 or not shapes:
        return None
    at: int | None = dim
    params, own = node.params[0], shapes[node.arrays[0]]
    if node.op == "broadcast_in_dim":
        places = list(params["broadcast_dimensions"])
        found = dim in places and own[places.index(dim)] == out[dim]
        return {node.arrays[0]: places.index(dim)} if found else {}
    if node.op == "transpose":
        at = params["permutation"][dim]
    elif node.op in PLAIN:
        at = _unsplit(own, out, dim)
    elif node.op in REDUCTIONS:
        at = [i for i in range(len(own)) if i not in params["axes"]][dim]
    elif node.op == "concatenate":
        return (
            dict.fromkeys(node.arrays, dim) if params["dimension"] != dim and len(node.inputs) == len(shapes) else None
        )
    elif node.op != "slice" or own[dim] != out[dim]:
        return None
    return None if at is None else {node.arrays[0]: at}


def _unsplit(own: tuple[Size, ...], out: tuple[Size, ...], dim: int) -> int | None:
    """Which dimension a reshape hands on as `dim`, if it neither splits nor joins it."""
    return next((left[0] for left, right in groups(own, out) if right == [dim] and len(left) == 1), None)

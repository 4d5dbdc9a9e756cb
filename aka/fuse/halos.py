"""What a shift reads from the block next to its own: a few rows of each input, and what the op makes of them.

A block lacks the rows just outside its edge. They come in as a second, small block of each input that is cut along the
axis (a halo), and everything up to the shifted value is computed once more, from these few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aka.fuse.axes import ELEMENTWISE, REDUCTIONS, Axes
from aka.fuse.graph import Graph, Literal, Node
from aka.fuse.sizes import NoFit, is_unit

LOCAL = ELEMENTWISE | {"broadcast_in_dim", "transpose", "squeeze", "expand_dims", "reshape", "dot_general", *REDUCTIONS}
LOCAL |= {"slice", "split", "pad", "concatenate"}
"""Operations that do to a few rows what they do to all, where they leave the axis alone."""


def with_halos(graph: Graph) -> Graph:
    """The graph with a second operand for its shifts: what they shift, made from halos of the inputs. Shifts along an
    axis that can't be cut anyway stay as they are, and so do those of values that can't be had for a few rows alone."""
    if not any(n.op == "shift" for n in graph.nodes):
        return graph
    axes = Axes.of(graph)
    found: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "shift" and (axis := _axis(axes, node)) is not None:
            found.setdefault(axis, []).append(node)
    for shifts in found.values():
        graph = _along(graph, shifts)
    return graph


def _axis(axes: Axes, shift: Node) -> int | None:
    dim = axes.dims(shift.outputs[0])[shift.params[0]["dimension"]]
    return None if dim is None else dim.axis


def _along(graph: Graph, shifts: Sequence[Node]) -> Graph:
    """The graph with halos for shifts along one axis, or as it is."""
    axes = Axes.of(graph)
    axis = _axis(axes, shifts[0])
    assert axis is not None
    maker = _Halos(graph, axes, axis)
    try:
        instead = {n.outputs: maker.shift(n) for n in shifts}
    except NoFit:
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += [*instead.get(node.outputs, [node]), *maker.nodes.get(node.outputs, [])]
    made = Graph(maker.values, tuple(maker.inputs), graph.outputs, tuple(nodes), maker.aliases)
    return made if _is_cut(made, shifts[0]) else graph


def _is_cut(graph: Graph, shift: Node) -> bool:
    axes = Axes.of(graph)
    return _axis(axes, shift) not in axes.pinned | axes.batches


class _Halos:
    """Makes values again from halos of the inputs; what does not have the axis is shared. Made nodes stand by the
    outputs of their originals."""

    def __init__(self, graph: Graph, axes: Axes, axis: int) -> None:
        self._axes, self._axis, self._makers = axes, axis, graph.makers()
        self.values, self.inputs, self.aliases = dict(graph.values), list(graph.inputs), dict(graph.aliases)
        self.nodes: dict[tuple[int, ...], list[Node]] = {}
        self._done: dict[tuple[int, bool], int] = {}
        self._kept: dict[tuple[int, Literal], int] = {}

    def shift(self, node: Node) -> list[Node]:
        """A shift that reads a halo as well, behind the nodes that put its constant where the array ends."""
        value, ahead, made = node.arrays[0], node.params[0]["by"] < 0, []
        operands = [value, self.of(value, ahead)]
        for fill in (i for i in node.inputs if isinstance(i, Literal)):
            for i in range(0 if ahead else 1, 2):
                kept = self._kept.get((operands[i], fill))
                if kept is None:
                    kept = self._kept[operands[i], fill] = self._again(operands[i])
                    made.append(Node("edge", (operands[i], fill), (kept,), node.params))
                operands[i] = kept
        return [*made, replace(node, inputs=tuple(operands))]

    def of(self, value: int, ahead: bool) -> int:
        """The rows of a value just before the block, or just after it."""
        dims = [d for d in self._axes.dims(value) if d is not None]
        own = [d for d in dims if d.axis == self._axis]
        if not own:
            return value
        if (value, ahead) not in self._done:
            node = self._makers.get(value)
            if len(own) > 1 or not is_unit(own[0].factor) or (node is None and dims[-1] is own[0]):
                raise NoFit("rows along lanes, or of more than one axis")
            if node is None:
                self._input(value, ahead)
            else:
                self._made(node, ahead)
        return self._done[value, ahead]

    def _input(self, value: int, ahead: bool) -> None:
        made = self._done[value, ahead] = self._again(value)
        self.inputs.append(made)
        self.aliases[made] = self.aliases.get(value, value)

    def _made(self, node: Node, ahead: bool) -> None:
        if node.op not in LOCAL:
            raise NoFit(f"{node.op} of a few rows")
        operands = tuple(self.of(i, ahead) if isinstance(i, int) else i for i in node.inputs)
        self._done |= {(o, ahead): self._again(o) for o in node.outputs}
        made = replace(node, inputs=operands, outputs=tuple(self._done[o, ahead] for o in node.outputs))
        self.nodes.setdefault(node.outputs, []).append(made)

    def _again(self, value: int) -> int:
        made = max(self.values) + 1
        self.values[made] = replace(self.values[value], id=made)
        return made

"""One array in two roles: copies of it where an op reads it along two different loops.

Segment ids are compared with themselves, position by position; a matrix is multiplied with its own transpose. Read as
one value, both of its uses would be one axis, which then meets itself on a diagonal and can't be cut. As two values,
each has an axis of its own; a kernel that reads one array twice costs what the second reading costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aka.fuse.axes import CHOICES, REDUCTIONS, Axes
from aka.fuse.graph import Graph, Node
from aka.fuse.sizes import NoFit

Use = tuple[int, int]
"""(place of a node in the graph, place among its operands)"""
DEAR = {"dot_general", "gather", *REDUCTIONS, *CHOICES}
"""What is not computed twice."""


def apart(graph: Graph) -> Graph:
    """The graph with as many copies of arguments (and of what is made from them at little cost) as it takes to have
    fewer axes meet themselves; the graph itself where copies do not help."""
    before, chosen = _diagonals(graph), _shared(graph)
    if not before or (least := _diagonals(_copied(graph, chosen))) >= before:
        return graph
    for value in chosen:
        without = [v for v in chosen if v != value]
        if _diagonals(_copied(graph, without)) == least:
            chosen = without
    made = _copied(graph, chosen)
    joined = _rejoined(made)
    return joined if _diagonals(joined) == least else made


def _diagonals(graph: Graph) -> int:
    """How often a value of the graph has an axis twice."""
    try:
        axes = Axes.of(graph)
    except NoFit:
        return 0
    values = {*graph.inputs, *(o for n in graph.nodes for o in n.outputs)}
    return sum(len(own) - len(set(own)) for own in map(axes.axes, values))


def _shared(graph: Graph) -> list[int]:
    """Values that are read in several places and cheap to have again, in the order of the program."""
    cheap = set(graph.inputs)
    for node in graph.nodes:
        if node.op not in DEAR and set(node.arrays) <= cheap:
            cheap |= set(node.outputs)
    made = [*graph.inputs, *(o for n in graph.nodes for o in n.outputs)]
    return [v for v in made if v in cheap and len(_uses(graph, v)) > 1]


def _uses(graph: Graph, value: int) -> list[Use]:
    return [(i, j) for i, n in enumerate(graph.nodes) for j, operand in enumerate(n.inputs) if operand == value]


def _copied(graph: Graph, values: Sequence[int]) -> Graph:
    """The graph in which every place that reads one of the values reads a copy of its own."""
    for value in values:
        graph = _with_copies(graph, value)
    return graph


def _with_copies(graph: Graph, value: int) -> Graph:
    copier = _Copier(graph)
    first, *others = _uses(graph, value)
    reads = {first: value} | {use: copier.copy(value, {}) for use in others}
    nodes: list[Node] = []
    for i, node in enumerate(graph.nodes):
        inputs = tuple(reads.get((i, j), operand) for j, operand in enumerate(node.inputs))
        nodes += [replace(node, inputs=inputs), *copier.nodes.get(node.outputs, [])]
    return Graph(copier.values, tuple(copier.inputs), graph.outputs, tuple(nodes), copier.aliases)


def _rejoined(graph: Graph) -> Graph:
    """The graph with copies made one again where they lie along the same axes."""
    axes = Axes.of(graph)
    instead: dict[int, int] = {}
    first: dict[object, tuple[int, ...]] = {}
    inputs = []
    for value, source in zip(graph.inputs, graph.sources, strict=True):
        kept = first.setdefault((source, axes.dims(value)), (value,))
        instead[value] = kept[0]
        inputs += [value] if kept == (value,) else []
    nodes = []
    for node in graph.nodes:
        operands = tuple(instead.get(i, i) if isinstance(i, int) else i for i in node.inputs)
        # Copies share the parameters of their original, no two other nodes do.
        key = (id(node.params), operands, tuple(axes.dims(o) for o in node.outputs))
        kept = first.setdefault(key, node.outputs)
        instead |= dict(zip(node.outputs, kept, strict=True))
        nodes += [replace(node, inputs=operands)] if kept == node.outputs else []
    outputs = tuple(instead[o] for o in graph.outputs)
    aliases = {a: s for a, s in graph.aliases.items() if a in inputs}
    return Graph(graph.values, tuple(inputs), outputs, tuple(nodes), aliases)


class _Copier:
    """Copies values together with what they are made from; copied nodes stand by the outputs of their originals."""

    def __init__(self, graph: Graph) -> None:
        self._makers = graph.makers()
        self.values, self.inputs, self.aliases = dict(graph.values), list(graph.inputs), dict(graph.aliases)
        self.nodes: dict[tuple[int, ...], list[Node]] = {}

    def copy(self, value: int, done: dict[int, int]) -> int:
        if value not in done:
            node = self._makers.get(value)
            if node is None:
                done[value] = self._again(value)
                self.inputs.append(done[value])
                self.aliases[done[value]] = self.aliases.get(value, value)
            else:
                operands = tuple(self.copy(v, done) if isinstance(v, int) else v for v in node.inputs)
                done |= {o: self._again(o) for o in node.outputs}
                copied = replace(node, inputs=operands, outputs=tuple(done[o] for o in node.outputs))
                self.nodes.setdefault(node.outputs, []).append(copied)
        return done[value]

    def _again(self, value: int) -> int:
        made = max(self.values) + 1
        self.values[made] = replace(self.values[value], id=made)
        return made

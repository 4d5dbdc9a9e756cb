"""What an op does last: a cast after a reshape is a cast before it, so that the reshape is XLA's to do."""

from __future__ import annotations

from dataclasses import replace

from aka.fuse.axes import ELEMENTWISE, splits
from aka.fuse.graph import Graph, Node


def reshaped_last(graph: Graph) -> Graph:
    """The graph with operations of one operand moved before the reshapes of its outputs."""
    while (pair := next((p for o in graph.outputs if (p := _pair(graph, o))), None)) is not None:
        graph = _swapped(graph, *pair)
    return graph


def _pair(graph: Graph, output: int) -> tuple[Node, Node] | None:
    """(reshape, operation after it) that end in an output, if nothing else reads the reshaped value."""
    makers = graph.makers()
    after = makers.get(output)
    while after is not None and after.op in ELEMENTWISE and len(after.arrays) == 1:
        middle = after.arrays[0]
        before = makers.get(middle)
        if before is None or middle in graph.outputs or sum(middle in n.arrays for n in graph.nodes) != 1:
            return None
        if before.op == "reshape":
            shapes = graph.values[before.arrays[0]].shape, graph.values[middle].shape
            return (before, after) if splits(*shapes) else None
        after = before
    return None


def _swapped(graph: Graph, before: Node, after: Node) -> Graph:
    source, middle, end = before.arrays[0], before.outputs[0], after.outputs[0]
    narrowed = replace(graph.values[source], id=middle, dtype=graph.values[end].dtype)
    first = replace(after, inputs=tuple(source if i == middle else i for i in after.inputs), outputs=(middle,))
    last = replace(before, inputs=(middle,), outputs=(end,))
    nodes = tuple(first if n is before else last if n is after else n for n in graph.nodes)
    return replace(graph, values={**graph.values, middle: narrowed}, nodes=nodes)

"""Every k-th element along a dimension, taken of the arguments rather than of what is computed from them.

`h[..., ::2]` of a projection asks for every second lane, which the compiler has no way to gather. But these are columns
of their own: `dot(x, w)[..., ::2]` is `dot(x, w[..., ::2])`. So the slice moves up through the program to the
arguments, where XLA does it before the kernel runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aka.fuse.axes import ELEMENTWISE
from aka.fuse.graph import Graph, Node
from aka.fuse.pairs import Strided, strided
from aka.fuse.rebuild import PLAIN, Rebuild, places
from aka.fuse.sizes import NoFit, Size, over

MOVING = {"broadcast_in_dim", "transpose", *PLAIN}
"""Operations with one operand that is thinned where `places` says."""


def is_strided(node: Node) -> bool:
    return node.op == "slice" and any(s != 1 for p in node.params for s in p["strides"] or ())


def thinned(graph: Graph) -> Graph:
    """The graph with its slices of every k-th element moved to the arguments; those stay that cannot."""
    found = {n.outputs[0] for n in graph.nodes if is_strided(n)}
    slices = {v: s for v, s in strided(graph).items() if v in found and not s.converts}
    return _Rewrite(graph, slices=slices).finished() if slices else graph


@dataclass
class _Rewrite(Rebuild):
    slices: dict[int, Strided] = field(default_factory=dict)

    def rewritten(self, node: Node) -> int | None:
        found = self.slices.get(node.outputs[0])
        return None if found is None else self._thin(found.source, found, found.dim)

    def _thin(self, value: int, every: Strided, dim: int) -> int:
        """The value's own elements `offset`, `offset` + `stride`, ... along `dim`. Raises NoFit where something on the
        way can't be thinned."""
        node, own = self.makers.get(value), self.graph.values[value]
        length = over(own.shape[dim], (every.stride,) * self.graph.cases)
        if length is None:
            raise NoFit("a dimension that the stride does not divide")
        shape = (*own.shape[:dim], length, *own.shape[dim + 1 :])
        if node is None:
            return self._slice(self.new[value], every, dim, own.shape, shape, own.dtype)
        if node.op == "dot_general":
            side, place = _free(node, [len(self.graph.values[v].shape) for v in node.arrays], dim)
            inputs = tuple(self._thin(v, every, place) if i == side else self.new[v] for i, v in enumerate(node.arrays))
            return self.emit(node.op, inputs, shape, own.dtype, node.params)
        if node.op not in ELEMENTWISE and node.op not in MOVING:
            raise NoFit(f"every {every.stride}th element of a {node.op}")
        at = places(self.graph, node, dim)
        if at is None:
            raise NoFit(f"every {every.stride}th element of a {node.op}")
        made = tuple(
            i if not isinstance(i, int) else self._thin(i, every, at[i]) if i in at else self.new[i]
            for i in node.inputs
        )
        return self.emit(node.op, made, shape, own.dtype, node.params)

    def _slice(
        self, value: int, every: Strided, dim: int, whole: tuple[Size, ...], shape: tuple[Size, ...], dtype: str
    ) -> int:
        params = tuple(
            {
                "start_indices": tuple(every.offset if i == dim else 0 for i in range(len(whole))),
                "limit_indices": tuple(s[case] for s in whole),
                "strides": tuple(every.stride if i == dim else 1 for i in range(len(whole))),
            }
            for case in range(self.graph.cases)
        )
        return self.emit("slice", (value,), shape, dtype, params)


def _free(node: Node, ranks: list[int], dim: int) -> tuple[int, int]:
    """Which operand of a product gives a dimension of its result, and where it has it. Raises NoFit for a batch one."""
    (contract, batch) = node.params[0]["dimension_numbers"]
    at = len(batch[0])
    if dim < at:
        raise NoFit("every k-th product of a batch")
    for side in (0, 1):
        free = [i for i in range(ranks[side]) if i not in (*contract[side], *batch[side])]
        if dim < at + len(free):
            return side, free[dim - at]
        at += len(free)
    raise NoFit("a product of more dimensions than its operands")

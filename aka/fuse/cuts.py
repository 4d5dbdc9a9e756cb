"""Where an op is cut into kernels: all in one if that is the cheaper plan, else at values worth a trip to HBM."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from aka.fuse.axes import CHOICES, REDUCTIONS, splits
from aka.fuse.graph import LAYOUT, Graph, Node, subgraph
from aka.fuse.plan import Machine, Plan, plans
from aka.fuse.sizes import ITEMSIZE, NoFit, Size
from aka.fuse.source import Writer
from aka.fuse.thinned import is_strided

MAX_CUTS = 14
SMALL = 8
"""How many times smaller than the largest array a value is that is worth a trip to HBM between two reductions."""
REDUCING = {"dot_general", "gather", *REDUCTIONS, *CHOICES}


@dataclass(frozen=True, eq=False)
class Piece:
    """A kernel's share of the op: its plans, best first, and what it computes (`op`: without the plans' second roles of
    inputs). What its graph reads may be rearranged by XLA before."""

    plans: tuple[Plan, ...]
    op: Graph

    @property
    def graph(self) -> Graph:
        return self.plans[0].graph

    @property
    def outputs(self) -> tuple[int, ...]:
        return self.graph.outputs

    @property
    def seconds(self) -> float:
        return self.plans[0].seconds


@dataclass(frozen=True)
class Split:
    """The op as pieces in order of execution; `layout` are the nodes that run between them, `between_s` what XLA's
    copies there take at least."""

    pieces: tuple[Piece, ...]
    layout: tuple[Node, ...]
    between_s: float = 0.0

    @property
    def seconds(self) -> float:
        return sum(p.seconds for p in self.pieces) + self.between_s


class Cutter:
    """Tries ways to cut a graph; `words` name sizes. `refused` tells why pieces did not fit."""

    def __init__(self, graph: Graph, machine: Machine, words: Mapping[Size, str]) -> None:
        self.graph, self.machine, self._words = graph, machine, words
        self.refused: dict[str, None] = {}
        self._pieces: dict[tuple[tuple[int, ...], tuple[int, ...]], Piece | None] = {}
        self._makers = graph.makers()
        sizes = (s for v in graph.inputs for s in graph.values[v].shape)
        self._names = {s: f"n{i}" for i, s in enumerate(dict.fromkeys(sizes))}

    def splits(self) -> list[Split]:
        """The whole op in one kernel if that fits, the cheapest at one value and at several by rough time, and the
        finest; distinct ones, cheapest first. Raises NoFit if none fits."""
        cuts = self.candidates()
        single = [s for c in cuts if (s := self.split((c,))) is not None]
        found = [self.split(()), min(single, key=lambda s: s.seconds, default=None), self._greedy(cuts)]
        found.append(self.split(cuts))
        made: dict[tuple[tuple[int, ...], ...], Split] = {}
        for split in found:
            if split is not None:
                made.setdefault(tuple(p.outputs for p in split.pieces), split)
        if not made:
            raise NoFit("; ".join(self.refused) or "nothing to compute")
        return sorted(made.values(), key=lambda s: s.seconds)

    def candidates(self) -> tuple[int, ...]:
        """Values that may be written to HBM: operands of a matrix product that come from another one, results of
        reductions, what such results are made to before the next reduction, what is reshaped."""
        found: dict[int, None] = {}
        for node in self.graph.nodes:
            if node.op == "dot_general":
                found |= {v: None for v in node.arrays if self._comes_from({"dot_general"}, v)}
            if node.op in REDUCING:
                found[node.outputs[0]] = None
            if node.op in REDUCTIONS:
                found |= {v: None for v in node.arrays if self._is_small(v) and self._comes_from(REDUCING, v)}
            if node.op == "reshape" and self._splits(node):
                found[node.arrays[0]] = None
        plain = [v for v in found if v not in self.graph.outputs and v not in self.graph.inputs]
        return tuple(sorted(plain)[:MAX_CUTS])

    def _is_small(self, value: int) -> bool:
        sizes = [math.prod(s[0] for s in v.shape) for v in self.graph.values.values()]
        return math.prod(s[0] for s in self.graph.values[value].shape) * SMALL <= max(sizes)

    def _comes_from(self, ops: Collection[str], value: int) -> bool:
        seen, wanted = set(), [value]
        while wanted:
            node = self._makers.get(wanted.pop())
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))
            if node.op in ops:
                return True
            wanted += node.arrays
        return False

    def _splits(self, node: Node) -> bool:
        values = self.graph.values
        return splits(values[node.arrays[0]].shape, values[node.outputs[0]].shape)

    def _greedy(self, cuts: Sequence[int]) -> Split | None:
        """From every cut to fewer, as long as the rough time falls."""
        best, left = self.split(cuts), list(cuts)
        for cut in cuts:
            trial = [c for c in left if c != cut]
            made = self.split(trial)
            if made is not None and (best is None or made.seconds <= best.seconds):
                best, left = made, trial
        return best

    def split(self, cuts: Sequence[int]) -> Split | None:
        """The op cut at these values, or None where a piece fits no plan."""
        ends = self._sinks([*cuts, *self.graph.outputs])
        layout: list[Node] = []
        pieces: dict[tuple[int, ...], Piece] = {}
        known = {*self.graph.inputs, *ends}
        for group in self._grouped(ends, known):
            piece = self._piece(group, known)
            if piece is None:
                return None
            pieces[group] = piece
        for piece in pieces.values():
            layout += self._layout_before(piece.graph.sources, known)
        layout += self._layout_before(self.graph.outputs, known)
        ordered = _ordered({p: self._behind(p.graph.sources, known) for p in pieces.values()})
        if ordered is None:
            return None
        distinct = {n.outputs: n for n in layout}
        between_s = sum(self._copied(n) for n in distinct.values()) / self.machine.bytes_per_s
        return Split(tuple(ordered), tuple(sorted(distinct.values(), key=lambda n: n.outputs)), between_s)

    def _copied(self, node: Node) -> int:
        """Bytes that a reshape moves: with another last dimension the tiles of the array are others, so it is read and
        written, as is every k-th element. Transposes are left out, since XLA may do one and a reshape at once."""
        before, after = (self.graph.values[v] for v in (*node.arrays[:1], *node.outputs[:1]))
        moves = node.op == "reshape" and after.shape and before.shape[-1:] != after.shape[-1:]
        if not moves and not is_strided(node):
            return 0
        elements = sum(math.prod(s[0] for s in v.shape) for v in (before, after))
        return elements * ITEMSIZE.get(after.dtype, 4)

    def _sinks(self, ends: Sequence[int]) -> list[int]:
        """The values that kernels must write: layout operations at an end are left to XLA."""
        found: dict[int, None] = {}
        for end in ends:
            value = end
            chain = [end]
            while (node := self._makers.get(value)) is not None and node.op in LAYOUT and node.arrays:
                value = node.arrays[0]
                chain.append(value)
            deepest = end
            for v in chain:
                node = self._makers.get(v)
                if node is not None and node.op == "reshape" and self._splits(node):
                    deepest = node.arrays[0]
            if self._makers.get(deepest) is not None:
                found[deepest] = None
        return sorted(found)

    def _grouped(self, ends: Sequence[int], known: set[int]) -> list[tuple[int, ...]]:
        """The ends by the kernel that writes them: each alone, then two kernels at a time made one where that pays."""
        groups: list[tuple[int, ...]] = [(end,) for end in ends]
        while pair := next((p for p in itertools.combinations(groups, 2) if self._joins(*p, groups, known)), None):
            groups = [g for g in groups if g not in pair] + [tuple(sorted((*pair[0], *pair[1])))]
        return groups

    def _joins(
        self, a: tuple[int, ...], b: tuple[int, ...], groups: Sequence[tuple[int, ...]], known: set[int]
    ) -> bool:
        """Whether one kernel should write both: where the one reads no array that the other does not, or where they are
        outputs of the op of which one is made from the other."""
        reads = {g: set(self._hoisted(g, known).inputs) for g in groups}
        chained = bool(set(a) & reads[b] or set(b) & reads[a])
        final = set(self._sinks(self.graph.outputs))
        if chained and not {*a, *b} <= final:
            return False
        if not chained and not (reads[a] <= reads[b] or reads[b] <= reads[a]):
            return False
        # A third kernel between the two would have to run in the middle of the joint one.
        rest = [g for g in groups if g not in (a, b)]
        between = any({*a, *b} & reads[c] and set(c) & (reads[a] | reads[b]) for c in rest)
        return not between and self._worth((*a, *b), known, (a, b))

    def _worth(self, together: tuple[int, ...], known: set[int], parts: Sequence[tuple[int, ...]]) -> bool:
        whole = self._piece(tuple(sorted(together)), known)
        alone = [self._piece(p, known) for p in parts]
        return whole is not None and (None in alone or whole.seconds <= sum(p.seconds for p in alone if p))

    def _piece(self, outputs: tuple[int, ...], known: set[int]) -> Piece | None:
        graph = self._hoisted(outputs, known)
        key = (graph.inputs, outputs)
        if key not in self._pieces:
            self._pieces[key] = self._planned(graph)
        return self._pieces[key]

    def _planned(self, graph: Graph) -> Piece | None:
        try:
            found: dict[int | None, Plan] = {}
            for plan in plans(graph, self.machine):
                if plan.stream not in found and self._writes(plan):
                    found[plan.stream] = plan
        except NoFit as reason:
            self.refused[str(reason)] = None
            return None
        return Piece(tuple(found.values()), graph) if found else None

    def _writes(self, plan: Plan) -> bool:
        """Whether a body can be written for it: a plan that only looks cheap must not win."""
        try:
            names = [f"x{i}" for i in range(len(plan.graph.inputs))]
            Writer(plan, "piece", names, self._words, outer=self._names).write()
        except NoFit as reason:
            self.refused[str(reason)] = None
            return False
        return True

    def _hoisted(self, outputs: tuple[int, ...], known: set[int]) -> Graph:
        """The graph of a piece, with layout operations on its inputs that end in a true reshape or take every k-th
        element left outside."""
        order = [*self.graph.inputs, *sorted(known - set(self.graph.inputs))]
        graph = subgraph(self.graph, [v for v in order if v not in outputs], outputs)
        outside = set(graph.inputs)
        reshaped: list[int] = []
        for node in graph.nodes:
            outer = (node.op in LAYOUT or is_strided(node)) and node.arrays and set(node.arrays) <= outside
            if outer and node.outputs[0] not in outputs:
                outside.add(node.outputs[0])
                if is_strided(node) or (node.op == "reshape" and self._splits(node)):
                    reshaped.append(node.outputs[0])
        return subgraph(graph, [*graph.inputs, *reshaped], outputs) if reshaped else graph

    def _layout_before(self, values: Sequence[int], known: set[int]) -> list[Node]:
        """The layout operations that lead from known values to these."""
        found, wanted = [], [v for v in values if v not in known]
        while wanted:
            node = self._makers[wanted.pop()]
            found.append(node)
            wanted += [v for v in node.arrays if v not in known]
        return found

    def _behind(self, values: Sequence[int], known: set[int]) -> set[int]:
        """The known values that these are, or are rearranged from."""
        before = self._layout_before(values, known)
        return {v for v in (*values, *(a for n in before for a in n.arrays)) if v in known}


def _ordered(reads: Mapping[Piece, set[int]]) -> list[Piece] | None:
    """Pieces so that each comes after those whose outputs it reads (ids grow along the program); None if they wait for
    each other."""
    made: list[Piece] = []
    missing = {o for p in reads for o in p.outputs}
    left = sorted(reads, key=lambda p: max(p.outputs))
    while left:
        ready = next((p for p in left if not reads[p] & (missing - set(p.outputs))), None)
        if ready is None:
            return None
        left.remove(ready)
        made.append(ready)
        missing -= set(ready.outputs)
    return made

"""Groups of channels without a split of the channels: a rewrite of the program before anything is planned.

Ops that treat channels in groups write `x.reshape(..., groups, width)`, reduce over the width (and more), and reshape
back. Such a split moves lanes about, and pads a narrow width to 128 of them. Here large values keep their unsplit form;
only what is one number per group comes and goes, by two operations of our own:

- `group_reduce`: the channels of each group to their sum, maximum or minimum;
- `group_spread`: to each channel the value of its group.

Both have `dimension`, and `rows`: whether there are many rows of channels, or one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aka.fuse.axes import ELEMENTWISE, LANES, REDUCTIONS, splits
from aka.fuse.graph import LAYOUT, Graph, Literal, Node, Value, pruned
from aka.fuse.sizes import NoFit, Size, is_unit, times
from aka.fuse.splitform import Form, Shape, form_of

RESHAPES = {"reshape", "squeeze", "expand_dims"}


def ungrouped(graph: Graph) -> Graph:
    """The program with its groups of channels left unsplit; where that is not possible, as it is."""
    start, refused = graph, set[int]()
    graph = tidied(graph)
    before = graph
    while seed := next((n for n in graph.nodes if n.outputs[0] not in refused and _form(graph, n)), None):
        form = _form(graph, seed)
        assert form is not None
        try:
            graph, refused = _Rewrite(graph, form, {seed.outputs[0]}).run(), set()
        except NoFit:
            refused.add(seed.outputs[0])
    return start if graph is before else graph


def _form(graph: Graph, node: Node) -> Form | None:
    if node.op != "reshape":
        return None
    return form_of(graph.values[node.arrays[0]].shape, graph.values[node.outputs[0]].shape)


def tidied(graph: Graph) -> Graph:
    """The same with ids that grow along the program, and nothing computed twice."""
    new = {old: i for i, old in enumerate(graph.inputs)}
    values = {i: replace(graph.values[old], id=i) for old, i in new.items()}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(new[i] if isinstance(i, int) else i for i in node.inputs)
        same = next((n for n in nodes if n.op == node.op and n.inputs == inputs and n.params == node.params), None)
        if same is not None:
            new.update(zip(node.outputs, same.outputs, strict=True))
            continue
        for old in node.outputs:
            new[old] = len(values)
            values[new[old]] = replace(graph.values[old], id=new[old])
        nodes.append(replace(node, inputs=inputs, outputs=tuple(new[o] for o in node.outputs)))
    inputs, outputs = (tuple(new[v] for v in ends) for ends in (graph.inputs, graph.outputs))
    return Graph(values, inputs, outputs, tuple(nodes), {new[a]: new[s] for a, s in graph.aliases.items()})


@dataclass
class _Rewrite:
    """Rewrites what one split reaches; `split` are the values in split form, `kept` the dimensions that a single row
    of channels is made for. Raises NoFit where something needs the split form."""

    graph: Graph
    form: Form
    split: set[int]
    kept: set[int] = field(default_factory=set)
    values: dict[int, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    moved: dict[int, int] = field(default_factory=dict)
    renamed: dict[int, int] = field(default_factory=dict)
    reduced: bool = False

    def run(self) -> Graph:
        self.values, self.makers = dict(self.graph.values), self.graph.makers()
        self._reach()
        if set(self.graph.outputs) & self.split:
            raise NoFit("an output in the split form")
        for node in self.graph.nodes:
            if node.outputs[0] in self.split:
                continue
            if not set(node.arrays) & self.split:
                inputs = tuple(self._now(i) if isinstance(i, int) else i for i in node.inputs)
                self.nodes.append(replace(node, inputs=inputs))
            elif node.op in RESHAPES:
                self._rejoin(node)
            else:
                self._reduce(node)
        if not self.reduced:
            raise NoFit("nothing is reduced within groups")
        outputs = tuple(map(self._now, self.graph.outputs))
        return tidied(pruned(replace(self.graph, values=self.values, outputs=outputs, nodes=tuple(self.nodes))))

    def _now(self, value: int) -> int:
        return self.renamed.get(value, value)

    def _shape(self, value: int) -> Shape:
        return self.values[value].shape

    def _reach(self) -> None:
        for node in self.graph.nodes:
            if not set(node.arrays) & self.split:
                continue
            if node.op in ELEMENTWISE and self._shape(node.outputs[0]) == self.form.split():
                self.split.add(node.outputs[0])
            elif node.op in REDUCTIONS and self._leaves_a_row(node.params[0]["axes"]):
                self.kept |= set(range(len(self.form.spans))) - set(node.params[0]["axes"])

    def _leaves_a_row(self, gone: Sequence[int]) -> bool:
        """Whether more is reduced than the inside of the groups: what is left is small, one row of channels."""
        form = self.form
        away = [p for i in gone for p in form.places(i) if p != form.channels]
        return any(not is_unit(form.full[p]) for p in away)

    # What leaves the split form

    def _rejoin(self, node: Node) -> None:
        """A reshape of a split value is one of the unsplit value."""
        value = self._whole(node.arrays[0])
        if self._shape(value) == self._shape(node.outputs[0]):
            self.renamed[node.outputs[0]] = value
        else:
            self._add("reshape", value, self._shape(node.outputs[0]), out=node.outputs[0])

    def _whole(self, split: int) -> int:
        """The unsplit value in its full shape."""
        value, full = self._unsplit(split), self.form.full
        if self._shape(value) == full:
            return value
        return self._add("broadcast_in_dim", value, full, broadcast_dimensions=tuple(range(len(full))))

    def _reduce(self, node: Node) -> None:
        form, out = self.form, node.outputs[0]
        if node.op not in REDUCTIONS or self.values[out].dtype == "bool":
            raise NoFit(f"{node.op} of a split value")
        gone = node.params[0]["axes"]
        kept = [i for i in range(len(form.spans)) if i not in gone]
        if form.inner in kept or any(len(form.spans[i]) > 1 for i in kept):
            raise NoFit("a reduction that keeps channels or joined dimensions")
        value = self._whole(node.arrays[0])
        whole = form.group in gone
        away = sorted(p for i in gone for p in form.places(i) if whole or p != form.channels)
        left = tuple(s for i, s in enumerate(form.full) if i not in away)
        if whole:
            self._add(node.op, value, left, out=out, axes=tuple(away))
            return
        if any(not is_unit(form.full[p]) for p in away):
            value = self._add(node.op, value, left, axes=tuple(away))
        elif away:
            value = self._add("reshape", value, left)
        at = form.channels - sum(p < form.channels for p in away)
        rows = not self._leaves_a_row(gone) and any(not is_unit(s) for i, s in enumerate(left) if i != at)
        self._grouped("group_reduce", value, at, rows, out, kind=REDUCTIONS[node.op])
        self.reduced = True

    def _grouped(self, op: str, value: int, at: int, rows: bool, out: int | None = None, **more: Any) -> int:
        shape, width = list(self._shape(value)), self.form.width
        if rows and (at != len(shape) - 1 or width[0] % LANES):
            raise NoFit(f"many rows with groups of {width[0]} channels, no multiple of {LANES} lanes")
        shape[at] = self.form.groups if op == "group_reduce" else times(self.form.groups, width)
        return self._add(op, value, tuple(shape), out=out, dimension=at, rows=rows, **more)

    # What enters the unsplit form

    def _unsplit(self, value: int) -> int:
        """A value of the split rank in the unsplit one; it may be narrow in some dimensions."""
        if value not in self.moved:
            self.moved[value] = self._computed(value)
        return self.moved[value]

    def _computed(self, value: int) -> int:
        node, shape = self.makers.get(value), self._shape(value)
        if not shape:
            return self._now(value)
        if len(shape) != len(self.form.spans):
            raise NoFit("an operand of another rank")
        if node is None or is_unit(shape[self.form.inner]):
            return self._entering(value, shape)
        if node.op in ELEMENTWISE:
            return self._elementwise(node)
        if node.op == "broadcast_in_dim":
            wide: list[Size] = [(1,) * self.graph.cases] * len(shape)
            for size, place in zip(self._shape(node.arrays[0]), node.params[0]["broadcast_dimensions"], strict=True):
                wide[place] = size
            return self._entering(node.arrays[0], wide)
        form = _form(self.graph, node)
        if form is not None and form.agrees(self.form):
            return self._reshaped(node.arrays[0], form.full)
        return self._entering(value, shape)

    def _elementwise(self, node: Node) -> int:
        inputs = tuple(i if isinstance(i, Literal) else self._unsplit(i) for i in node.inputs)
        shapes = [s for i in inputs if isinstance(i, int) and (s := self._shape(i))]
        shape = tuple(next((s for s in sizes if not is_unit(s)), sizes[0]) for sizes in zip(*shapes, strict=True))
        made = self._new(shape, self.values[node.outputs[0]].dtype)
        self.nodes.append(replace(node, inputs=inputs, outputs=(made,)))
        return made

    def _entering(self, value: int, wide: Sequence[Size]) -> int:
        """A value that has the sizes `wide` in the split form: narrow there, or small enough to be rearranged before
        the kernel."""
        form, one = self.form, (1,) * self.graph.cases
        groups, inner = wide[form.group], wide[form.inner]
        others = {i for i, s in enumerate(wide) if i not in (form.group, form.inner) and not is_unit(s)}
        if is_unit(inner):
            narrow = self._reshaped(value, form.narrow(wide, groups))
            if is_unit(groups):
                return narrow
            return self._grouped("group_spread", narrow, form.channels, not others <= self.kept)
        if others or inner != form.width or not self._is_given(value):
            raise NoFit("an operand in the split form")
        if is_unit(groups):
            row = self._reshaped(value, (inner,))
            value = self._add("broadcast_in_dim", row, (form.groups, inner), broadcast_dimensions=(1,))
        return self._reshaped(value, form.narrow([one] * len(wide), times(form.groups, form.width)))

    def _is_given(self, value: int) -> bool:
        """Whether it is an argument, rearranged at most: what XLA may do before the kernel."""
        node = self.makers.get(value)
        return node is None or (node.op in LAYOUT and self._is_given(node.arrays[0]))

    def _reshaped(self, value: int, shape: Shape) -> int:
        """A value in another shape; a reshape before is undone where that leaves less to do."""
        node = self.makers.get(value)
        before = None if node is None or node.op not in RESHAPES else node.arrays[0]
        if before is not None and before not in self.split and splits(self._shape(value), shape):
            return self._reshaped(before, shape)
        value = self._now(value)
        return value if self._shape(value) == shape else self._add("reshape", value, shape)

    # New nodes

    def _new(self, shape: Shape, dtype: str) -> int:
        made = max(self.values) + 1
        self.values[made] = Value(made, shape, dtype)
        return made

    def _add(self, op: str, value: int, shape: Shape, out: int | None = None, **params: Any) -> int:
        """A node of one operand, at every size with the same parameters."""
        made = self._new(shape, self.values[value].dtype) if out is None else out
        self.nodes.append(Node(op, (value,), (made,), (params,) * self.graph.cases))
        return made

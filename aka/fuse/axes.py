"""Which dimensions of an op's values are one and the same loop.

Two dimensions belong to one axis where an operation ties them: an elementwise operation ties dimension to dimension, a
matrix product ties the contracted ones, a reshape ties n to the outer part of its split, times the inner part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from aka.fuse.graph import Graph, Node
from aka.fuse.sizes import NoFit, Size, is_unit, over, tile_rows, times

Place = tuple[int, int]
"""(value, dimension)"""

ELEMENTWISE = {
    "abs", "add", "add_any", "and", "atan2", "cbrt", "ceil", "clamp", "convert_element_type", "cos", "div", "eq", "erf",
    "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic",
    "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow", "reduce_precision", "rem", "round", "rsqrt", "select_n",
    "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sqrt", "square", "sub", "tan",
    "tanh", "xor",
}  # fmt: skip
REDUCTIONS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_and": "min", "reduce_or": "max"}
CHOICES = {"argmax", "argmin"}
LANES = 128


@dataclass(frozen=True)
class Dim:
    """A dimension of a value: its axis, and how many elements of it one step along the axis covers."""

    axis: int
    factor: Size


@dataclass(frozen=True)
class Halo:
    """What an axis of a few rows is: those before each block of the axis `main`, or `ahead` of it. `rows` is how many
    a block of them has, unless the block that they belong to has fewer."""

    main: int
    ahead: bool
    rows: int


@dataclass
class Axes:
    """Axes of a graph. `pinned` ones must be held whole; `reduced` maps an axis to the nodes that reduce over it;
    `halos` are axes that follow another one."""

    graph: Graph
    pinned: set[int] = field(default_factory=set)
    reduced: dict[int, list[Node]] = field(default_factory=dict)
    batches: set[int] = field(default_factory=set)
    halos: dict[int, Halo] = field(default_factory=dict)
    _parent: dict[Place, tuple[Place, tuple[Fraction, ...]]] = field(default_factory=dict)
    _pins: list[Place] = field(default_factory=list)
    _reduces: list[tuple[Place, Node]] = field(default_factory=list)
    _batch: list[Place] = field(default_factory=list)
    _beside: list[tuple[Place, Place, int]] = field(default_factory=list)
    _dims: dict[int, tuple[Dim | None, ...]] = field(default_factory=dict)
    _sizes: dict[int, Size] = field(default_factory=dict)
    _absorbed: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph) -> Axes:
        """Raises NoFit naming the operation that no template knows."""
        made = cls(graph)
        for node in graph.nodes:
            made._tie(node)
        made._number()
        return made

    def dims(self, value: int) -> tuple[Dim | None, ...]:
        """The dimensions of a value; None for one of size 1."""
        return self._dims[value]

    def axes(self, value: int) -> list[int]:
        return [d.axis for d in self._dims[value] if d is not None]

    def size(self, axis: int) -> Size:
        """Steps along the axis."""
        return self._sizes[axis]

    def whole(self, dim: Dim) -> Size:
        """The full length of a dimension."""
        return times(self._sizes[dim.axis], dim.factor)

    def along_lanes(self, axis: int, squeezed: Collection[int] = ()) -> bool:
        """Whether an axis lies along lanes where it stands alone: unless it is rows in most values that have more axes,
        `squeezed` ones left out."""
        layouts = [[d.axis for d in self.layout(v) if d.axis not in squeezed] for v in self._dims]
        return sum(1 if own[-1] == axis else -1 for own in layouts if len(own) > 1 and axis in own) >= 0

    def __iter__(self) -> Iterator[int]:
        """The axes that kernels see and walk."""
        return (a for a in self._sizes if a not in self._absorbed and a not in self.halos)

    def shape(self, value: int) -> tuple[Size, ...]:
        return self.graph.values[value].shape

    def layout(self, value: int) -> list[Dim]:
        """The dimensions of a value as kernels see them: those of size 1 left out, neighbours that always go together
        merged into one."""
        found = [d for d in self._dims[value] if d is not None]
        return [d for d in found if d.axis not in self._absorbed]

    def merged(self, axis: int) -> int:
        """The axis that stands for this one: itself, or the outer neighbour that it was merged into."""
        while axis in self._absorbed:
            axis = self._absorbed[axis]
        return axis

    def merge_neighbours(self) -> None:
        """Merge each axis into the one before it where every value has both side by side, or neither: rows of rows are
        rows. What an operation treats on its own (an iota, a split) stays."""
        for inner in list(self._sizes):
            outer = self._neighbour(inner)
            if outer is not None:
                self._sizes[outer] = times(self._sizes[outer], self._sizes[inner])
                self._absorbed[inner] = outer
                if inner in self.reduced:
                    self.reduced.setdefault(outer, self.reduced[inner])
                self.batches |= {outer} if inner in self.batches else set()

    def _neighbour(self, inner: int) -> int | None:
        alone = self.pinned | self._made_by_iota() | self._lanes() | self._followed()
        outer: int | None = None
        for value in self._dims:
            dims = self.layout(value)
            at = next((i for i, d in enumerate(dims) if d.axis == inner), None)
            if at is None:
                continue
            if at == 0 or not is_unit(dims[at].factor) or not is_unit(dims[at - 1].factor):
                return None
            if outer not in (None, dims[at - 1].axis):
                return None
            outer = dims[at - 1].axis
        if outer is None or outer in alone or inner in alone:
            return None
        together = all(inner in self._layout_axes(v) for v in self._dims if outer in self._layout_axes(v))
        same = self.reduced.get(outer) == self.reduced.get(inner)
        return outer if together and same and (outer in self.batches) == (inner in self.batches) else None

    def _lanes(self) -> set[int]:
        """The last axis of the largest values, where it fills vector registers: rows are not folded into it."""
        last = [self._dims[v][-1] for v in self._dims if len(self._dims[v]) > 1]
        return {d.axis for d in last if d is not None and self._sizes[d.axis][0] >= LANES}

    def _layout_axes(self, value: int) -> list[int]:
        return [d.axis for d in self.layout(value)]

    def _made_by_iota(self) -> set[int]:
        made = set()
        for node in self.graph.nodes:
            if node.op == "iota":
                dim = self._dims[node.outputs[0]][node.params[0]["dimension"]]
                made |= {dim.axis} if dim else set()
        return made

    def _followed(self) -> set[int]:
        return {*self.halos, *(h.main for h in self.halos.values())}

    def pin(self, value: int, dim: int) -> None:
        self._pins.append((value, dim))

    def reduce(self, value: int, dim: int, node: Node) -> None:
        self._reduces.append(((value, dim), node))

    def batch(self, value: int, dim: int) -> None:
        self._batch.append((value, dim))

    def halo_rows(self, axis: int) -> int:
        """Rows beside a block of this axis that its shifts read; 0 where it has none."""
        return max((h.rows for h in self.halos.values() if h.main == axis), default=0)

    def role(self, value: int) -> str:
        """What to add to the name of a value that stands for the rows beside blocks of another."""
        found = [self.halos[d.axis] for d in self.layout(value) if d.axis in self.halos]
        return "".join("_after" if h.ahead else "_before" for h in found)

    def beside(self, halo: Place, main: Place, by: int) -> None:
        """`halo` are the rows that a shift of `main` by so many places reads outside of a block."""
        self._beside.append((halo, main, by))

    def link(self, a: Place, b: Place, factor: Size | None = None) -> None:
        """One step of `b` covers `factor` elements of `a` (None: 1)."""
        (ra, fa), (rb, fb) = self._find(a), self._find(b)
        scale = tuple(Fraction(f) for f in factor) if factor else (Fraction(1),) * len(fa)
        if ra != rb:
            # a = fa * ra and b = fb * rb elements per step; a's element count per step of b is `factor` times b's.
            self._parent[ra] = (rb, tuple(s * y / x for s, x, y in zip(scale, fa, fb, strict=True)))
        elif tuple(s * y for s, y in zip(scale, fb, strict=True)) != fa:
            self._pins.append(a)

    def _find(self, place: Place) -> tuple[Place, tuple[Fraction, ...]]:
        factor = (Fraction(1),) * self.graph.cases
        while place in self._parent:
            place, step = self._parent[place]
            factor = tuple(a * b for a, b in zip(factor, step, strict=True))
        return place, factor

    def _tie(self, node: Node) -> None:
        rule = RULES.get(node.op)
        if rule is None:
            shapes = " and ".join(str([s[0] for s in self.shape(i)]) for i in node.arrays)
            raise NoFit(f"{node.op} of {shapes}")
        rule(self, node)

    def _number(self) -> None:
        """Give each class of places a number, its factors the smallest whole ones."""
        classes: dict[Place, list[tuple[Place, tuple[Fraction, ...]]]] = {}
        values = {*self.graph.inputs, *(o for n in self.graph.nodes for o in n.outputs)}
        for value in sorted(values):
            for i, size in enumerate(self.shape(value)):
                if not is_unit(size):
                    root, factor = self._find((value, i))
                    classes.setdefault(root, []).append(((value, i), factor))
        found: dict[Place, Dim] = {}
        numbers: dict[Place, int] = {}
        for number, (root, members) in enumerate(classes.items()):
            numbers[root] = number
            least = tuple(min(f[c] for _, f in members) for c in range(self.graph.cases))
            for place, factor in members:
                steps = tuple(a / b for a, b in zip(factor, least, strict=True))
                if any(s.denominator != 1 for s in steps):
                    self.pinned.add(number)
                found[place] = Dim(number, tuple(int(s) for s in steps))
                size = self.shape(place[0])[place[1]]
                if all(s == 1 for s in steps):
                    self._sizes[number] = size
            self._sizes.setdefault(number, self.shape(members[0][0][0])[members[0][0][1]])
        self._dims = {v: tuple(found.get((v, i)) for i in range(len(self.shape(v)))) for v in sorted(values)}
        self.pinned |= {numbers[r] for p in self._pins if (r := self._find(p)[0]) in numbers}
        self.batches = {numbers[r] for p in self._batch if (r := self._find(p)[0]) in numbers}
        for place, node in self._reduces:
            root = self._find(place)[0]
            if root in numbers:
                self.reduced.setdefault(numbers[root], []).append(node)
        self._number_halos(numbers)
        for value in values:  # a value with one axis twice shows a diagonal when it is cut
            seen = self.axes(value)
            self.pinned |= {a for a in seen if seen.count(a) > 1}

    def _number_halos(self, numbers: Mapping[Place, int]) -> None:
        for halo, main, by in self._beside:
            own, whole = numbers[self._find(halo)[0]], numbers[self._find(main)[0]]
            inputs = [v for v in self.graph.inputs if own in self.axes(v)]
            rows = max([tile_rows(self.graph.values[v].dtype) for v in inputs], default=1)
            rows = max(rows, 1 << (abs(by) - 1).bit_length(), self.halos[own].rows if own in self.halos else 1)
            self.halos[own] = Halo(whole, by < 0, rows)
            self.pinned |= {whole} if own == whole else set()


def _elementwise(axes: Axes, node: Node) -> None:
    out = node.outputs[0]
    for value in node.arrays:
        if len(axes.shape(value)) == len(axes.shape(out)):
            for i, (a, b) in enumerate(zip(axes.shape(value), axes.shape(out), strict=True)):
                if a == b and not is_unit(a):
                    axes.link((value, i), (out, i))


def _broadcast(axes: Axes, node: Node) -> None:
    out = node.outputs[0]
    for value in node.arrays[:1]:
        for i, target in enumerate(node.params[0]["broadcast_dimensions"]):
            if axes.shape(value)[i] == axes.shape(out)[target] and not is_unit(axes.shape(value)[i]):
                axes.link((value, i), (out, target))


def _transpose(axes: Axes, node: Node) -> None:
    for i, source in enumerate(node.params[0]["permutation"]):
        axes.link((node.arrays[0], source), (node.outputs[0], i))


def _reduce(axes: Axes, node: Node) -> None:
    value, out = node.arrays[0], node.outputs[0]
    gone = node.params[0]["axes"]
    kept = [i for i in range(len(axes.shape(value))) if i not in gone]
    for j, i in enumerate(kept):
        axes.link((value, i), (out, j))
    for i in gone:
        axes.reduce(value, i, node)
        if node.op in CHOICES:
            axes.pin(value, i)


def _dot(axes: Axes, node: Node) -> None:
    if len(node.arrays) != 2:
        raise NoFit("a matrix product with a constant")
    (lhs, rhs), out = node.arrays, node.outputs[0]
    (lc, rc), (lb, rb) = node.params[0]["dimension_numbers"]
    for a, b in zip(lc, rc, strict=True):
        axes.link((lhs, a), (rhs, b))
        axes.reduce(lhs, a, node)
    for j, (a, b) in enumerate(zip(lb, rb, strict=True)):
        axes.link((lhs, a), (rhs, b))
        axes.link((lhs, a), (out, j))
        axes.batch(lhs, a)
    place = len(lb)
    for value, taken in ((lhs, {*lc, *lb}), (rhs, {*rc, *rb})):
        for i in range(len(axes.shape(value))):
            if i not in taken:
                axes.link((value, i), (out, place))
                place += 1


def groups(a: Sequence[Size], b: Sequence[Size]) -> list[tuple[list[int], list[int]]]:
    """The parts of a reshape: dimensions of `a` and of `b` that hold the same elements, unit dimensions left out."""
    left = [i for i, s in enumerate(a) if not is_unit(s)]
    right = [i for i, s in enumerate(b) if not is_unit(s)]
    made = []
    while left and right:
        ls, rs = [left.pop(0)], [right.pop(0)]
        while (x := times(*(a[i] for i in ls))) != (y := times(*(b[i] for i in rs))):
            if all(p <= q for p, q in zip(x, y, strict=True)) and left:
                ls.append(left.pop(0))
            elif right:
                rs.append(right.pop(0))
            else:
                raise NoFit("a reshape whose parts differ between sizes")
        made.append((ls, rs))
    if left or right:
        raise NoFit("a reshape whose parts differ between sizes")
    return made


def splits(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Whether a reshape truly splits or joins dimensions, beyond those of size 1."""
    return any(len(left) != 1 or len(right) != 1 for left, right in groups(a, b))


def _reshape(axes: Axes, node: Node) -> None:
    value, out = node.arrays[0], node.outputs[0]
    for ls, rs in groups(axes.shape(value), axes.shape(out)):
        if len(ls) == 1 == len(rs):
            axes.link((value, ls[0]), (out, rs[0]))
        elif len(ls) == 1:
            _split(axes, (value, ls[0]), [(out, r) for r in rs])
        elif len(rs) == 1:
            _split(axes, (out, rs[0]), [(value, i) for i in ls])
        else:
            for place in [*((value, i) for i in ls), *((out, r) for r in rs)]:
                axes.pin(*place)


def _split(axes: Axes, whole: Place, parts: Sequence[Place]) -> None:
    inner = [axes.shape(v)[i] for v, i in parts[1:]]
    axes.link(whole, parts[0], times(*inner))
    for part in parts[1:]:
        axes.pin(*part)


def _iota(axes: Axes, node: Node) -> None:
    """Nothing is read; its values are made from the block's place."""


def _slice(axes: Axes, node: Node) -> None:
    value = node.arrays[0]
    for out in node.outputs:
        for i, (a, b) in enumerate(zip(axes.shape(value), axes.shape(out), strict=True)):
            if a == b:
                axes.link((value, i), (out, i))
            else:
                axes.pin(value, i)
                axes.pin(out, i)


def _shift(axes: Axes, node: Node) -> None:
    """What is shifted is held whole, unless the second operand brings the rows that a block lacks."""
    (value, *halo), out, at = node.arrays, node.outputs[0], node.params[0]["dimension"]
    for i in range(len(axes.shape(value))):
        axes.link((value, i), (out, i))
        if halo and i != at:
            axes.link((halo[0], i), (out, i))
    if halo:
        axes.beside((halo[0], at), (value, at), node.params[0]["by"])
    else:
        axes.pin(value, at)


def _roll(axes: Axes, node: Node) -> None:
    """What is rolled is held whole."""
    _elementwise(axes, node)
    axes.pin(node.outputs[0], node.params[0]["dimension"])


def _pad(axes: Axes, node: Node) -> None:
    """Zeros (or another constant) before and after; what is padded is held whole."""
    if len(node.arrays) != 1 or any(c[2] for p in node.params for c in p["padding_config"]):
        raise NoFit("padding between elements")
    _slice(axes, node)


def _concatenate(axes: Axes, node: Node) -> None:
    out, along = node.outputs[0], node.params[0]["dimension"]
    if len(node.arrays) != len(node.inputs):
        raise NoFit("a concatenation with a constant")
    for value in node.arrays:
        for i in range(len(axes.shape(value))):
            if i == along:
                axes.pin(value, i)
                axes.pin(out, i)
            else:
                axes.link((value, i), (out, i))


def _gather(axes: Axes, node: Node) -> None:
    """One element of each row, chosen by an index: what take_along_axis of one column is. Raises NoFit for others."""
    table, index = node.arrays
    out, along = node.outputs[0], picked(axes.graph, node)
    rows = [i for i in range(len(axes.shape(table))) if i != along]
    numbers = node.params[0]["dimension_numbers"]
    for i in rows:
        at = numbers.operand_batching_dims.index(i)
        axes.link((table, i), (index, numbers.start_indices_batching_dims[at]))
        axes.link((table, i), (out, numbers.start_indices_batching_dims[at]))
    axes.reduce(table, along, node)
    axes.pin(table, along)


def picked(graph: Graph, node: Node) -> int:
    """The dimension along which a gather picks one element; raises NoFit for any other gather."""
    numbers, sizes = node.params[0]["dimension_numbers"], node.params[0]["slice_sizes"]
    table = graph.values[node.arrays[0]]
    index = graph.values[node.arrays[1]]
    along = [i for i in range(len(table.shape)) if i not in numbers.operand_batching_dims]
    plain = (
        len(along) == 1 and set(sizes) == {1} and tuple(numbers.start_index_map) == tuple(along)
        and tuple(numbers.collapsed_slice_dims) == tuple(along) and not numbers.offset_dims
        and is_unit(index.shape[-1])
    )  # fmt: skip
    if not plain:
        raise NoFit(f"a gather from {[s[0] for s in table.shape]}")
    return along[0]


def _group(axes: Axes, node: Node) -> None:
    """Channels to groups or back. An axis of channels is one of groups, each several channels wide; what has one row of
    channels at a time is walked row by row."""
    value, out, at = node.arrays[0], node.outputs[0], node.params[0]["dimension"]
    channels, grouped = (value, out) if node.op == "group_reduce" else (out, value)
    width = over(axes.shape(channels)[at], axes.shape(grouped)[at])
    axes.link((channels, at), (grouped, at), width)
    for i in range(len(axes.shape(value))):
        if i != at:
            axes.link((value, i), (out, i))
            if not node.params[0]["rows"]:
                axes.batch(value, i)


RULES: dict[str, Callable[[Axes, Node], None]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys([*REDUCTIONS, *CHOICES], _reduce),
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "dot_general": _dot,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "iota": _iota,
    "slice": _slice,
    "split": _slice,
    "pad": _pad,
    "roll": _roll,
    "shift": _shift,
    "edge": _elementwise,
    "concatenate": _concatenate,
    "gather": _gather,
    "group_reduce": _group,
    "group_spread": _group,
}

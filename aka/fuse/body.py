"""The body of one kernel: the nodes of a graph as lines of Python over blocks.

A value in the body has slots, one for each dimension of its block: an axis, or None for a dimension of 1. Values stay
as narrow as they are (a row's mean is a column of one lane), and broadcasting does the rest; nothing is below two
dimensions, as the vector registers want it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from aka.fuse import phrases
from aka.fuse.axes import CHOICES, ELEMENTWISE, REDUCTIONS, Dim, groups, picked, splits
from aka.fuse.graph import LAYOUT, Literal, Node, Operand
from aka.fuse.plan import Plan
from aka.fuse.sizes import NoFit, Sizes, is_unit

Slots = tuple[Dim | None, ...]
PASSED = LAYOUT - {"reshape"}
"""Operations that need no line: a value keeps its slots, and whoever reads it looks axes up by name."""


@dataclass(frozen=True)
class Local:
    """A variable of the body. `dtype` is what it holds; `raw` names the block as it was loaded, in `raw_dtype`. No
    slots: a scalar."""

    name: str
    slots: Slots
    dtype: str
    raw: str = ""
    raw_dtype: str = ""


@dataclass
class Body:
    """Collects lines. `refs` names the references of inputs; `block_names` the variables that hold block lengths."""

    plan: Plan
    sizes: Sizes
    refs: dict[int, str]
    block_names: dict[int, str]
    lines: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    _locals: dict[int, Local] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._taken |= {*self.block_names.values(), *self.sizes.origins, "acc", "k"}

    # What others ask for

    def run(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._run(node)

    def part(self, node: Node) -> str:
        """The expression that a reduction gives for this block."""
        made = self._dot(node) if node.op == "dot_general" else self._reduced(node)
        return made[0]

    def accumulator(self, node: Node) -> Slots:
        """The slots of a reduction's result."""
        if node.op == "dot_general":
            return self._dot_operands(node)[2]
        value, gone = node.arrays[0], self._gone(node)
        local = self._holding(value, gone)
        return tuple(None if d is not None and d.axis in gone else d for d in local.slots)

    def bind(self, value: int, name: str, slots: Slots, dtype: str) -> None:
        self._locals[value] = Local(name, slots, dtype)

    def stored(self, value: int, ref: str, dims: Slots) -> None:
        """Lines that write a value to an output block of these dims."""
        local = self._local(value)
        dtype = self.plan.graph.values[value].dtype
        text = self._to(local, dims)
        if not local.slots:
            text = f"jnp.full({ref}.shape, {text})"
        if local.dtype == "bool":
            text = f"jnp.where({text}, 1, 0)"
        narrow = any(a is not None and b is None for a, b in zip(dims, self._aligned(local, dims), strict=True))
        if local.slots and narrow:
            text = f"jnp.broadcast_to({text}, {ref}.shape)"
        cast = "" if local.dtype == dtype else f".astype({ref}.dtype)"
        if local.dtype == "int32" and dtype in ("int8", "uint8"):
            cast = f".astype({ref}.dtype)"
        self._line(f"{ref}[...] = {f'({text})' if cast and not text.isidentifier() else text}{cast}")

    def length(self, dim: Dim | None) -> str:
        """Python for the length of a block along a dimension."""
        if dim is None:
            return "1"
        if dim.axis in self.block_names:
            name = self.block_names[dim.axis]
            self.used.add(name)
            return name if is_unit(dim.factor) else f"{name} * {self._size(dim.factor)}"
        return self._size(self.plan.axes.whole(dim))

    # Values

    def _line(self, text: str) -> None:
        self.lines.append(text)

    def _size(self, size: tuple[int, ...]) -> str:
        text = self.sizes.expression(size)
        self.used |= set(re.findall(r"[A-Za-z_]\w*", text))
        return text

    def _number(self, literal: Literal, dtype: str) -> str:
        text = self.sizes.number(literal.values, dtype)
        self.used |= set(re.findall(r"[A-Za-z_]\w*", text)) - {"jnp", "inf", "nan", "float", "True", "False"}
        return f"({text})" if text.startswith("-") or " " in text else text

    def _name(self, base: str) -> str:
        made, n = base, 1
        while made in self._taken:
            n += 1
            made = f"{base}{n}"
        self._taken.add(made)
        return made

    def _let(self, node: Node, text: str, slots: Slots, dtype: str, base: str | None = None) -> Local:
        name = self._name(base or _NAMES.get(node.op, node.op.removeprefix("reduce_")))
        self._line(f"{name} = {text}")
        made = Local(name, slots, dtype)
        self._locals[node.outputs[0]] = made
        return made

    def _local(self, value: int) -> Local:
        if value not in self._locals:
            self._load(value)
        return self._locals[value]

    def _load(self, value: int) -> None:
        dtype, ref = self.plan.graph.values[value].dtype, self.refs[value]
        dims = self.dims(value)
        name = self._name(ref.removesuffix("_ref"))
        if not dims:
            self._line(f"{name} = {ref}[0]")
            self._locals[value] = Local(name, (), phrases.working(dtype))
            return
        slots = padded(self, value)
        if dtype == "bool":
            self._line(f"{name} = {ref}[...].astype(jnp.int32) != 0")
            self._locals[value] = Local(name, slots, "bool")
        else:
            self._line(f"{name} = {ref}[...]")
            self._locals[value] = Local(name, slots, dtype, name, dtype)

    def dims(self, value: int) -> list[Dim]:
        """The dims of the block of a value, squeezed axes left out."""
        return [d for d in self.plan.axes.layout(value) if d.axis not in self.plan.squeezed]

    def _computing(self, value: int) -> Local:
        """A value in the dtype that is computed with; a narrower one is widened once, in a line of its own."""
        local = self._local(value)
        wide = phrases.working(local.dtype)
        if local.dtype == wide or local.dtype == "bool":
            return local
        name = self._name(f"{local.name}_{'f32' if wide == 'float32' else wide}")
        self._line(f"{name} = {local.name}.astype(jnp.{wide})")
        made = Local(name, local.slots, wide, local.raw, local.raw_dtype)
        self._locals[value] = made
        return made

    # Shapes

    def _aligned(self, local: Local, target: Slots) -> Slots:
        """The target with None where the local has no such axis."""
        own = {d.axis for d in local.slots if d is not None}
        return tuple(d if d is not None and d.axis in own else None for d in target)

    def _to(self, local: Local, target: Slots) -> str:
        """The local so that it broadcasts to `target`."""
        if not local.slots or _broadcasts(local.slots, target):
            return local.name
        if local.dtype == "bool":  # the compiler moves numbers between lanes and rows, but no masks
            return f"({self._to(Local(f'jnp.where({local.name}, 1, 0)', local.slots, 'int32'), target)} != 0)"
        own = [d for d in local.slots if d is not None]
        order = [d.axis for d in target if d is not None and d.axis in {o.axis for o in own}]
        if len(order) != len(own):
            raise NoFit("a value is stored or used without one of its dimensions")
        text, axes = local.name, [d.axis for d in own]
        if axes != order:
            if len(own) != len(local.slots):
                text = f"{text}.reshape({self._lengths(own)})"
            permutation = tuple(axes.index(a) for a in order)
            text = f"{text}.T" if permutation == (1, 0) else f"jnp.transpose({text}, {permutation})"
        shaped = self._aligned(local, target)
        first = next((i for i, d in enumerate(shaped) if d is not None), 0)
        shaped = shaped[min(first, max(0, len(shaped) - 2)) :]
        if axes != order and len(shaped) == len(order):
            return text
        return f"{text}.reshape({self._lengths(shaped)})"

    def _lengths(self, slots: Sequence[Dim | None]) -> str:
        return ", ".join(map(self.length, slots))

    def _target(self, node: Node, locals_: Sequence[Local]) -> Slots:
        """The slots of an elementwise result: the operands' own where they agree from the right, else the result's."""
        merged = _merge([o.slots for o in locals_ if o.slots])
        if merged is not None:
            return merged
        own = {d.axis for o in locals_ for d in o.slots if d is not None}
        dims: list[Dim | None] = [d for d in self.dims(node.outputs[0]) if d.axis in own]
        return self._padded(dims)

    def _padded(self, dims: Sequence[Dim | None]) -> Slots:
        if len(dims) >= 2:
            return tuple(dims)
        if not dims:
            return (None, None)
        only = dims[0]
        return (
            (None, only) if only is None or self.plan.axes.along_lanes(only.axis, self.plan.squeezed) else (only, None)
        )

    def _holding(self, value: int, wanted: Sequence[int]) -> Local:
        """The value with these axes really in its slots: broadcast where it was narrower."""
        local = self._computing(value)
        have = {d.axis for d in local.slots if d is not None}
        if set(wanted) <= have:
            return local
        dims = self._padded(list(self.dims(value)))
        name = self._name(f"{local.name}_wide")
        self._line(f"{name} = jnp.broadcast_to({self._to(local, dims)}, ({self._lengths(dims)}))")
        made = Local(name, dims, local.dtype)
        self._locals[value] = made
        return made

    # Operations

    def _run(self, node: Node) -> None:
        if node.outputs[0] in self._locals:
            return
        if node.op in PASSED or (node.op == "reshape" and self._is_plain(node)):
            self._locals[node.outputs[0]] = self._local(node.arrays[0])
        elif node.op == "convert_element_type":
            self._convert(node)
        elif node.op in ELEMENTWISE:
            self._elementwise(node)
        elif node.op in REDUCTIONS:
            text, slots, dtype = self._reduced(node)
            self._let(node, text, slots, dtype)
        elif node.op == "dot_general":
            text, slots, dtype = self._dot(node)
            self._let(node, text, slots, dtype, "product")
        else:
            getattr(self, f"_{node.op if node.op not in CHOICES else 'choice'}")(node)

    def _is_plain(self, node: Node) -> bool:
        return not splits(self.plan.axes.shape(node.arrays[0]), self.plan.axes.shape(node.outputs[0]))

    def _convert(self, node: Node) -> None:
        before, after = (self.plan.graph.values[v].dtype for v in (node.arrays[0], node.outputs[0]))
        local = self._computing(node.arrays[0])
        text = phrases.converted(local.name, before, after)
        if text == local.name:
            self._locals[node.outputs[0]] = local
        else:
            self._let(node, text, local.slots, phrases.working(after), f"{local.name}_{_short(after)}")

    def _elementwise(self, node: Node) -> None:
        graph = self.plan.graph
        locals_ = {i: self._computing(i) for i in node.arrays}
        target = self._target(node, list(locals_.values()))
        dtypes = [graph.values[i].dtype if isinstance(i, int) else i.dtype for i in node.inputs]
        operands = [self._to(locals_[i], target) if isinstance(i, int) else self._scalar(i) for i in node.inputs]
        text = phrases.phrase(node.op, operands, node.params[0], dtypes)
        self._let(node, text, target, phrases.working(graph.values[node.outputs[0]].dtype))

    def _scalar(self, operand: Operand) -> str:
        assert isinstance(operand, Literal)
        return self._number(operand, operand.dtype)

    def _gone(self, node: Node) -> list[int]:
        dims = self.plan.axes.dims(node.arrays[0])
        axes = [d.axis for i in node.params[0]["axes"] if (d := dims[i]) is not None]
        return list(dict.fromkeys(self.plan.axes.merged(a) for a in axes))

    def _reduced(self, node: Node) -> tuple[str, Slots, str]:
        gone = self._gone(node)
        local = self._holding(node.arrays[0], gone)
        slots: Slots = tuple(None if d is not None and d.axis in gone else d for d in local.slots)
        if not gone:
            return local.name, local.slots, local.dtype
        places = tuple(i for i, d in enumerate(local.slots) if d is not None and d.axis in gone)
        name, dtype = local.name, local.dtype
        if dtype == "bool":
            name, dtype = f"jnp.where({name}, 1, 0)", "int32"
        at = str(places[0]) if len(places) == 1 else str(places)
        text = f"jnp.{REDUCTIONS[node.op]}({name}, axis={at}, keepdims=True)"
        if node.op in ("reduce_and", "reduce_or"):
            return f"{text} != 0", slots, "bool"
        return text, slots, dtype

    def _choice(self, node: Node) -> None:
        """argmax and argmin by a comparison and the smallest index: the compiler's own give no columns."""
        gone = self._gone(node)
        local = self._holding(node.arrays[0], gone)
        at = next(i for i, d in enumerate(local.slots) if d is not None and d.axis in gone)
        slots: Slots = tuple(None if i == at else d for i, d in enumerate(local.slots))
        extreme = "max" if node.op == "argmax" else "min"
        top = self._name("top")
        self._line(f"{top} = jnp.{extreme}({local.name}, axis={at}, keepdims=True)")
        index = f"lax.broadcasted_iota(jnp.int32, {local.name}.shape, {at})"
        found = self._name("found")
        # A NaN counts as the extreme, the first one wins.
        odd, odd_row = self._name("odd"), self._name("odd_row")
        self._line(f"{odd} = jnp.where({local.name} != {local.name}, 1, 0)")
        self._line(f"{odd_row} = jnp.max({odd}, axis={at}, keepdims=True)")
        self._line(f"{found} = jnp.where({odd_row} == 1, {odd}, jnp.where({local.name} == {top}, 1, 0))")
        where = f"jnp.where({found} == 1, {index}, {self.length(local.slots[at])})"
        self._let(node, f"jnp.min({where}, axis={at}, keepdims=True)", slots, "int32", "index")

    def _iota(self, node: Node) -> None:
        dim = self.plan.axes.dims(node.outputs[0])[node.params[0]["dimension"]]
        dtype = phrases.working(self.plan.graph.values[node.outputs[0]].dtype)
        if dim is None:
            self._locals[node.outputs[0]] = Local("0", (), dtype)
            return
        slots = self._padded([dim])
        at = slots.index(dim)
        text = f"lax.broadcasted_iota(jnp.int32, ({self._lengths(slots)}), {at})"
        if dim.axis in self.plan.grid:
            step = self.length(dim) if dim.axis in self.block_names else self._size(dim.factor)
            text = f"pl.program_id({self.plan.grid.index(dim.axis)}) * {step} + {text}"
        if dim.axis in self.plan.squeezed:
            raise NoFit("an index along a batch axis")
        if dtype == "float32":
            text = f"({text}).astype(jnp.float32)"
        self._let(node, text, slots, dtype, "index")

    def _gather(self, node: Node) -> None:
        """One element of each row by a comparison with its index, and a sum: lanes cannot be addressed one by one."""
        table, chosen = node.arrays
        dim = self.plan.axes.dims(table)[picked(self.plan.graph, node)]
        assert dim is not None
        local, index = self._holding(table, [dim.axis]), self._computing(chosen)
        at = next(i for i, d in enumerate(local.slots) if d is not None and d.axis == dim.axis)
        target: Slots = tuple(None if i == at else d for i, d in enumerate(local.slots))
        lanes = f"lax.broadcasted_iota(jnp.int32, {local.name}.shape, {at})"
        place = self._to(index, target)
        if "CLIP" in str(node.params[0]["mode"]).upper():
            place = f"jnp.clip({place}, 0, {self.length(local.slots[at])} - 1)"
        where = f"jnp.where({lanes} == {place}, {local.name}, 0)"
        made = self._let(node, f"jnp.sum({where}, axis={at}, keepdims=True)", target, local.dtype, "picked")
        if "FILL" in str(node.params[0]["mode"]).upper() and local.dtype == "float32":
            number = self._to(index, target)
            inside = f"({number} >= 0) & ({number} < {self.length(local.slots[at])})"
            self._let(node, f"jnp.where({inside}, {made.name}, jnp.nan)", target, local.dtype, "picked")

    def _reshape(self, node: Node) -> None:
        value, out = node.arrays[0], node.outputs[0]
        if any(d is not None and d.axis in self.plan.squeezed for v in (value, out) for d in self._split_dims(node, v)):
            raise NoFit("a reshape of a batch axis")
        local = self._computing(value)
        own = {d.axis for d in local.slots if d is not None}
        split = {d.axis for d in self._split_dims(node, value) if d is not None}
        if split & own:
            local = self._holding(value, sorted({d.axis for d in self.dims(value)}))
            slots = self._padded(list(self.dims(out)))
            source = self._to(local, self._padded(list(self.dims(value))))
            self._let(node, f"{source}.reshape({self._lengths(slots)})", slots, local.dtype)
        else:
            self._locals[out] = local

    def _split_dims(self, node: Node, value: int) -> list[Dim | None]:
        side = 0 if value == node.arrays[0] else 1
        shapes = self.plan.axes.shape(node.arrays[0]), self.plan.axes.shape(node.outputs[0])
        parts = [pair[side] for pair in groups(*shapes) if len(pair[0]) != 1 or len(pair[1]) != 1]
        return [self.plan.axes.dims(value)[i] for part in parts for i in part]

    def _slice(self, node: Node) -> None:
        starts, limits = ([p[k] for p in node.params] for k in ("start_indices", "limit_indices"))
        if any(s is not None and set(s) != {1} for s in (p["strides"] for p in node.params)):
            raise NoFit("a slice with strides")
        self._cut(node, node.outputs[0], starts, limits)

    def _pad(self, node: Node) -> None:
        value, out = node.arrays[0], node.outputs[0]
        configs = [p["padding_config"] for p in node.params]
        places = [i for i in range(len(configs[0])) if any(c[i][:2] != (0, 0) for c in configs)]
        constant = node.inputs[1]
        if len(places) != 1 or any(min(c[places[0]][:2]) < 0 for c in configs) or isinstance(constant, int):
            raise NoFit("padding of more than one dimension, or by less than nothing")
        dim, new = self.plan.axes.dims(value)[places[0]], self.plan.axes.dims(out)[places[0]]
        if dim is None or new is None:
            raise NoFit("padding of a dimension of one")
        local = self._holding(value, sorted({d.axis for d in self.dims(value)}))
        at = next(i for i, d in enumerate(local.slots) if d is not None and d.axis == dim.axis)
        parts = [local.name]
        for side in (0, 1):
            width = tuple(c[places[0]][side] for c in configs)
            if set(width) != {0}:
                lengths = [self._size(width) if i == at else self.length(d) for i, d in enumerate(local.slots)]
                kind = f"jnp.{local.dtype}"
                filler = f"jnp.full(({', '.join(lengths)}), {self._number(constant, constant.dtype)}, {kind})"
                parts.insert(0 if side == 0 else len(parts), filler)
        slots = tuple(new if i == at else d for i, d in enumerate(local.slots))
        self._let(node, f"jnp.concatenate([{', '.join(parts)}], axis={at})", slots, local.dtype, "padded")

    def _split(self, node: Node) -> None:
        axis = node.params[0]["axis"]
        rank = len(self.plan.axes.shape(node.arrays[0]))
        start = [0] * len(node.params)
        for which, out in enumerate(node.outputs):
            stop = [s + p["sizes"][which] for s, p in zip(start, node.params, strict=True)]
            starts = [[start[c] if i == axis else 0 for i in range(rank)] for c in range(len(start))]
            shape = self.plan.axes.shape(node.arrays[0])
            limits = [[stop[c] if i == axis else shape[i][c] for i in range(rank)] for c in range(len(start))]
            self._cut(node, out, starts, limits)
            start = stop

    def _cut(self, node: Node, out: int, starts: Sequence[Sequence[int]], limits: Sequence[Sequence[int]]) -> None:
        value = node.arrays[0]
        shape, new = self.plan.axes.shape(value), self.plan.axes.shape(out)
        changed = [i for i in range(len(shape)) if shape[i] != new[i]]
        dims = [self.plan.axes.dims(value)[i] for i in changed]
        local = self._holding(value, [d.axis for d in dims if d is not None])
        slots = list(local.slots)
        index = [":"] * len(slots)
        for i, dim in zip(changed, dims, strict=True):
            at = next(j for j, d in enumerate(local.slots) if d is not None and dim is not None and d.axis == dim.axis)
            low, high = (tuple(x[i] for x in side) for side in (starts, limits))
            index[at] = f"{self._bound(low)}:{'' if high == shape[i] else self._size(high)}"
            slots[at] = self.plan.axes.dims(out)[i]
        name = self._name("part")
        self._line(f"{name} = {local.name}[{', '.join(index)}]")
        self._locals[out] = Local(name, tuple(slots), local.dtype)

    def _bound(self, size: tuple[int, ...]) -> str:
        return "" if set(size) == {0} else self._size(size)

    def _concatenate(self, node: Node) -> None:
        out, along = node.outputs[0], node.params[0]["dimension"]
        dims = self._padded(list(self.dims(out)))
        target = self.plan.axes.dims(out)[along]
        at = next(i for i, d in enumerate(dims) if d is not None and target is not None and d.axis == target.axis)
        parts = []
        for value in node.arrays:
            local = self._holding(value, [d.axis for d in self.dims(value)])
            own = self.plan.axes.dims(value)[along]
            parts.append(self._to(local, tuple(own if i == at else d for i, d in enumerate(dims))))
        dtype = phrases.working(self.plan.graph.values[out].dtype)
        self._let(node, f"jnp.concatenate([{', '.join(parts)}], axis={at})", dims, dtype, "joined")

    # Matrix products

    def _dot(self, node: Node) -> tuple[str, Slots, str]:
        (left, lslots), (right, rslots), out, contract = self._dot_operands(node)
        places = [[i for i, d in enumerate(s) if d is not None and d.axis in contract] for s in (lslots, rslots)]
        numbers = f"((({places[0][0]},), ({places[1][0]},)), ((), ()))"
        whole = "int" in self.plan.graph.values[node.arrays[0]].dtype
        kind = "int32" if whole else "float32"
        precise = node.params[0].get("precision")
        extra = ", precision=lax.Precision.HIGHEST" if precise is not None and "HIGHEST" in str(precise) else ""
        text = f"lax.dot_general({left}, {right}, {numbers}, preferred_element_type=jnp.{kind}{extra})"
        if len(out) > 2:
            text = f"{text}.reshape({self._lengths(out)})"
        return text, out, kind

    def _dot_operands(self, node: Node) -> tuple[tuple[str, Slots], tuple[str, Slots], Slots, set[int]]:
        (lc, _), (lb, _) = node.params[0]["dimension_numbers"]
        axes = self.plan.axes
        contract = {axes.merged(d.axis) for i in lc if (d := axes.dims(node.arrays[0])[i]) is not None}
        if len(contract) != 1:
            raise NoFit(f"a matrix product over {len(contract)} dimensions at once")
        batch = {axes.merged(d.axis) for i in lb if (d := axes.dims(node.arrays[0])[i]) is not None}
        if not batch <= set(self.plan.squeezed):
            raise NoFit("a batched matrix product whose batch is held whole")
        sides = [self._side(v, contract) for v in node.arrays]
        free = [[d for d in slots if d is None or d.axis not in contract] for _, slots, _ in sides]
        merged = [outer or inner for inner, (_, _, outer) in zip(free, sides, strict=True)]
        return sides[0][:2], sides[1][:2], (*merged[0], *merged[1]), contract

    def _side(self, value: int, contract: set[int]) -> tuple[str, Slots, list[Dim | None]]:
        """A matrix operand as two dimensions, in the dtype that the op multiplies; and the dimensions that were folded
        into its rows, if there were several."""
        dtype = self.plan.graph.values[value].dtype
        local = self._local(value)
        if not contract <= {d.axis for d in local.slots if d is not None}:
            local = self._holding(value, sorted(contract))
        slots = local.slots
        text = local.raw if local.raw_dtype == dtype else local.name
        if local.dtype != dtype != local.raw_dtype:
            text = f"{local.name}.astype(jnp.{dtype})"
        folded: list[Dim | None] = []
        if len(slots) != 2:
            own: list[Dim | None] = [d for d in slots if d is not None]
            if len(own) > 2:
                return self._folded(text, own, contract)
            slots = self._padded(own)
            text = f"{text}.reshape({self._lengths(slots)})"
        return text, slots, folded

    def _folded(self, text: str, own: list[Dim | None], contract: set[int]) -> tuple[str, Slots, list[Dim | None]]:
        """An operand of more dimensions: all but the contracted one, which must be the last, become rows."""
        *rows, last = own
        if last is None or last.axis not in contract:
            raise NoFit("a matrix product of blocks of three dimensions, not over the last")
        count = " * ".join(f"({t})" if " " in t else t for t in map(self.length, rows))
        return f"{text}.reshape({count}, {self.length(last)})", (rows[0], last), rows


_NAMES = {
    "add": "total", "add_any": "total", "sub": "difference", "mul": "product", "div": "quotient", "square": "squared",
    "integer_pow": "power", "max": "larger", "min": "smaller", "reduce_max": "top", "reduce_min": "least",
    "reduce_sum": "summed", "logistic": "sigmoid", "select_n": "chosen", "neg": "negated", "and": "both",
    "or": "either", "not": "inverse", "eq": "equal", "ne": "unequal", "lt": "below", "le": "at_most", "gt": "above",
    "ge": "at_least", "exp": "exponential", "log": "logarithm", "rsqrt": "inverse_root", "sqrt": "root",
    "reshape": "reshaped", "clamp": "clamped", "abs": "size", "pow": "power", "is_finite": "finite",
}  # fmt: skip


def _short(dtype: str) -> str:
    return {"float32": "f32", "bfloat16": "bf16", "int32": "i32", "bool": "mask"}.get(dtype, dtype)


def padded(body: Body, value: int) -> Slots:
    """The slots of an input or output block as it lies in VMEM: two dimensions at least."""
    return body._padded(list(body.dims(value)))


def _broadcasts(own: Slots, target: Slots) -> bool:
    """Whether NumPy's rules broadcast `own` to `target`, axis by axis."""
    if len(own) > len(target):
        return False
    return all(a is None or (b is not None and a.axis == b.axis) for a, b in zip(own[::-1], target[::-1], strict=False))


def _merge(slots: Sequence[Slots]) -> Slots | None:
    """The slots that all of these broadcast to from the right, or None if they disagree."""
    if not slots:
        return ()
    made: list[Dim | None] = [None] * max(map(len, slots))
    for own in slots:
        for i, d in enumerate(reversed(own), 1):
            have = made[-i]
            if d is not None and have is not None and d.axis != have.axis:
                return None
            made[-i] = have or d
    axes = [d.axis for d in made if d is not None]
    return tuple(made) if len(set(axes)) == len(axes) else None

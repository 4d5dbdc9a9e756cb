"""The body of one kernel: the nodes of a graph as lines of Python over blocks.

A value in the body has slots, one for each dimension of its block: an axis, or None for a dimension of 1. Values stay
as narrow as they are (a row's mean is a column of one lane), and broadcasting does the rest; nothing is below two
dimensions, as the vector registers want it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aka.fuse import beside, grouped, lookups, phrases, rolls, shapes
from aka.fuse.axes import CHOICES, ELEMENTWISE, REDUCTIONS, Dim, splits
from aka.fuse.graph import LAYOUT, Literal, Node, Operand
from aka.fuse.local import Local, Slots
from aka.fuse.plan import Plan
from aka.fuse.products import dot, dot_operands
from aka.fuse.sizes import NoFit, Sizes, is_unit

PASSED = LAYOUT - {"reshape"}
"""Operations that need no line: a value keeps its slots, and whoever reads it looks axes up by name."""
ON_VECTORS = frozenset({"pow", "cbrt"})
"""Operations spelled by a power, which libtpu compiles on vectors only: "failed to legalize math.powf" on scalars."""


@dataclass
class Body:
    """Collects lines. `refs` names the references of inputs; `block_names` the variables that hold block lengths."""

    plan: Plan
    sizes: Sizes
    refs: dict[int, str]
    block_names: dict[int, str]
    lines: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    locals: dict[int, Local] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._taken |= {*self.block_names.values(), *self.sizes.origins, "acc", "k"}

    # What others ask for

    def run(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._run(node)

    def part(self, node: Node) -> str:
        """The expression that a reduction gives for this block."""
        made = dot(self, node) if node.op == "dot_general" else self._reduced(node)
        return made[0]

    def accumulator(self, node: Node) -> Slots:
        """The slots of a reduction's result."""
        if node.op == "dot_general":
            return dot_operands(self, node)[2]
        value, gone = node.arrays[0], self.gone(node)
        local = self.holding(value, gone)
        return tuple(None if d is not None and d.axis in gone else d for d in local.slots)

    def bind(self, value: int, name: str, slots: Slots, dtype: str) -> None:
        self.locals[value] = Local(name, slots, dtype)

    def stored(self, value: int, ref: str, dims: Slots) -> None:
        """Lines that write a value to an output block of these dims."""
        local = self.local(value)
        dtype = self.plan.graph.values[value].dtype
        text = self.to(local, dims)
        if not local.slots:
            text = f"jnp.full({ref}.shape, {text})"
        if local.dtype == "bool":
            text = f"jnp.where({text}, 1, 0)"
        narrow = any(a is not None and b is None for a, b in zip(dims, self.aligned(local, dims), strict=True))
        if local.slots and narrow:
            text = f"jnp.broadcast_to({text}, {ref}.shape)"
        cast = "" if local.dtype == dtype else f".astype({ref}.dtype)"
        if local.dtype == "int32" and dtype in ("int8", "uint8"):
            cast = f".astype({ref}.dtype)"
        self.line(f"{ref}[...] = {f'({text})' if cast and not text.isidentifier() else text}{cast}")

    def length(self, dim: Dim | None) -> str:
        """Python for the length of a block along a dimension."""
        if dim is None:
            return "1"
        if dim.axis in self.block_names:
            name = self.block_names[dim.axis]
            self.used.add(name)
            return name if is_unit(dim.factor) else f"{name} * {self.size(dim.factor)}"
        return self.size(self.plan.axes.whole(dim))

    # Values

    def line(self, text: str) -> None:
        self.lines.append(text)

    def size(self, size: tuple[int, ...]) -> str:
        text = self.sizes.expression(size)
        self.used |= set(re.findall(r"[A-Za-z_]\w*", text))
        return text

    def number(self, literal: Literal, dtype: str) -> str:
        text = self.sizes.number(literal.values, dtype)
        self.used |= set(re.findall(r"[A-Za-z_]\w*", text)) - {"jnp", "inf", "nan", "float", "True", "False"}
        return f"({text})" if text.startswith("-") or " " in text else text

    def name(self, base: str) -> str:
        made, n = base, 1
        while made in self._taken:
            n += 1
            made = f"{base}{n}"
        self._taken.add(made)
        return made

    def let(self, node: Node, text: str, slots: Slots, dtype: str, base: str | None = None) -> Local:
        name = self.name(base or _NAMES.get(node.op, node.op.removeprefix("reduce_")))
        self.line(f"{name} = {text}")
        made = Local(name, slots, dtype)
        self.locals[node.outputs[0]] = made
        return made

    def local(self, value: int) -> Local:
        if value not in self.locals:
            self._load(value)
        return self.locals[value]

    def _load(self, value: int) -> None:
        dtype, ref = self.plan.graph.values[value].dtype, self.refs[value]
        dims = self.dims(value)
        name = self.name(ref.removesuffix("_ref"))
        if not dims:
            self.line(f"{name} = {ref}[0]")
            self.locals[value] = Local(name, (), phrases.working(dtype))
            return
        slots = padded(self, value)
        if dtype == "bool":
            self.line(f"{name} = {ref}[...].astype(jnp.int32) != 0")
            self.locals[value] = Local(name, slots, "bool")
        else:
            self.line(f"{name} = {ref}[...]")
            self.locals[value] = Local(name, slots, dtype, name, dtype)

    def dims(self, value: int) -> list[Dim]:
        """The dims of the block of a value, squeezed axes left out."""
        return [d for d in self.plan.axes.layout(value) if d.axis not in self.plan.squeezed]

    def computing(self, value: int) -> Local:
        """A value in the dtype that is computed with; a narrower one is widened once, in a line of its own."""
        local = self.local(value)
        wide = phrases.working(local.dtype)
        if local.dtype == wide or local.dtype == "bool":
            return local
        name = self.name(f"{local.name}_{'f32' if wide == 'float32' else wide}")
        self.line(f"{name} = {local.name}.astype(jnp.{wide})")
        made = Local(name, local.slots, wide, local.raw, local.raw_dtype)
        self.locals[value] = made
        return made

    # Shapes

    def aligned(self, local: Local, target: Slots) -> Slots:
        """The target with None where the local has no such axis."""
        own = {d.axis for d in local.slots if d is not None}
        return tuple(d if d is not None and d.axis in own else None for d in target)

    def to(self, local: Local, target: Slots) -> str:
        """The local so that it broadcasts to `target`."""
        if not local.slots or _broadcasts(local.slots, target):
            return local.name
        if local.dtype == "bool":  # the compiler moves numbers between lanes and rows, but no masks
            return f"({self.to(Local(f'jnp.where({local.name}, 1, 0)', local.slots, 'int32'), target)} != 0)"
        own = [d for d in local.slots if d is not None]
        order = [d.axis for d in target if d is not None and d.axis in {o.axis for o in own}]
        if len(order) != len(own):
            raise NoFit("a value is stored or used without one of its dimensions")
        text, axes = local.name, [d.axis for d in own]
        if axes != order:
            if len(own) != len(local.slots):
                text = f"{text}.reshape({self.lengths(own)})"
            permutation = tuple(axes.index(a) for a in order)
            text = f"{text}.T" if permutation == (1, 0) else f"jnp.transpose({text}, {permutation})"
        shaped = self.aligned(local, target)
        first = next((i for i, d in enumerate(shaped) if d is not None), 0)
        shaped = shaped[min(first, max(0, len(shaped) - 2)) :]
        if axes != order and len(shaped) == len(order):
            return text
        return f"{text}.reshape({self.lengths(shaped)})"

    def lengths(self, slots: Sequence[Dim | None]) -> str:
        return ", ".join(map(self.length, slots))

    def _target(self, node: Node, locals_: Sequence[Local]) -> Slots:
        """The slots of an elementwise result: the operands' own where they agree from the right, else the result's."""
        merged = _merge([o.slots for o in locals_ if o.slots])
        if merged is not None:
            return merged
        own = {d.axis for o in locals_ for d in o.slots if d is not None}
        dims: list[Dim | None] = [d for d in self.dims(node.outputs[0]) if d.axis in own]
        return self.padded(dims)

    def padded(self, dims: Sequence[Dim | None]) -> Slots:
        if len(dims) >= 2:
            return tuple(dims)
        if not dims:
            return (None, None)
        only = dims[0]
        return (
            (None, only) if only is None or self.plan.axes.along_lanes(only.axis, self.plan.squeezed) else (only, None)
        )

    def holding(self, value: int, wanted: Sequence[int]) -> Local:
        """The value with these axes really in its slots: broadcast where it was narrower."""
        local = self.computing(value)
        have = {d.axis for d in local.slots if d is not None}
        if set(wanted) <= have:
            return local
        dims = self.padded(list(self.dims(value)))
        name = self.name(f"{local.name}_wide")
        self.line(f"{name} = jnp.broadcast_to({self.to(local, dims)}, ({self.lengths(dims)}))")
        made = Local(name, dims, local.dtype)
        self.locals[value] = made
        return made

    # Operations

    def _run(self, node: Node) -> None:
        if node.outputs[0] in self.locals:
            return
        if node.op in PASSED or (node.op == "reshape" and self._is_plain(node)):
            self.locals[node.outputs[0]] = self.local(node.arrays[0])
        elif node.op == "convert_element_type":
            self._convert(node)
        elif node.op in ELEMENTWISE:
            self._elementwise(node)
        elif node.op in REDUCTIONS:
            text, slots, dtype = self._reduced(node)
            self.let(node, text, slots, dtype)
        elif node.op == "dot_general":
            text, slots, dtype = dot(self, node)
            self.let(node, text, slots, dtype, "product")
        else:
            SPECIAL[node.op](self, node)

    def _is_plain(self, node: Node) -> bool:
        return not splits(self.plan.axes.shape(node.arrays[0]), self.plan.axes.shape(node.outputs[0]))

    def _convert(self, node: Node) -> None:
        before, after = (self.plan.graph.values[v].dtype for v in (node.arrays[0], node.outputs[0]))
        local = self.computing(node.arrays[0])
        text = phrases.converted(local.name, before, after)
        if text == local.name:
            self.locals[node.outputs[0]] = local
        else:
            self.let(node, text, local.slots, phrases.working(after), f"{local.name}_{_short(after)}")

    def _elementwise(self, node: Node) -> None:
        graph = self.plan.graph
        locals_ = {i: self.computing(i) for i in node.arrays}
        target = self._target(node, list(locals_.values()))
        dtypes = [graph.values[i].dtype if isinstance(i, int) else i.dtype for i in node.inputs]
        operands = [self.to(locals_[i], target) if isinstance(i, int) else self.scalar(i) for i in node.inputs]
        alone = node.op in ON_VECTORS and not target
        if alone:
            operands[0] = f"jnp.full((1, 1), {operands[0]})"
        text = phrases.phrase(node.op, operands, node.params[0], dtypes)
        if alone:
            text = f"({text})[0, 0]"
        if node.op == "div" and "float" in dtypes[1] and self._is_narrow(node.inputs[1], target):
            # One division for each row and a product for each element: dividing takes ten operations.
            text = f"{operands[0]} * (1.0 / {operands[1]})"
        self.let(node, text, target, phrases.working(graph.values[node.outputs[0]].dtype))

    def _is_narrow(self, operand: Operand, target: Slots) -> bool:
        """Whether an operand has fewer elements than the result, which has two dimensions at least."""
        wide = [d for d in target if d is not None]
        own = () if isinstance(operand, Literal) else self.local(operand).slots
        return len(wide) >= 2 and len([d for d in own if d is not None]) < len(wide)

    def scalar(self, operand: Operand) -> str:
        assert isinstance(operand, Literal)
        return self.number(operand, operand.dtype)

    def gone(self, node: Node) -> list[int]:
        dims = self.plan.axes.dims(node.arrays[0])
        axes = [d.axis for i in node.params[0]["axes"] if (d := dims[i]) is not None]
        return list(dict.fromkeys(self.plan.axes.merged(a) for a in axes))

    def _reduced(self, node: Node) -> tuple[str, Slots, str]:
        gone = self.gone(node)
        local = self.holding(node.arrays[0], gone)
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


SPECIAL: dict[str, Callable[[Body, Node], None]] = {
    **dict.fromkeys(CHOICES, lookups.choice),
    "iota": lookups.iota,
    "gather": lookups.gather,
    "reshape": shapes.reshape,
    "slice": shapes.slices,
    "pad": shapes.pad,
    "roll": rolls.roll,
    "shift": beside.shift,
    "edge": beside.edge,
    "split": shapes.split,
    "concatenate": shapes.concatenate,
    "group_reduce": grouped.reduce,
    "group_spread": grouped.spread,
}
"""Operations that are more than a phrase, by the function that writes their lines."""

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
    return body.padded(list(body.dims(value)))


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

"""Arrays at a kernel's two ends: how each is handed over, which block a step sees, and how outputs come back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aka.fuse.axes import Dim
from aka.fuse.body import Body, padded
from aka.fuse.joined import Joined, always_fits, joined
from aka.fuse.local import Slots
from aka.fuse.plan import Plan
from aka.fuse.sizes import NoFit, Size, Sizes, is_unit, times


@dataclass(frozen=True)
class End:
    """An input or output of a kernel: `entries` are the dimensions of the array that it is handed as, squeezed ones
    first (`squeezed` of them), two more at least."""

    value: int
    entries: Slots
    squeezed: int
    order: tuple[int, ...]
    scalar: bool
    joined: Joined | None = None


@dataclass(frozen=True)
class Ends:
    """Writes the ends of one plan's kernel. `blocks` are the names of block lengths by axis, `edges` those of halos."""

    plan: Plan
    sizes: Sizes
    body: Body
    blocks: Mapping[int, str]
    edges: Mapping[int, str]

    def of(self, value: int) -> End:
        layout = self.plan.axes.layout(value)
        squeezed = [d for d in layout if d.axis in self.plan.squeezed]
        if any(not is_unit(d.factor) for d in squeezed):
            raise NoFit("a batch axis that is part of a larger dimension")
        rest = padded(self.body, value)
        order = tuple(sorted(range(len(layout)), key=lambda i: layout[i].axis not in self.plan.squeezed))
        return End(
            value,
            (*squeezed, *rest),
            len(squeezed),
            order,
            not layout,
            joined(self.plan.axes, self.plan.squeezed, value),
        )

    def spec(self, end: End) -> str:
        if end.scalar and end.value in self.plan.graph.inputs:
            return "pl.BlockSpec(memory_space=pltpu.SMEM)"
        variables = [f"i{n}" for n in range(len(self.plan.grid))]

        def text(shape: Sequence[str], index: Sequence[str]) -> str:
            return f"pl.BlockSpec(({', '.join(shape)}), lambda {', '.join(variables)}: ({', '.join(index)}))"

        shape = ["None" if i < end.squeezed else self.body.length(d) for i, d in enumerate(end.entries)]
        usual = text(shape, [self._index(d, variables) for d in end.entries])
        if end.joined is None:
            return usual
        head, last = end.joined.head, end.joined.last
        shape = ["None" if d.axis in self.plan.squeezed else self.body.length(d) for d in (*head, last)]
        index = [self._index(d, variables) for d in head] + [self._along_lanes(end.joined, variables)]
        return self._either(text(shape, index), usual, end.joined)

    # Heads along lanes

    def _fits(self, made: Joined) -> str:
        """The variable that tells whether blocks along the joined lanes are whole tiles; empty if they always are."""
        if always_fits(self.plan.axes, self.plan.blocks, made):
            return ""
        name = self.blocks.get(made.last.axis) or self.sizes.expression(self.plan.axes.whole(made.last))
        return f"fits_{name.removeprefix('block_').replace(' ', '').replace('*', '_')}"

    def fitting(self, end: End) -> list[str]:
        """The line that tells whether blocks along joined lanes are whole tiles, where that hangs on sizes."""
        made = end.joined
        if made is None or not (name := self._fits(made)):
            return []
        size = self.sizes.expression(self.plan.axes.whole(made.last))
        block = self.blocks.get(made.last.axis)
        if block is None:
            return [f"{name} = {_factor(size)} % 128 == 0"]
        return [f"{name} = {block} % 128 == 0 and {_factor(size)} % {block} == 0"]

    def _either(self, with_joined: str, without: str, made: Joined) -> str:
        fits = self._fits(made)
        return with_joined if not fits else f"({with_joined} if {fits} else {without})"

    def _along_lanes(self, made: Joined, variables: Sequence[str]) -> str:
        """Which block along the joined lanes a step reads, in blocks of the lanes' own length."""
        first, *others = made.mid
        text = self._index(first, variables)
        for d in others:
            size = self.sizes.expression(self.plan.axes.whole(d))
            text = f"{_factor(text)} * {_factor(size)} + {self._index(d, variables)}"
        if made.last.axis not in self.blocks:
            return text
        blocks = f"({self.sizes.expression(self.plan.axes.whole(made.last))} // {self.blocks[made.last.axis]})"
        return f"{_factor(text)} * {blocks} + {self._index(made.last, variables)}"

    def shape(self, end: End) -> str:
        usual = f"({self._full(end.entries)})"
        if end.joined is None:
            return usual
        return self._either(f"({self._joined_shape(end.joined)})", usual, end.joined)

    def _joined_shape(self, made: Joined) -> str:
        head, lanes = ([self.plan.axes.whole(d) for d in dims] for dims in (made.head, (*made.mid, made.last)))
        return ", ".join([*map(self.sizes.expression, head), self._product(lanes)])

    def _product(self, sizes: Sequence[Size]) -> str:
        try:
            return self.sizes.expression(times(*sizes))
        except NoFit:
            return " * ".join(f"({self.sizes.expression(s)})" for s in sizes)

    def _index(self, dim: Dim | None, variables: Sequence[str]) -> str:
        """Which block along a dimension a step reads, in blocks of its own length."""
        halo = None if dim is None else self.plan.axes.halos.get(dim.axis)
        axis = halo.main if halo is not None else dim.axis if dim is not None else None
        if dim is None or axis not in self.plan.grid:
            return "0"
        step = variables[self.plan.grid.index(axis)]
        if halo is None:
            return step
        edge = self.edges[dim.axis]
        if not halo.ahead:
            return f"jnp.maximum({step} * ({self.blocks[axis]} // {edge}) - 1, 0)"
        last = f"pl.cdiv({self.sizes.expression(self.plan.axes.size(axis))}, {edge}) - 1"
        return f"jnp.minimum(({step} + 1) * ({self.blocks[axis]} // {edge}), {last})"

    def _full(self, entries: Sequence[Dim | None]) -> str:
        return ", ".join("1" if d is None else self.sizes.expression(self.plan.axes.whole(d)) for d in entries)

    def given(self, end: End, name: str) -> str:
        """The expression that hands an argument to the kernel."""
        dtype = self.plan.graph.values[end.value].dtype
        text = f"{name}.astype(jnp.int8)" if dtype == "bool" else name
        if end.scalar:
            wide = "jnp.int32" if "int" in dtype or dtype == "bool" else "jnp.float32"
            return f"{name}.astype({wide}).reshape(1)"
        usual = self._rearranged(end, text)
        if end.joined is None:
            return usual
        return self._either(f"{text}.reshape({self._joined_shape(end.joined)})", usual, end.joined)

    def _rearranged(self, end: End, text: str) -> str:
        layout = self.plan.axes.layout(end.value)
        shape = self.plan.graph.values[end.value].shape
        merged = [self.plan.axes.whole(d) for d in layout]
        if end.order != tuple(range(len(layout))):
            if merged != list(shape):
                text = f"{text}.reshape({self._full(layout)})"
            text = f"jnp.transpose({text}, {end.order})"
            shape = tuple(merged[i] for i in end.order)
        final = [(1,) * self.sizes.cases if d is None else self.plan.axes.whole(d) for d in end.entries]
        return text if final == list(shape) else f"{text}.reshape({self._full(end.entries)})"

    def returned(self, end: End, text: str) -> str:
        """The op's output from the kernel's."""
        made = self._restored(end, text)
        if end.joined is not None:
            shape = ", ".join(self.sizes.expression(s) for s in self.plan.graph.values[end.value].shape)
            made = self._either(f"{text}.reshape({shape})", made, end.joined)
        return f"{made}.astype(jnp.bool_)" if self.plan.graph.values[end.value].dtype == "bool" else made

    def _restored(self, end: End, text: str) -> str:
        layout = self.plan.axes.layout(end.value)
        shape = self.plan.graph.values[end.value].shape
        own = [(1,) * self.sizes.cases if d is None else self.plan.axes.whole(d) for d in end.entries]
        if end.order != tuple(range(len(layout))):
            merged = [self.plan.axes.whole(layout[i]) for i in end.order]
            if own != merged:
                text = f"{text}.reshape({self._full([layout[i] for i in end.order])})"
            back = tuple(end.order.index(i) for i in range(len(layout)))
            text, own = f"jnp.transpose({text}, {back})", [self.plan.axes.whole(d) for d in layout]
        if own != list(shape):
            inner = ", ".join(self.sizes.expression(s) for s in shape)
            text = f"{text}.reshape({inner if shape else '()'})"
        return text

    def dtype(self, value: int) -> str:
        dtype = self.plan.graph.values[value].dtype
        return "int8" if dtype == "bool" else dtype


def _factor(text: str) -> str:
    return text if text.replace("_", "").isalnum() else f"({text})"

"""One kernel as Python source: the function that is called, its specs, and the body."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aka.fuse.body import Body, padded
from aka.fuse.ends import End, Ends
from aka.fuse.graph import Graph, Node
from aka.fuse.local import Slots
from aka.fuse.plan import Plan, largest, unit_at
from aka.fuse.sizes import ITEMSIZE, NoFit, Size, Sizes, is_constant, is_unit

INDENT = "    "
RESERVED = frozenset(
    {"jax", "jnp", "lax", "pl", "pltpu", "functools", "math", "Any", "made", "needed", "kernel", "CONFIG"}
)
HELPERS = '''def _block(size: int, block: int, factor: int, unit: int) -> int:
    """`block`, or the whole axis where it is shorter or `block` would not fill tiles of `unit`."""
    return block if block < size and block * factor % unit == 0 else size


def _divisor(size: int, block: int) -> int:
    """The largest multiple of 128 up to `block` that divides the axis, so that no step is partial; else all of it."""
    return next((b for b in range(block - block % 128, 0, -128) if size % b == 0), size)


def _vmem_bytes(moved: list[tuple[int, ...]], held: list[tuple[int, ...]]) -> int:
    """Two buffers of each block that moves and one of what the body holds; the last number of each is its item size."""

    def padded(*dims: int) -> int:
        *outer, rows, lanes, itemsize = dims
        return math.prod(outer) * -(-rows // 8) * 8 * -(-lanes // 128) * 128 * itemsize

    return 2 * sum(padded(*m) for m in moved) + sum(padded(*h) for h in held) + 2**21
'''


def known_sizes(graph: Graph, names: Sequence[str], words: Mapping[Size, str]) -> Sizes:
    """The sizes that a graph's inputs show, by the names of these as parameters; `words` are the op's CONFIG keys that
    set sizes: better names for some, and the only ones for others."""
    numbers = frozenset(s[0] for v in graph.values.values() for s in v.shape if is_constant(s))
    sizes = Sizes(graph.cases, frozenset({*names, *RESERVED}), numbers, spare=dict(words))
    for value, name in zip(graph.inputs, names, strict=True):
        for i, size in enumerate(graph.values[value].shape):
            sizes.learn(size, f"{name}.shape[{i}]", words.get(size, f"{name}_{i}"))
    return sizes


@dataclass(frozen=True)
class Written:
    """A kernel's functions as text; `params` are its block sizes by name, `choices` the values to try, best first;
    `handed` are the sizes that its caller hands in."""

    text: str
    function: str
    params: dict[str, int]
    choices: dict[str, list[int]]
    handed: list[str]


class Writer:
    """Writes one plan. `names` are the parameter names of its inputs, `words` names for sizes, `prefix` goes before
    its block parameters; `outer` are sizes that the caller knows by name and hands in where the inputs don't tell."""

    def __init__(
        self,
        plan: Plan,
        function: str,
        names: Sequence[str],
        words: Mapping[Size, str],
        prefix: str = "",
        outer: Mapping[Size, str] | None = None,
    ) -> None:
        self.plan, self.function, self.names = plan, function, list(names)
        self.sizes = known_sizes(plan.graph, names, words)
        for size, name in (outer or {}).items():
            self.sizes.learn(size, "", name)
        self.blocks = {a: self._axis_name(a, prefix, words) for a in plan.blocks}
        if len(set(self.blocks.values())) < len(self.blocks):
            self.blocks = {a: f"{n}_{a}" for a, n in self.blocks.items()}
        # What lies beside a block has its length, too, by a name.
        self.edges = {
            a: f"edge_{self._axis_name(h.main, prefix, words).removeprefix('block_')}"
            for a, h in plan.axes.halos.items()
        }
        refs = {v: f"{n}_ref" for v, n in zip(plan.graph.inputs, names, strict=True)}
        self.body = Body(plan, self.sizes, refs, {**self.blocks, **self.edges})
        self.ends = Ends(plan, self.sizes, self.body, self.blocks, self.edges)
        self.outputs = [f"out{i if len(plan.graph.outputs) > 1 else ''}_ref" for i in range(len(plan.graph.outputs))]

    def _axis_name(self, axis: int, prefix: str, words: Mapping[Size, str]) -> str:
        size = self.plan.axes.size(axis)
        word = words.get(size) or self.sizes.names.get(size) or f"d{axis}"
        return f"block_{prefix}{word}"

    def write(self) -> Written:
        body = self._body()
        call = self._call()
        params = {self.blocks[a]: b for a, b in self.plan.blocks.items()}
        choices = {self.blocks[a]: self.plan.choices[a] for a in self.plan.blocks}
        return Written(f"{body}\n\n\n{call}", self.function, params, choices, self.handed)

    # The body

    handed: list[str]

    @property
    def _body_name(self) -> str:
        return f"_{self.function.lstrip('_')}_body"

    def _body(self) -> str:
        plan, body = self.plan, self.body
        sums = [f"sum{i if len(plan.accumulators) > 1 else ''}_ref" for i in range(len(plan.accumulators))]
        if plan.stream is None:
            body.run(plan.graph.nodes)
            self._store()
            lines = body.lines
        else:
            lines = self._streamed(sums)
        statics = sorted(body.used & {*self.sizes.origins, *self.blocks.values(), *self.edges.values()})
        self.statics = statics
        refs = [*(f"{n}_ref" for n in self.names), *self.outputs, *sums]
        head = f"def {self._body_name}({', '.join(f'{r}: Any' for r in refs)}"
        head += f", *, {', '.join(f'{s}: int' for s in statics)}" if statics else ""
        return f"{head}) -> None:\n" + textwrap.indent("\n".join(lines), INDENT)

    def _streamed(self, sums: Sequence[str]) -> list[str]:
        plan, body = self.plan, self.body
        at = len(plan.grid) - 1
        starts = [_start(ref, n, self._sum_dtype(n)) for ref, n in zip(sums, plan.accumulators, strict=True)]
        body.run(_ancestors(plan.graph.nodes, plan.accumulators))
        for ref, node in zip(sums, plan.accumulators, strict=True):
            part = body.part(node)
            grown = f"{ref}[...] + {part}"
            if node.op in ("reduce_max", "reduce_or"):
                grown = f"jnp.maximum({ref}[...], {part})"
            elif node.op in ("reduce_min", "reduce_and"):
                grown = f"jnp.minimum({ref}[...], {part})"
            body.lines.append(f"{ref}[...] = {grown}")
        main, body.lines = body.lines, []
        for ref, node in zip(sums, plan.accumulators, strict=True):
            name = ref.removesuffix("_ref") + "_all"
            body.lines.append(f"{name} = {ref}[...]")
            body.bind(node.outputs[0], name, self.sum_slots[node.outputs[0]], self._sum_dtype(node))
        body.run(plan.graph.nodes)
        self._store()
        last = body.lines
        first = f"@pl.when(pl.program_id({at}) == 0)\ndef _() -> None:\n" + textwrap.indent("\n".join(starts), INDENT)
        end = f"@pl.when(pl.program_id({at}) == pl.num_programs({at}) - 1)\ndef _() -> None:\n"
        return [first, "", *main, "", end + textwrap.indent("\n".join(last), INDENT)]

    @functools.cached_property
    def sum_slots(self) -> dict[int, Slots]:
        return {n.outputs[0]: self.body.accumulator(n) for n in self.plan.accumulators}

    def _sum_dtype(self, node: Node) -> str:
        dtype = self.plan.graph.values[node.outputs[0]].dtype
        if dtype == "bool":
            raise NoFit("an accumulated mask")
        return "int32" if "int" in dtype else "float32"

    def _store(self) -> None:
        for value, ref in zip(self.plan.graph.outputs, self.outputs, strict=True):
            end = self.ends.of(value)
            self.body.stored(value, ref, end.entries[end.squeezed :])

    # The call

    def _call(self) -> str:
        plan = self.plan
        ends = [self.ends.of(v) for v in plan.graph.inputs]
        outs = [self.ends.of(v) for v in plan.graph.outputs]
        inputs = ",\n".join(self.ends.given(e, n) for e, n in zip(ends, self.names, strict=True))
        in_specs = "\n".join(self.ends.spec(e) + "," for e in ends)
        out_specs = "\n".join(self.ends.spec(o) + "," for o in outs)
        shapes = "\n".join(f"jax.ShapeDtypeStruct({self.ends.shape(o)}, jnp.{self.ends.dtype(o.value)})," for o in outs)
        scratch = ", ".join(
            f"pltpu.VMEM(({', '.join(map(self.body.length, s))}), jnp.{self._sum_dtype(n)})"
            for n, s in zip(plan.accumulators, self.sum_slots.values(), strict=True)
        )
        scratch = f"    scratch_shapes=[{scratch}],\n" if scratch else ""
        grid = _tuple([self._extent(a) for a in plan.grid])
        semantics = _tuple(['"arbitrary"' if a == plan.stream else '"parallel"' for a in plan.grid])
        statics = "".join(f", {s}={s}" for s in self.statics)
        body = f"functools.partial({self._body_name}{statics})" if statics else f"{self._body_name}"
        vmem = self._vmem(ends, outs)
        returned = ", ".join(self.ends.returned(o, f"made[{i}]") for i, o in enumerate(outs))
        blocks = [*(self._clamp(a) for a in plan.blocks), *dict.fromkeys(map(self._edge, self.edges))]
        blocks += dict.fromkeys(line for e in (*ends, *outs) for line in self.ends.fitting(e))
        made = f"""needed = {vmem}
made = pl.pallas_call(
    {body},
    grid={grid},
    in_specs=[
{textwrap.indent(in_specs, INDENT * 2)}
    ],
    out_specs=[
{textwrap.indent(out_specs, INDENT * 2)}
    ],
    out_shape=[
{textwrap.indent(shapes, INDENT * 2)}
    ],
{scratch}    compiler_params=pltpu.CompilerParams(
        dimension_semantics={semantics},
        vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
    ),
)(
{textwrap.indent(inputs, INDENT)},
)
return {returned}"""
        if not plan.grid:
            made = made.replace(f"    grid={grid},\n", "").replace(f"        dimension_semantics={semantics},\n", "")
        origins = {n: o for n, o in self.sizes.origins.items() if n in self.sizes.used}
        used = [f"{n} = {o}" for n, o in origins.items() if o]
        self.handed = [n for n, o in origins.items() if not o]
        text = "\n".join([*used, *blocks, made])
        arguments = ", ".join(f"{n}: jax.Array" for n in self.names)
        tuned = "".join(f", {n}: int" for n in self.handed)
        tuned += "".join(f", {self.blocks[a]}: int = {b}" for a, b in plan.blocks.items())
        return (
            f"def {self.function}({arguments}{', *' + tuned if tuned else ''}) -> Any:\n{textwrap.indent(text, INDENT)}"
        )

    def _clamp(self, axis: int) -> str:
        name, size = self.blocks[axis], self.sizes.expression(self.plan.axes.size(axis))
        unit, factor = self._unit(axis)
        if axis == self.plan.stream and is_unit(factor):
            return f"{name} = _divisor({size}, {name})"
        if axis == self.plan.stream:  # each step along it is several elements: whole tiles, and no part of a step
            fits = f"{size} % b == 0 and b * ({self.sizes.expression(factor)}) % {unit} == 0"
            return f"{name} = next((b for b in range({name}, 0, -1) if {fits}), {size})"
        return f"{name} = _block({size}, {name}, {self.sizes.expression(factor)}, {unit})"

    def _edge(self, halo: int) -> str:
        main = self.plan.axes.halos[halo].main
        whole = self.blocks.get(main) or self.sizes.expression(self.plan.axes.size(main))
        return f"{self.edges[halo]} = min({self.plan.axes.halo_rows(main)}, {whole})"

    def _unit(self, axis: int) -> tuple[int, Size]:
        """What the axis's blocks must be multiples of by its place in the arrays, and its factor there."""
        unit, factor = max(1, self.plan.axes.halo_rows(axis)), (1,) * self.sizes.cases
        for value in (*self.plan.graph.inputs, *self.plan.graph.outputs):
            for i, d in enumerate(reversed(padded(self.body, value))):
                wanted = unit_at(i, self.plan.graph.values[value].dtype)
                if d is not None and d.axis == axis and wanted > unit:
                    unit, factor = wanted, d.factor
        return unit, factor

    def _extent(self, axis: int) -> str:
        size = self.sizes.expression(self.plan.axes.size(axis))
        return f"pl.cdiv({size}, {self.blocks[axis]})" if axis in self.blocks else size

    def _vmem(self, ends: Sequence[End], outs: Sequence[End]) -> str:
        moved = [
            self._block_tuple(e.entries[e.squeezed :], ITEMSIZE.get(self.plan.graph.values[e.value].dtype, 4))
            for e in [*ends, *outs]
            if not e.scalar
        ]
        held = [self._block_tuple(s, 4) for s in self.sum_slots.values()]
        value = largest(self.plan, self.plan.blocks)
        if value is not None:
            held += [f"*[{self._block_tuple(padded(self.body, value), 4)}] * {self.plan.held}"]
        return f"_vmem_bytes([{', '.join(moved)}], [{', '.join(held)}])"

    def _block_tuple(self, entries: Slots, itemsize: int) -> str:
        return f"({', '.join(map(self.body.length, entries))}, {itemsize})"


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _start(ref: str, node: Node, dtype: str) -> str:
    """The line that empties an accumulator."""
    if node.op not in ("reduce_max", "reduce_min"):
        return f"{ref}[...] = jnp.zeros_like({ref})"
    extreme = "-jnp.inf" if node.op == "reduce_max" else "jnp.inf"
    if dtype == "int32":
        extreme = f"jnp.iinfo(jnp.int32).{'min' if node.op == 'reduce_max' else 'max'}"
    return f"{ref}[...] = jnp.full_like({ref}, {extreme})"


def _ancestors(nodes: Sequence[Node], ends: Sequence[Node]) -> list[Node]:
    wanted, found = {v for n in ends for v in n.arrays}, []
    for node in reversed(nodes):
        if wanted & set(node.outputs):
            wanted |= set(node.arrays)
            found.append(node)
    return [n for n in reversed(found) if n not in ends]

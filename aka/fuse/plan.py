"""How one kernel walks: which axes the grid cuts, which are streamed and accumulated, in which order and block sizes.

An axis may be cut where every output has it and nothing reduces over it; it may be streamed where everything that it
reaches is summed (or maximised) away in one go, and what follows no longer knows it. All others are held whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from aka.fuse.axes import REDUCTIONS, Axes, Dim
from aka.fuse.graph import LAYOUT, Graph, Node
from aka.fuse.halos import with_halos
from aka.fuse.joined import joined
from aka.fuse.roles import apart
from aka.fuse.sizes import ITEMSIZE, NoFit, is_unit

MIB = 1 << 20
BYTE_ROWS = 32
"""Rows of a tile of 8-bit numbers; blocks of wider ones may have as few as ROWS."""
ROWS = 8
LANES = 128
HELD = 3
"""Values of the largest kind that a body is taken to hold at once."""
TIGHT = 2
"""The same where no blocks fit otherwise: an elementwise chain over what is held whole may get by with it."""
DEEP = 1.15
"""What a plan pays for blocks of three dimensions or more, a guess: most operations on them are slower, and v5e's
simulator often gives no cycles for them."""
LONG_BODY, LONG_TOLL = 1 << 19, 0.05
"""Elements of a body's largest value from which on each doubling costs so much: its operations are unrolled, and a long
program is slow to compile and too long to simulate, for next to nothing."""
ANGLES, ANGLE = {"cos", "sin", "tan"}, 35
"""How many plain operations a function of an angle is taken to cost: a guess, after one rope whose estimate on v5e rose
from 49 to 243 us when cos and sin were computed again for each of 16 heads."""
MAX_POINTS = 4000
"""Combinations of block sizes that are weighed; beyond, only every other choice of each axis."""


@dataclass(frozen=True)
class Machine:
    """What the rough time of a plan follows from. `step_s` is what a grid step costs beside its work."""

    vmem_bytes: int
    bytes_per_s: float
    flops_per_s: Mapping[str, float]
    elements_per_s: float
    step_s: float = 3e-7

    def flops(self, dtype: str) -> float:
        """Matrix FLOP/s; float32 operands go through in one bfloat16 pass at default precision."""
        return self.flops_per_s.get(dtype) or self.flops_per_s["bfloat16"]


@dataclass(frozen=True)
class Plan:
    """`grid` in order, outermost first; `stream` is its last axis or None. `whole` axes have no block size."""

    graph: Graph
    axes: Axes
    squeezed: tuple[int, ...]
    cut: tuple[int, ...]
    stream: int | None
    accumulators: tuple[Node, ...]
    blocks: dict[int, int] = field(default_factory=dict)
    choices: dict[int, list[int]] = field(default_factory=dict)
    seconds: float = math.inf
    held: int = HELD

    @property
    def grid(self) -> tuple[int, ...]:
        return (*self.squeezed, *self.cut, *(() if self.stream is None else (self.stream,)))


def plans(graph: Graph, machine: Machine) -> list[Plan]:
    """The best plan without a streamed axis and the best for each axis that can be streamed, by rough time; with each
    choice of axes that are taken one step at a time. Raises NoFit if none fits in VMEM."""
    graph = with_halos(apart(graph))
    axes = Axes.of(graph)
    axes.merge_neighbours()
    free = [a for a in axes if _is_free(axes, a)]
    made = _fitting(axes, free, machine, HELD) or _fitting(axes, free, machine, TIGHT)
    if not made:
        raise NoFit(f"no blocks of it fit in VMEM: {_why(axes, free)}")
    return sorted(made, key=lambda p: p.seconds)


def _fitting(axes: Axes, free: Sequence[int], machine: Machine, held: int) -> list[Plan]:
    made = []
    for stream in [None, *(a for a in axes if a not in free)]:
        sums = () if stream is None else accumulators(axes, stream)
        if sums is not None:
            found = (_best(axes, free, single, stream, sums, machine, held) for single in _singles(axes, free))
            made += [plan for plan in found if plan is not None]
    return made


def _is_free(axes: Axes, axis: int) -> bool:
    if axis in axes.pinned or axis in axes.reduced:
        return False
    return all([d.axis for d in axes.layout(o)].count(axis) == 1 for o in axes.graph.outputs)


def accumulators(axes: Axes, axis: int) -> tuple[Node, ...] | None:
    """The reductions that end an axis, if it can be streamed through them; else None."""
    outputs = {a for o in axes.graph.outputs for a in _canonical(axes, o)}
    if axis in axes.pinned or axis not in axes.reduced or axis in outputs:
        return None
    found: list[Node] = []
    after: set[int] = set()
    for node in axes.graph.nodes:
        has = any(axis in _canonical(axes, v) for v in node.arrays)
        keeps = any(axis in _canonical(axes, v) for v in node.outputs)
        if keeps and after & set(node.arrays):
            return None
        if has and not keeps:
            if node.op not in REDUCTIONS and node.op != "dot_general":
                return None
            if after & set(node.arrays):
                return None
            found.append(node)
            after |= set(node.outputs)
        elif after & set(node.arrays):
            after |= set(node.outputs)
    return tuple(found) or None


def _canonical(axes: Axes, value: int) -> set[int]:
    """Its axes; the axis that they are beside for the rows beside a block."""
    return {axes.halos[d.axis].main if d.axis in axes.halos else d.axis for d in axes.layout(value)}


def _singles(axes: Axes, free: Sequence[int]) -> list[tuple[int, ...]]:
    """Which axes may be taken one step at a time: the batch axes of matrix products, and any more where blocks would
    have three dimensions or more without."""
    batches = {a for a in free if a in axes.batches}
    values = {*axes.graph.inputs, *axes.graph.outputs, *(o for n in axes.graph.nodes for o in n.outputs)}
    lanes = {axes.layout(v)[-1].axis for v in axes.graph.inputs if axes.role(v)}
    taken = {*batches, *lanes, *(h.main for h in axes.halos.values())}
    others = [a for a in free if a not in taken and _in_units(axes, a, values)]
    made = [batches]
    for count in range(1, len(others) + 1):
        for more in itertools.combinations(others, count):
            before = batches | set(more[:-1])
            if any(len(_canonical(axes, v) - before) > 2 and more[-1] in _canonical(axes, v) for v in values):
                made.append(batches | set(more))
    return [tuple(a for a in free if a in single) for single in made]


def _in_units(axes: Axes, axis: int, values: Collection[int]) -> bool:
    return all(is_unit(d.factor) for v in values for d in axes.layout(v) if d.axis == axis)


def _best(
    axes: Axes,
    free: Sequence[int],
    squeezed: tuple[int, ...],
    stream: int | None,
    sums: tuple[Node, ...],
    machine: Machine,
    held: int,
) -> Plan | None:
    blocked = [a for a in free if a not in squeezed]
    choices = {a: _values(axes, a, a == stream) for a in [*blocked, *([stream] if stream is not None else [])]}
    best: Plan | None = None
    for order in itertools.permutations(blocked) if len(blocked) <= 3 else [tuple(blocked)]:
        plan = Plan(axes.graph, axes, squeezed, order, stream, sums, {}, choices, held=held)
        for blocks in _points(choices):
            seconds = rough_seconds(plan, blocks, machine)
            if seconds is not None and (best is None or seconds < best.seconds):
                best = Plan(axes.graph, axes, squeezed, order, stream, sums, blocks, choices, seconds, held)
    if best is None:
        return None
    near = {
        a: sorted(
            (n for n in v if vmem_bytes(best, {**best.blocks, a: n}) <= machine.vmem_bytes),
            key=lambda n: abs(math.log(n / best.blocks[a])),
        )
        for a, v in choices.items()
    }
    return Plan(best.graph, axes, squeezed, best.cut, stream, sums, best.blocks, near, best.seconds, held)


def _points(choices: Mapping[int, Sequence[int]]) -> Iterator[dict[int, int]]:
    lists = list(choices.values())
    while math.prod(map(len, lists)) > MAX_POINTS:
        lists = [v[::2] if len(v) > 3 else v for v in lists]
    for point in itertools.product(*lists):
        yield dict(zip(choices, point, strict=True))


def _values(axes: Axes, axis: int, streamed: bool) -> list[int]:
    """Block sizes for an axis at the scored shape: multiples of what its place in the arrays asks for, the whole axis
    among them; divisors only where it is streamed, since a partial block would have to be masked."""
    size = axes.size(axis)[0]
    ends = [(v, _from_end(axes, v, axis)) for v in (*axes.graph.inputs, *axes.graph.outputs)]
    places = [(*e, axes.graph.values[v].dtype) for v, e in ends if e is not None]
    least = max(axes.halo_rows(axis), *(unit_at(place, dtype) for place, _, dtype in places), 1)
    factor = min((f for p, f, _ in places if p == 0), default=1)
    unit = max(1, least // math.gcd(least, factor)) if least == LANES else least
    if streamed and 1 < least < LANES:
        unit = LANES
    made = [unit << i for i in range(14) if unit << i < size]
    if streamed:
        made = [d for d in range(unit, size, unit) if size % d == 0]
        made = made[:: max(1, len(made) // 8)]
    if not made or size * max(1, factor) <= 16384 or streamed:
        made.append(size)
    return made


def unit_at(place: int, dtype: str) -> int:
    """What a block's length must be a multiple of, unless it is whole: `place` 0 are the lanes, 1 the rows."""
    rows = BYTE_ROWS if ITEMSIZE.get(dtype, 4) == 1 else ROWS
    return (LANES, rows)[place] if place < 2 else 1


def _from_end(axes: Axes, value: int, axis: int) -> tuple[int, int] | None:
    dims = axes.layout(value)
    for i, d in enumerate(reversed(dims)):
        if d.axis == axis:
            return (i if len(dims) > 1 else 0 if axes.along_lanes(axis) else 1), d.factor[0]
    return None


def block_lengths(plan: Plan, value: int, blocks: Mapping[int, int]) -> list[int]:
    """Lengths of the block of a value (production sizes), squeezed axes left out."""
    return [_length(plan, d, blocks) for d in plan.axes.layout(value) if d.axis not in plan.squeezed]


def _length(plan: Plan, dim: Dim, blocks: Mapping[int, int]) -> int:
    halo = plan.axes.halos.get(dim.axis)
    if halo is not None:
        return min(plan.axes.halo_rows(halo.main), blocks.get(halo.main, plan.axes.size(halo.main)[0]))
    return blocks.get(dim.axis, plan.axes.size(dim.axis)[0]) * dim.factor[0]


def padded_bytes(lengths: Sequence[int], itemsize: int) -> int:
    """Bytes of a block in VMEM: rows to a multiple of 8, lanes to a multiple of 128."""
    *outer, rows, lanes = [1, 1, *lengths]
    return math.prod(outer) * -(-rows // 8) * 8 * -(-lanes // 128) * 128 * itemsize


def rough_seconds(plan: Plan, blocks: Mapping[int, int], machine: Machine) -> float | None:
    """A rough time to rank plans by: the largest of memory, matrix and vector work, and a toll for each grid step.
    None where the blocks do not fit in VMEM. Nothing of it is ever shown as an estimate."""
    axes = plan.axes
    extents = {a: -(-axes.size(a)[0] // blocks.get(a, 1)) for a in plan.grid}
    steps = math.prod(extents.values())
    if vmem_bytes(plan, blocks) > machine.vmem_bytes:
        return None
    moved, fill = 0.0, 0.0
    for value in {*plan.graph.inputs, *plan.graph.outputs}:
        lengths = block_lengths(plan, value, blocks)
        own = _canonical(axes, value)
        last = max((i for i, a in enumerate(plan.grid) if a in own), default=-1)
        visits = math.prod(extents[a] for a in plan.grid[: last + 1])
        block = padded_bytes(lengths, ITEMSIZE.get(plan.graph.values[value].dtype, 4))
        moved += visits * block + (2 * _all_bytes(plan, value) if _is_transposed(plan, value) else 0)
        fill += block
    matrix, vector = _work(plan, blocks)
    busy = max(moved / machine.bytes_per_s, steps * vector / machine.elements_per_s)
    matrix_s = sum(steps * flops / machine.flops(dtype) for flops, dtype in matrix)
    # The first block comes in and the last one goes out with nothing beside it.
    toll = steps * machine.step_s + fill / machine.bytes_per_s
    deep = any(len(_canonical(axes, v) - set(plan.squeezed)) > 2 for n in plan.graph.nodes for v in n.outputs)
    widest = largest(plan, blocks)
    elements = 1 if widest is None else math.prod(block_lengths(plan, widest, blocks))
    length = 1 + LONG_TOLL * max(0.0, math.log2(elements / LONG_BODY))
    return (max(busy, matrix_s) + 0.2 * min(busy, matrix_s)) * (DEEP if deep else 1.0) * length + toll


def _is_transposed(plan: Plan, value: int) -> bool:
    """Whether XLA has to transpose it, so that the axes that are taken one step at a time come first."""
    single = [d.axis in plan.squeezed for d in plan.axes.layout(value)]
    return single != sorted(single, reverse=True) and joined(plan.axes, plan.squeezed, value) is None


def _all_bytes(plan: Plan, value: int) -> int:
    sizes = [plan.axes.whole(d)[0] for d in plan.axes.layout(value)]
    return math.prod(sizes) * ITEMSIZE.get(plan.graph.values[value].dtype, 4)


def _work(plan: Plan, blocks: Mapping[int, int]) -> tuple[list[tuple[float, str]], float]:
    """Per grid step: FLOP of each matrix product with its operands' dtype, and elements of vector operations."""
    matrix, vector = [], 0.0
    for node in plan.graph.nodes:
        lengths = [math.prod(block_lengths(plan, v, blocks)) for v in (*node.arrays, *node.outputs)]
        if node.op == "dot_general":
            out = block_lengths(plan, node.outputs[0], blocks)
            (contract, _), _ = node.params[0]["dimension_numbers"]
            dims = [plan.axes.dims(node.arrays[0])[i] for i in contract]
            depth = math.prod(_length(plan, d, blocks) for d in dims if d and plan.axes.merged(d.axis) == d.axis)
            # A few rows take as long as the weights take to load.
            rows = min(
                [_length(plan, d, blocks) for d in plan.axes.layout(node.outputs[0]) if d.axis in plan.axes.halos],
                default=LANES,
            )
            flops = 2.0 * math.prod(out) * depth * max(1.0, LANES / rows)
            matrix.append((flops, plan.graph.values[node.arrays[0]].dtype))
        elif node.op not in LAYOUT and node.op != "iota":
            vector += max(lengths) * (ANGLE if node.op in ANGLES else 1)
    return matrix, vector


def vmem_bytes(plan: Plan, blocks: Mapping[int, int]) -> int:
    """Two buffers of every block, the accumulators, and room for what the body holds meanwhile."""
    graph = plan.graph
    ends = {*graph.inputs, *graph.outputs}
    buffers = sum(
        2 * padded_bytes(block_lengths(plan, v, blocks), ITEMSIZE.get(graph.values[v].dtype, 4)) for v in ends
    )
    sums = sum(padded_bytes(block_lengths(plan, n.outputs[0], blocks), 4) for n in plan.accumulators)
    return buffers + sums + held_bytes(plan, blocks) + 2 * MIB


def held_bytes(plan: Plan, blocks: Mapping[int, int]) -> int:
    """`held` of the largest values of the body, in float32."""
    value = largest(plan, blocks)
    return 0 if value is None else plan.held * padded_bytes(block_lengths(plan, value, blocks), 4)


def largest(plan: Plan, blocks: Mapping[int, int]) -> int | None:
    """The value of the body whose block takes the most room; None if it makes none."""
    made = [o for n in plan.graph.nodes if n.op != "broadcast_in_dim" for o in n.outputs]
    return max(made, key=lambda v: padded_bytes(block_lengths(plan, v, blocks), 4), default=None)


def _why(axes: Axes, free: Sequence[int]) -> str:
    whole = [axes.size(a)[0] for a in axes if a not in free]
    return f"axes of {', '.join(map(str, whole))} must be held whole" if whole else "its blocks are too large"

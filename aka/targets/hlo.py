"""What each op of a compiled program does to the device: HBM bytes, matrix FLOP, and how often it runs.

Everything errs towards less work, so that times built on it are lower bounds: an operand counts once, an operand that
is only sliced counts as its slices, an update in place as the update, and of a conditional the cheapest branch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from aka.targets import convolutions, loops
from aka.targets.hlotext import ENTRY, Computation, Instruction, parse

_FREE = frozenset(("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier"))
_FREE_TARGETS = frozenset(("AllocateBuffer", "AssumeGatherIndicesInBound", "Sharding"))
_SLICES = frozenset(("dynamic-slice", "slice", "gather"))
_UPDATES = frozenset(("dynamic-update-slice", "scatter"))
_VIEWS = frozenset(("bitcast", "fusion", "get-tuple-element"))
_CYCLES = re.compile(r'"bundle_analysis_data":\{"estimated_cycles":"(\d+)"')
KERNEL_TARGET = "tpu_custom_call"


@dataclass(frozen=True)
class Row:
    """One op of the program's schedule, each time it runs: HBM bytes and matrix FLOP (with the operands' dtype).

    `cycles` are the simulated ones, None where the compiler did not simulate the op (or not at all); `arrays` are the
    dimensions of operands and results, and `in_hbm` whether each of them lives there. `overlaps`: an asynchronous
    copy, which takes bandwidth but no time of its own. `trips` is how often the op runs, `exact_trips` whether that is
    certain. `kernel`: a Pallas kernel, whose operands say little about its traffic.
    """

    name: str
    opcode: str
    hbm_bytes: int
    flops: float
    flops_dtype: str
    cycles: int | None
    trips: int
    exact_trips: bool
    overlaps: bool
    kernel: bool
    arrays: tuple[tuple[int, ...], ...]
    in_hbm: tuple[bool, ...]


def rows(text: str) -> list[Row]:
    """The ops of the entry computation of an optimized HLO module, loops and calls entered."""
    computations = parse(text)
    return _rows(ENTRY, computations)


def _rows(name: str, computations: dict[str, Computation]) -> list[Row]:
    found: list[Row] = []
    for op in computations.get(name, {}).values():
        if op.opcode == "while":
            found += _loop(op, computations[name], computations)
        elif op.opcode == "conditional":
            found += _cheapest(op, computations)
        elif op.opcode == "call":
            found += [r for c in op.called("to_apply") for r in _rows(c, computations)]
        elif not _is_free(op):
            found.append(_row(op, computations[name], computations))
    return found


def _loop(op: Instruction, scope: Computation, computations: dict[str, Computation]) -> list[Row]:
    trips = loops.trip_count(op, scope, computations)
    body = [r for c in op.called("body") for r in _rows(c, computations)]
    return [replace(r, trips=r.trips * (trips or 1), exact_trips=r.exact_trips and trips is not None) for r in body]


def _cheapest(op: Instruction, computations: dict[str, Computation]) -> list[Row]:
    names = op.called("true_computation", "false_computation", "branch_computations")
    branches = [_rows(c, computations) for c in names]
    return min(branches, key=lambda b: sum(r.hbm_bytes * r.trips + r.flops for r in b), default=[])


def _is_free(op: Instruction) -> bool:
    if op.opcode in _FREE or op.opcode.endswith("-done"):
        return True
    return op.opcode == "custom-call" and any(f'custom_call_target="{t}"' in op.attributes for t in _FREE_TARGETS)


def _row(op: Instruction, scope: Computation, computations: dict[str, Computation]) -> Row:
    overlaps = op.opcode.endswith("-start")
    cycles = _CYCLES.search(op.attributes)
    arrays = [s for name in op.operands if name in scope for s in scope[name].shapes] + list(op.shapes)
    flops, dtype = convolutions.flops(op, scope, computations)
    return Row(
        name=op.name,
        opcode=op.opcode,
        hbm_bytes=_copied(op) if overlaps else _read(op, scope, computations) + _written(op, scope, computations),
        flops=flops,
        flops_dtype=dtype,
        cycles=int(cycles[1]) if cycles else None,
        trips=1,
        exact_trips=True,
        overlaps=overlaps,
        kernel=f'custom_call_target="{KERNEL_TARGET}"' in op.attributes,
        arrays=tuple(s.dims for s in arrays),
        in_hbm=tuple(s.space == 0 for s in arrays),
    )


def _copied(op: Instruction) -> int:
    """An asynchronous copy: its tuple holds source and destination, of which each in HBM costs the smaller's bytes."""
    ends = op.shapes[:2]
    return min((e.total_bytes for e in ends), default=0) * sum(e.space == 0 for e in ends)


def _read(op: Instruction, scope: Computation, computations: dict[str, Computation]) -> int:
    operands = [(i, scope[name]) for i, name in enumerate(op.operands) if name in scope]
    distinct = {source.name: (i, source) for i, source in reversed(operands)}.values()
    if op.opcode in _SLICES:
        return sum(min(s.hbm_bytes, sum(out.total_bytes for out in op.shapes)) for i, s in distinct if i == 0)
    if op.opcode in _UPDATES:
        return sum(s.hbm_bytes for i, s in distinct if i > 0)
    bodies = [computations[c] for c in op.called("calls") if c in computations] if op.opcode == "fusion" else []
    if not bodies:
        return sum(s.hbm_bytes for _, s in distinct)
    return sum(min(s.hbm_bytes, _used(bodies[0], i, s.hbm_bytes, computations)) for i, s in distinct if s.hbm_bytes)


def _used(body: Computation, index: int, full: int, computations: dict[str, Computation]) -> int:
    """Bytes that a fusion reads of its parameter `index`: its slices if it is only sliced, none if only updated."""
    name = next((o.name for o in body.values() if o.opcode == "parameter" and o.arguments == str(index)), None)
    return full if name is None else _used_value(body, name, full, computations)


def _used_value(body: Computation, name: str, full: int, computations: dict[str, Computation]) -> int:
    total = 0
    for user in (o for o in body.values() if name in o.operands):
        if user.opcode in _SLICES and user.operands[0] == name:
            total += sum(s.total_bytes for s in user.shapes)
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == name:
            continue
        elif user.opcode == "bitcast":
            total += _used_value(body, user.name, full, computations)
        elif user.opcode == "fusion":
            inner = [computations[c] for c in user.called("calls") if c in computations]
            total += sum(_used(b, user.operands.index(name), full, computations) for b in inner)
            total += _used_value(body, user.name, full, computations) if _is_view(user, inner) else 0
        else:
            return full
    return min(total, full)


def _is_view(op: Instruction, bodies: list[Computation]) -> bool:
    return bool(bodies) and all(o.opcode in ("parameter", "bitcast") for o in bodies[0].values())


def _written(op: Instruction, scope: Computation, computations: dict[str, Computation]) -> int:
    if op.opcode in _UPDATES:
        updates = op.operands[1:2] if op.opcode == "dynamic-update-slice" else op.operands[-1:]
        return min(op.hbm_bytes, sum(scope[u].shapes[0].total_bytes for u in updates if u in scope))
    bodies = [computations[c] for c in op.called("calls") if c in computations] if op.opcode == "fusion" else []
    root = next((o for b in bodies[:1] for o in b.values() if o.root), None)
    while root is not None and root.opcode == "bitcast" and root.operands and root.operands[0] in bodies[0]:
        root = bodies[0][root.operands[0]]
    if root is not None and root.opcode in _UPDATES:
        return min(op.hbm_bytes, _written(root, bodies[0], computations))
    return op.hbm_bytes

"""How often a while loop of an optimized HLO module runs, from what the text says."""

from __future__ import annotations

import re

from aka.targets.hlotext import Computation, Instruction

_KNOWN = re.compile(r'known_trip_count"?:?\s*=?\{"?n"?:\s*"?(\d+)')
_INTEGER = re.compile(r"^-?\d+$")


def trip_count(op: Instruction, scope: Computation, computations: dict[str, Computation]) -> int | None:
    """Trips of the while loop `op`, from its annotation or from a condition that compares the counter to a constant.

    The TPU compiler drops the annotation. The counter counts up by one, as JAX's loops do; None where that is unclear.
    """
    known = _KNOWN.search(op.attributes)
    if known:
        return int(known[1])
    condition = next((computations[c] for c in op.called("condition") if c in computations), {})
    compare = _compare(condition, computations)
    limits = [_constant(o) for o in condition.values() if _constant(o) is not None]
    if compare is None or len(limits) != 1 or limits[0] is None:
        return None
    place = _place(condition)
    if place is None or not _by_one(op, place, computations):
        return None
    first = _first(op, scope, place)
    trips = None if first is None else limits[0] - first + ("direction=LE" in compare.attributes)
    return trips if trips is not None and trips >= 0 else None


def _compare(condition: Computation, computations: dict[str, Computation]) -> Instruction | None:
    """The comparison at the condition's root, inside a fusion if need be, if it is "less" or "at most"."""
    root = next((o for o in condition.values() if o.root), None)
    if root is not None and root.opcode == "fusion":
        bodies = [computations[c] for c in root.called("calls") if c in computations]
        root = next((o for b in bodies for o in b.values() if o.root), None)
    ordered = root is not None and root.opcode == "compare" and re.search(r"direction=L[TE]", root.attributes)
    return root if ordered else None


def _place(condition: Computation) -> int | None:
    """Which element of the carried tuple the condition reads: the counter."""
    reads = [o for o in condition.values() if o.opcode == "get-tuple-element"]
    index = re.search(r"index=(\d+)", reads[0].attributes) if len(reads) == 1 else None
    return int(index[1]) if index else None


def _first(op: Instruction, scope: Computation, place: int) -> int | None:
    """The counter's value before the loop."""
    start = scope.get(op.operands[0]) if op.operands else None
    if start is None or start.opcode != "tuple":
        return None
    value = _origin(scope, start.operands[place])
    return _constant(value) if value is not None else None


def _by_one(op: Instruction, place: int, computations: dict[str, Computation]) -> bool:
    """Whether the loop's body adds one to the counter: a program can be written whose counter stands still at times."""
    body = next((computations[c] for c in op.called("body") if c in computations), {})
    root = next((o for o in body.values() if o.root), None)
    if root is None or root.opcode != "tuple":
        return False
    value = _origin(body, root.operands[place])
    if value is not None and value.opcode == "fusion":
        body = next((computations[c] for c in value.called("calls") if c in computations), {})
        value = next((o for o in body.values() if o.root), None)
    if value is None or value.opcode != "add":
        return False
    parts = [_origin(body, name) for name in value.operands]
    kinds = {part.opcode for part in parts if part is not None}
    return any(part is not None and _constant(part) == 1 for part in parts) and bool(
        kinds & {"get-tuple-element", "parameter"}
    )


def _origin(scope: Computation, name: str) -> Instruction | None:
    """The instruction of that name, or the one that it only copies."""
    value = scope.get(name)
    while value is not None and value.opcode in ("copy", "bitcast") and value.operands:
        value = scope.get(value.operands[0])
    return value


def _constant(op: Instruction) -> int | None:
    return int(op.arguments) if op.opcode == "constant" and _INTEGER.match(op.arguments) else None

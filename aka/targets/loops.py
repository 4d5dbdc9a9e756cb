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
    first = _first(op, scope, condition)
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


def _first(op: Instruction, scope: Computation, condition: Computation) -> int | None:
    """The counter's value before the loop: the element of the initial tuple that the condition reads."""
    reads = [o for o in condition.values() if o.opcode == "get-tuple-element"]
    start = scope.get(op.operands[0]) if op.operands else None
    if len(reads) != 1 or start is None or start.opcode != "tuple":
        return None
    index = re.search(r"index=(\d+)", reads[0].attributes)
    value = scope.get(start.operands[int(index[1])]) if index else None
    while value is not None and value.opcode in ("copy", "bitcast") and value.operands:
        value = scope.get(value.operands[0])
    return _constant(value) if value is not None else None


def _constant(op: Instruction) -> int | None:
    return int(op.arguments) if op.opcode == "constant" and _INTEGER.match(op.arguments) else None

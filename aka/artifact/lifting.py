"""Narrowings that only feed the matrix unit: with exact dots they are no rounding, since the unit rounds so itself."""

from __future__ import annotations

from collections.abc import Collection

from aka.artifact.program import Function, Op, walk

NARROWINGS = frozenset({"arith.truncf", "tpu.truncf"})
NARROW = ("bfloat16", "float16", "float8", "float4")
_LOADS = frozenset({"vector.load", "memref.load", "tpu.strided_load"})
_STORES = frozenset({"tpu.vector_store", "memref.store", "tpu.strided_store"})
_MOVES = frozenset(
    {
        "tpu.transpose", "vector.shape_cast", "vector.broadcast", "tpu.concatenate", "vector.extract_strided_slice",
        "arith.extf", "tpu.extf",
    }
)  # fmt: skip
"""Operations that hand an element on as it is."""


def only_into_dots(main: Function, scratch: int) -> frozenset[int]:
    """The slots of narrowed values, and of narrow memory among the last `scratch` arguments, from which nothing but a
    dot's two factors is made."""
    flow = _Flow(main)
    slots = main.body.arguments[len(main.types) - scratch :] if scratch else ()
    types = main.types[len(main.types) - scratch :] if scratch else ()
    for slot, type_ in zip(slots, types, strict=True):
        if type_.dtype.startswith(NARROW) and flow.memory_feeds(slot):
            flow.memory.add(slot)
    narrowed = [r for op in walk(main.body) if op.name in NARROWINGS for r in op.results]
    return frozenset(flow.memory).union(r for r in narrowed if flow.feeds(r))


class _Flow:
    """Who uses which value. `memory` are the slots of memory that is known to feed dots only."""

    def __init__(self, main: Function) -> None:
        self.memory: set[int] = set()
        self._users: dict[int, list[Op]] = {}
        for op in walk(main.body):
            for slot in op.operands:
                self._users.setdefault(slot, []).append(op)

    def feeds(self, slot: int) -> bool:
        users = self._users.get(slot, ())
        return bool(users) and all(self._into_dot(op, slot) for op in users)

    def memory_feeds(self, slot: int) -> bool:
        """Whether all that is loaded from this memory goes into dots. Other views of it tell nothing."""
        users = self._users.get(slot, ())
        return all(self._loaded(op) if op.name in _LOADS else _stored(op, [slot]) for op in users)

    def _loaded(self, op: Op) -> bool:
        return all(self.feeds(r) for r in op.results)

    def _into_dot(self, op: Op, slot: int) -> bool:
        if op.name == "tpu.matmul":
            return slot in op.operands[:2] and slot not in op.operands[2:]
        if op.name in _STORES:
            return op.operands[0] == slot and _stored(op, self.memory)
        return op.name in _MOVES and self._loaded(op)


def _stored(op: Op, memory: Collection[int]) -> bool:
    return op.name in _STORES and op.operands[1] in memory

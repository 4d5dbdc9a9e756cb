"""Mosaic operations as Python closures: a block is translated once and run many times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aka.artifact.errors import Unsupported
from aka.artifact.memory import MachineStats, Semaphore
from aka.artifact.program import Block, Op

Step = Callable[..., Any]
TERMINATORS = frozenset({"func.return", "scf.yield", "scf.condition", "tpu.yield"})


@dataclass
class Machine:
    """State that operations share during one kernel run. `env` holds the value of every slot; those in `wide` are not
    narrowed."""

    lazy: bool
    mxu: str
    grid: tuple[int, ...] = ()
    wide: frozenset[int] = frozenset()
    env: list[Any] = field(default_factory=list)
    stats: MachineStats = field(default_factory=MachineStats)
    semaphores: list[Semaphore] = field(default_factory=list)


Builder = Callable[[Op, Machine], Step]


@dataclass(frozen=True)
class Code:
    """A translated block: steps of (closure, operand slots, result slots, name), and the slots that its end yields."""

    arguments: tuple[int, ...]
    steps: tuple[tuple[Step, tuple[int, ...], tuple[int, ...], str], ...]
    ends: tuple[int, ...]

    def run(self, env: list[Any], arguments: Sequence[Any] = ()) -> list[Any]:
        """Execute the block in this environment; the values that it hands on.

        Where NumPy refuses an operation's operands it raises Unsupported: the compiler accepted them, so the machine's
        meaning of the operation is too narrow.
        """
        for slot, value in zip(self.arguments, arguments, strict=True):
            env[slot] = value
        for step, operands, results, name in self.steps:
            try:
                value = step(*[env[i] for i in operands])
            except (ValueError, TypeError, IndexError) as error:
                raise Unsupported(name, str(error)) from error
            if len(results) == 1:
                env[results[0]] = value
            elif results:
                for slot, part in zip(results, value, strict=True):
                    env[slot] = part
        return [env[i] for i in self.ends]


def translate(block: Block, machine: Machine, table: dict[str, Builder]) -> Code:
    """The block's code. Raises Unsupported for an operation that is not in the table."""
    steps: list[tuple[Step, tuple[int, ...], tuple[int, ...], str]] = []
    ends: tuple[int, ...] = ()
    for op in block.ops:
        if op.name in TERMINATORS:
            ends = op.operands
            break
        if op.name not in table:
            raise Unsupported(op.name)
        steps.append((table[op.name](op, machine), op.operands, op.results, op.name))
    return Code(block.arguments, tuple(steps), ends)

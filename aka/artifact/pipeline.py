"""Windows as the compiler's pipeline drives them: blocks fetched a step ahead, results written when they move on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aka.artifact.decode import Window
from aka.artifact.errors import MachineFault
from aka.artifact.memory import Array, MachineStats, poisoned


@dataclass
class Pipeline:
    """One blocked window over one array in HBM. `indices` are the block indices at each grid step."""

    window: Window
    array: Array
    indices: Array
    shape: tuple[int, ...]
    stats: MachineStats
    buffer: Array | None = None
    ahead: Array | None = None
    moves: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        changed = (np.diff(self.indices, axis=0) != 0).any(-1)
        self.moves = [True, *changed.tolist()]

    def enter(self, step: int) -> Any:
        """The buffer that the body sees at this step, in the shape that it expects."""
        if self.moves[step]:
            self.buffer = self._arrive(step)
        later = step + 1
        if self.window.pipelined and not self.window.is_output and later < len(self.moves) and self.moves[later]:
            self.ahead = self._fetch(later)
        assert self.buffer is not None
        return self.buffer.reshape(self.shape)

    def leave(self, step: int) -> None:
        """Write the block back if the next step is on another one."""
        if self.window.is_output and (step + 1 == len(self.moves) or self.moves[step + 1]):
            assert self.buffer is not None
            part, inside = self._part(step)
            part[...] = self.buffer[inside]
            self.stats.written_bytes += part.nbytes

    def _arrive(self, step: int) -> Array:
        if self.window.is_output:
            return poisoned(self.window.block, self.array.dtype)
        ready, self.ahead = self.ahead, None
        return self._fetch(step) if ready is None else ready

    def _fetch(self, step: int) -> Array:
        part, inside = self._part(step)
        self.stats.read_bytes += part.nbytes
        if part.shape == self.window.block:
            return np.array(part)
        made = poisoned(self.window.block, self.array.dtype)
        made[inside] = part
        return made

    def _part(self, step: int) -> tuple[Array, tuple[slice, ...]]:
        """(the view of the array under the block at this step, the slice of the block that it fills)."""
        block, shape = self.window.block, self.array.shape
        at = [int(i) if self.window.element else int(i) * b for i, b in zip(self.indices[step], block, strict=True)]
        if any(a < 0 or a >= n for a, n in zip(at, shape, strict=True) if n):
            raise MachineFault(f"window {self.window.name}: block at {at} is outside its array of shape {shape}")
        view = self.array[tuple(slice(a, a + b) for a, b in zip(at, block, strict=True))]
        return view, tuple(slice(0, n) for n in view.shape)

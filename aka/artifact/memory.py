"""The machine's memory: filled with NaN at first, bounds checked, with copies that land when they are waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aka.artifact.dialect import numpy_dtype
from aka.artifact.errors import MachineFault
from aka.artifact.program import Type

Array = np.ndarray[Any, Any]
INTEGER_POISON = -77


@dataclass
class MachineStats:
    """What really ran. Bytes are HBM traffic of windows and DMAs; `steps` are grid steps, `runs` kernel calls."""

    read_bytes: int = 0
    written_bytes: int = 0
    dmas: int = 0
    steps: int = 0
    runs: int = 0

    def add(self, other: MachineStats) -> None:
        """Add another's counts to these."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(eq=False)
class Semaphore:
    """A counter. `pending` holds (source, destination, landed) of copies that were started and not waited for."""

    count: int = 0
    pending: deque[tuple[Array, Array, bool]] = field(default_factory=deque)

    def start(self, source: Array, destination: Array, lazy: bool) -> None:
        """Start a copy; it lands now, or (lazy) when it is waited for."""
        if source.shape != destination.shape:
            raise MachineFault(f"a copy from shape {source.shape} to shape {destination.shape}")
        if not lazy:
            destination[...] = source
        self.pending.append((source, destination, not lazy))

    def wait(self, size: int) -> None:
        """Wait until `size` bytes have arrived: the oldest copies land first. Raises MachineFault on a deadlock."""
        while self.count < size:
            if not self.pending:
                raise MachineFault("wait for a copy that was never started")
            source, destination, landed = self.pending.popleft()
            if not landed:
                destination[...] = source
            self.count += source.nbytes
        self.count -= size


def fresh(type_: Type) -> Array:
    """New memory of this type: NaN, a poison value for integers, True for booleans, zeroed semaphores."""
    if "semaphore" in type_.dtype:
        made = np.empty(type_.shape, object)
        for index in np.ndindex(*type_.shape):
            made[index] = Semaphore()
        return made
    return poisoned(type_.shape, numpy_dtype(type_.dtype))


def poisoned(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An array of this shape that holds what uninitialised memory holds."""
    if dtype == np.bool_:
        return np.ones(shape, dtype)
    if dtype.kind in "iu" or "int" in dtype.name:
        return np.full(shape, np.int64(INTEGER_POISON).astype(dtype), dtype)
    return np.full(shape, np.float32(np.nan).astype(dtype), dtype)


def cut(array: Array, starts: Sequence[Any], sizes: Sequence[int], strides: Sequence[int] | None = None) -> Array:
    """The view of `array` that begins at `starts`. Raises MachineFault where it would leave the array."""
    parts = []
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        low, stride = int(start), strides[axis] if strides else 1
        high = low + (size - 1) * stride + 1
        if low < 0 or high > array.shape[axis]:
            raise MachineFault(f"access of [{low}:{high}] on axis {axis} of an array of shape {array.shape}")
        parts.append(slice(low, high, stride))
    return array[tuple(parts)]

"""A TPU core in NumPy: runs one decoded kernel on arrays. The bytes that run are the bytes that are compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from aka.artifact.code import Code, Machine, translate
from aka.artifact.decode import Array, Kernel, Window
from aka.artifact.dialect import numpy_dtype
from aka.artifact.errors import MachineFault, Unsupported
from aka.artifact.lifting import only_into_dots
from aka.artifact.memory import MachineStats, fresh, poisoned
from aka.artifact.ops_control import TABLE
from aka.artifact.pipeline import Pipeline
from aka.artifact.program import Type
from aka.artifact.scalars import grid_points, index_map

Mxu = Literal["bf16", "exact"]


PARALLEL = frozenset({"parallel", "core_parallel", "subcore_parallel"})


def execute(
    kernel: Kernel, operands: Sequence[Array], *, lazy: bool = True, mxu: Mxu = "bf16", split: int | None = None
) -> tuple[list[Array], MachineStats]:
    """Run the kernel once on the operands of its custom call; the results, and what ran.

    Memory starts as NaN. With `lazy` a copy lands when it is waited for, else at once: a kernel without races gives the
    same result both ways. `mxu="bf16"` rounds float32 matmul operands at default precision as the chip does; "exact"
    doesn't, nor does it narrow what only feeds a matmul.
    `split` deals the steps to two cores along a grid axis that the kernel declares parallel (the one of that number,
    counted around): each has memory of its own on the chip, and the second one goes first.
    Raises Unsupported (an operation without a meaning here) or MachineFault (the kernel is wrong).
    """
    with np.errstate(all="ignore"):
        return _Run(kernel, operands, Machine(lazy, mxu)).go(split)


class _Run:
    def __init__(self, kernel: Kernel, operands: Sequence[Array], machine: Machine) -> None:
        self.kernel, self.machine = kernel, machine
        dynamic = sum(g < 0 for g in kernel.grid)
        sizes = iter(int(v) for v in operands[:dynamic])
        self.grid = machine.grid = tuple(next(sizes) if g < 0 else g for g in kernel.grid)
        self.prefetched = [np.array(v) for v in operands[dynamic : dynamic + kernel.prefetch]]
        self.arrays = self._arrays(operands, dynamic + kernel.prefetch)
        self.main = kernel.program.main

    def _arrays(self, operands: Sequence[Array], skip: int) -> list[Array]:
        """Each window's array in HBM; an aliased result is the same memory as its operand."""
        inputs = [np.array(v) for v in operands[skip:]]
        results = [poisoned(t.shape, numpy_dtype(t.dtype)) for t in self.kernel.site.types]
        for operand, result in self.kernel.aliases:
            results[result] = inputs[operand - skip]
        return inputs + results

    def go(self, split: int | None) -> tuple[list[Array], MachineStats]:
        machine, main = self.machine, self.main
        machine.env = [None] * main.size
        if machine.mxu == "exact":
            machine.wide = only_into_dots(main, len(self.kernel.scratch))
        code = translate(main.body, machine, TABLE)
        points = grid_points(self.grid)
        windows: list[Any] = []
        for steps in self._cores(points, split):
            windows = self._core(code, points, steps)
        return self._finish(windows, len(points))

    def _cores(self, points: Array, split: int | None) -> list[Array]:
        """The steps of each core, in the order in which the cores go."""
        kinds = self.kernel.semantics
        axes = [a for a, n in enumerate(self.grid) if n > 1 and a < len(kinds) and kinds[a] in PARALLEL]
        if split is None or not axes:
            return [np.arange(len(points))]
        axis = axes[split % len(axes)]
        second = points[:, axis] >= (self.grid[axis] + 1) // 2
        return [np.flatnonzero(second), np.flatnonzero(~second)]

    def _core(self, code: Code, points: Array, steps: Array) -> list[Any]:
        machine, types = self.machine, self.main.types
        first = len(types) - len(self.kernel.scratch)
        held = [self._scratch(self.main.body.arguments[i], types[i]) for i in range(first, len(types))]
        machine.semaphores.extend(s for ref in held if ref.dtype == object for s in ref.ravel())
        windows = [self._window(i, w, points, steps) for i, w in enumerate(self.kernel.windows)]
        for step, number in enumerate(steps):
            ids = [np.int32(v) for v in points[number]]
            refs = [w.enter(step) if isinstance(w, Pipeline) else w for w in windows]
            code.run(machine.env, [*ids, *self.prefetched, *refs, *held])
            for window in windows:
                if isinstance(window, Pipeline):
                    window.leave(step)
        return windows

    def _scratch(self, slot: int, type_: Type) -> Array:
        return fresh(replace(type_, dtype="float32") if slot in self.machine.wide else type_)

    def _window(self, number: int, window: Window, points: Array, steps: Array) -> Pipeline | Array:
        array, type_ = self.arrays[number], self._type(number)
        if window.index_map is not None:
            indices = self._indices(window, points)[steps]
            return Pipeline(window, array, indices, type_.shape, self.machine.stats)
        if window.space not in ("vmem", "smem"):
            return array
        if window.is_output:
            return poisoned(array.shape, array.dtype)
        self.machine.stats.read_bytes += array.nbytes
        return array.copy()

    def _indices(self, window: Window, points: Array) -> Array:
        if window.indices is not None:
            return window.indices
        assert window.index_map is not None
        found = index_map(self.kernel.program.functions[window.index_map], points, self.prefetched)
        if found is None:
            raise Unsupported("index map", f"{window.index_map} of {self.kernel.name}")
        return found

    def _type(self, number: int) -> Type:
        return self.main.types[len(self.grid) + self.kernel.prefetch + number]

    def _finish(self, windows: list[Any], steps: int) -> tuple[list[Array], MachineStats]:
        if any(s.pending for s in self.machine.semaphores):
            raise MachineFault("the kernel ends with a copy that it never waited for")
        stats = self.machine.stats
        stats.steps, stats.runs = steps, 1
        first = len(windows) - len(self.kernel.site.types)
        return [self._result(w, a) for w, a in zip(windows[first:], self.arrays[first:], strict=True)], stats

    def _result(self, window: Pipeline | Array, array: Array) -> Array:
        if isinstance(window, Pipeline) or window is array:
            return array
        self.machine.stats.written_bytes += window.nbytes
        return window

"""HBM bytes that each kernel moves, from its windows' index maps and the DMAs in its body."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.export import Exported

from aka.artifact import dialect
from aka.artifact.decode import ON_CHIP, Array, Kernel, Window, kernels
from aka.artifact.program import Op, Type
from aka.artifact.scalars import Evaluator, grid_points

HBM = frozenset({"any", "hbm"})


@dataclass(frozen=True)
class Traffic:
    """Bytes of one run of a kernel. `exact` is False where data decides (then it is an upper bound for windows, and
    for DMAs counts every branch, and an unknown loop once)."""

    read_bytes: int
    written_bytes: int
    exact: bool

    @property
    def total_bytes(self) -> int:
        return self.read_bytes + self.written_bytes


def hbm_bytes(exported: Exported, prefetched: Sequence[Sequence[Array]] | None = None) -> list[Traffic]:
    """The traffic of each kernel, in the order of `decode.kernels`.

    A block whose index did not change since the step before is not moved again; blocks at the edge are clipped.
    """
    found = kernels(exported, prefetched)
    return [traffic(k, p) for k, p in zip(found, prefetched or [()] * len(found), strict=True)]


def traffic(kernel: Kernel, prefetched: Sequence[Array] = ()) -> Traffic:
    """The traffic of one run of this kernel; `prefetched` are its scalar-prefetch operands where known."""
    if any(g < 0 for g in kernel.grid):
        return Traffic(*_once(kernel), exact=False)
    read, written, exact = _prefetch_bytes(kernel), 0, True
    for window in kernel.windows:
        moved, sure = window_bytes(window, kernel.steps)
        exact &= sure
        read, written = (read, written + moved) if window.is_output else (read + moved, written)
    if kernel.dma_count:
        dma = _dma_bytes(kernel, prefetched)
        read, written, exact = read + dma.read_bytes, written + dma.written_bytes, exact and dma.exact
    return Traffic(read, written, exact)


def window_bytes(window: Window, steps: int) -> tuple[int, bool]:
    """(bytes, whether exactly) that the pipeline moves for one window over the whole grid."""
    if window.space not in ON_CHIP:
        return 0, True
    if window.index_map is None:
        return window.block_bytes, True
    if window.indices is None:
        return window.block_bytes * steps, False
    changed = np.r_[True, (np.diff(window.indices, axis=0) != 0).any(-1)]
    indices, block, array = window.indices[changed], np.array(window.block), np.array(window.array)
    start = indices if window.element else indices * block
    elements = np.clip(np.minimum(array - start, block), 0, block).prod(-1).sum()
    return int(elements) * dialect.bits(window.dtype) // 8, True


def _once(kernel: Kernel) -> tuple[int, int]:
    read = sum(w.block_bytes for w in kernel.windows if w.space in ON_CHIP and not w.is_output)
    return read, sum(w.block_bytes for w in kernel.windows if w.space in ON_CHIP and w.is_output)


def _prefetch_bytes(kernel: Kernel) -> int:
    first = len(kernel.grid)
    return sum(_bytes(t) or 0 for t in kernel.program.main.types[first : first + kernel.prefetch])


def _bytes(type_: Type) -> int | None:
    return None if -1 in type_.shape else math.prod(type_.shape) * dialect.bits(type_.dtype) // 8


def _dma_bytes(kernel: Kernel, prefetched: Sequence[Array]) -> Traffic:
    """Bytes of the explicit DMAs that the body's control flow reaches, over all grid points."""
    moved = {"read": 0, "written": 0}
    sized = True

    def count(op: Op, mask: Any) -> None:
        nonlocal sized
        times = kernel.steps if mask is True else int(np.count_nonzero(np.broadcast_to(mask, kernel.steps)))
        source, destination = op.group(op.operand_types, 0)[0], op.group(op.operand_types, 2)[0]
        size = _bytes(source)
        sized &= size is not None
        moved["read"] += times * (size or 0) * (source.space in HBM)
        moved["written"] += times * (size or 0) * (destination.space in HBM)

    main, points = kernel.program.main, grid_points(kernel.grid)
    ids = [points[:, i] for i in range(points.shape[1])]
    rest = len(main.types) - len(ids) - len(prefetched)
    evaluator = Evaluator(main.size, on_dma=count)
    evaluator.run(main.body, [*ids, *prefetched, *[None] * rest])
    return Traffic(moved["read"], moved["written"], evaluator.exact and sized)

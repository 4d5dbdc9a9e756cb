"""Which HLO op of the compiled program is which kernel of the artifact, and what that kernel moves through HBM."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aka.artifact import hbm
from aka.artifact.decode import Kernel
from aka.artifact.program import walk
from aka.targets.hlo import Row


def pair(rows: Sequence[Row], kernels: Sequence[Kernel]) -> dict[str, int]:
    """Row name to kernel index: by the shapes of operands and results, else by order where the counts agree.

    A function called twice has one kernel and two rows. A row that matches nothing is a kernel of XLA's own.
    """
    calls = [row for row in rows if row.kernel]
    used = [0] * len(kernels)
    found: dict[str, int] = {}
    for place, row in enumerate(calls):
        alike = [i for i, k in enumerate(kernels) if (*k.site.operands, *k.site.results) == row.arrays]
        if not alike and len(calls) == len(kernels):
            alike = [place]
        if alike:
            chosen = min(alike, key=lambda i: used[i])
            used[chosen] += 1
            found[row.name] = chosen
    return found


def kernel_bytes(kernel: Kernel, row: Row) -> tuple[int, bool]:
    """(HBM bytes of one run, whether exactly), without windows on arrays that XLA keeps in VMEM."""
    traffic = hbm.traffic(kernel)
    first = kernel.prefetch + sum(g < 0 for g in kernel.grid)
    resident = [
        window
        for window, in_hbm in zip(kernel.windows, row.in_hbm[first:], strict=False)
        if not in_hbm and all(g >= 0 for g in kernel.grid)
    ]
    spared = sum(hbm.window_bytes(window, kernel.steps)[0] for window in resident)
    return traffic.total_bytes - spared, traffic.exact


def data_dependent(kernel: Kernel) -> bool:
    """Whether data decides how much the kernel does: a dynamic grid, or a loop of unknown length."""
    return kernel.dynamic_loops or any(g < 0 for g in kernel.grid)


def has_loops(kernel: Kernel) -> bool:
    """Whether the body loops: then its static schedule holds the loop's body once, whatever its trip count."""
    return any(op.name in ("scf.for", "scf.while") for op in walk(kernel.program.main.body))


def steps(grid: Sequence[int]) -> int:
    """Steps of a grid; a dynamic axis counts once."""
    return math.prod(max(1, g) for g in grid)

"""What the runner reports of an artifact, as values (its replies are checked against these forms)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelFacts:
    """One kernel of an artifact. `axis_blocks[a]` are the (array dimension, block) pairs that grid axis a walks over;
    no output block moves along the `reduction_axes`. `options` are the names of what it asks of the compiler;
    `narrow_windows`: some window holds floats narrower than float32."""

    name: str
    grid: tuple[int, ...]
    reduction_axes: tuple[int, ...]
    axis_blocks: tuple[tuple[tuple[int, int], ...], ...]
    vmem_bytes: int
    vmem_limit_bytes: int | None
    dynamic_loops: bool
    options: tuple[str, ...] = ()
    narrow_windows: bool = False


@dataclass(frozen=True)
class Outside:
    """A StableHLO operation outside every kernel; `elements` of its largest operand or result, `runs` in one call of
    the program (None: that hangs on values)."""

    name: str
    elements: int
    runs: int | None = 1


@dataclass(frozen=True)
class ArtifactFacts:
    """A whole artifact. `elements` go in and come out; `endless`: some loop's trips cannot be read off the program."""

    kernels: tuple[KernelFacts, ...]
    outside: tuple[Outside, ...]
    targets: tuple[str, ...]
    constants_bytes: int
    feeds: tuple[bool, ...]
    elements: int
    endless: bool = False

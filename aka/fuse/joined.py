"""Heads along lanes: an axis that is taken one step at a time may lie right before the lanes of an array.

[batch, seq, heads, 128] is then [batch, seq, heads * 128] to the kernel, with a head for each step along the lanes. To
bring heads to the front instead, XLA would have to copy the array.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from aka.fuse.axes import LANES, Axes, Dim
from aka.fuse.sizes import is_constant, is_unit


@dataclass(frozen=True)
class Joined:
    """An input or output with its last dimensions as one: `mid` are taken one step at a time, `last` are the lanes,
    `head` stand before."""

    head: tuple[Dim, ...]
    mid: tuple[Dim, ...]
    last: Dim


def joined(axes: Axes, squeezed: Collection[int], value: int) -> Joined | None:
    """How a value's last dimensions may be joined, if an array of it needs no transpose then; `squeezed` axes are taken
    one step at a time."""
    layout = axes.layout(value)
    single = [d.axis in squeezed for d in layout]
    if len(layout) < 3 or single[-1] or not single[-2] or not all(is_unit(d.factor) for d in layout):
        return None
    first = next(i for i in reversed(range(len(layout) - 1)) if i == 0 or not single[i - 1])
    head = single[:first]
    last = layout[-1]
    fits = axes.size(last.axis)[0] % LANES == 0 and not any(d.axis in axes.halos for d in layout)
    if not fits or all(head) or head != sorted(head, reverse=True):
        return None
    return Joined(tuple(layout[:first]), tuple(layout[first:-1]), last)


def always_fits(axes: Axes, blocked: Collection[int], made: Joined) -> bool:
    """Whether blocks along the lanes are whole tiles at every size; `blocked` axes have a block size."""
    size = axes.size(made.last.axis)
    return is_constant(size) and (made.last.axis not in blocked or size[0] == LANES)

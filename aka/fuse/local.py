"""What a variable in a kernel's body holds."""

from __future__ import annotations

from dataclasses import dataclass

from aka.fuse.axes import Dim

Slots = tuple[Dim | None, ...]
"""The dimensions of a block: an axis, or None for a dimension of 1."""


@dataclass(frozen=True)
class Local:
    """A variable of the body. `dtype` is what it holds; `raw` names the block as it was loaded, in `raw_dtype`. No
    slots: a scalar."""

    name: str
    slots: Slots
    dtype: str
    raw: str = ""
    raw_dtype: str = ""

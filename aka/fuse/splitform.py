"""How a value whose channels are split into groups lies in the unsplit one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aka.fuse.axes import groups
from aka.fuse.sizes import NoFit, Size, is_unit, over, times

Shape = tuple[Size, ...]


@dataclass(frozen=True)
class Form:
    """`spans` holds for each dimension of the split value the sizes that it stands for in the unsplit one: none for the
    groups (dimension `group`); for the inside of the groups (`inner`) the channels, and what was joined to them."""

    group: int
    inner: int
    groups: Size
    width: Size
    spans: tuple[Shape, ...]

    @property
    def full(self) -> Shape:
        """The unsplit shape."""
        return tuple(s for span in self.spans for s in span)

    @property
    def channels(self) -> int:
        """The dimension of the channels in the unsplit shape."""
        return self.places(self.inner)[0]

    def places(self, dim: int) -> list[int]:
        """The unsplit dimensions that a split one stands for."""
        first = sum(map(len, self.spans[:dim]))
        return list(range(first, first + len(self.spans[dim])))

    def split(self) -> Shape:
        """The split shape."""
        return tuple(
            self.groups if i == self.group else times(self.width, *span[1:]) if i == self.inner else times(*span)
            for i, span in enumerate(self.spans)
        )

    def agrees(self, other: Form) -> bool:
        """Whether both leave the same dimensions where they are, whatever is of size 1 in either."""
        ranks = [[len(span) for span in form.spans] for form in (self, other)]
        return ranks[0] == ranks[1] and (self.group, self.groups, self.width) == (
            other.group, other.groups, other.width,
        )  # fmt: skip

    def narrow(self, wide: Sequence[Size], channels: Size) -> Shape:
        """The unsplit shape of what has the sizes `wide` in the split one and `channels` channels. Raises NoFit where a
        dimension is in it that was joined from several."""
        made: list[Size] = []
        for i, span in enumerate(self.spans):
            if i == self.inner:
                made += [channels, *(tuple(1 for _ in s) for s in span[1:])]
            elif i != self.group and is_unit(wide[i]):
                made += [wide[i]] * len(span)
            elif i != self.group:
                if len(span) != 1:
                    raise NoFit("an operand with joined dimensions")
                made.append(wide[i])
        return tuple(made)


def form_of(before: Shape, after: Shape) -> Form | None:
    """The form of what a reshape makes, if it splits one dimension in two and does no more than join others."""
    try:
        parts = groups(before, after)
    except NoFit:
        return None
    split = [part for part in parts if len(part[1]) > 1]
    if len(split) != 1 or len(split[0][1]) != 2:
        return None
    (channels, *_), (group, inner) = split[0]
    width = over(before[channels], after[group])
    if width is None or is_unit(width):
        return None
    spans: list[Shape] = [(size,) for size in after]
    for left, right in parts:
        spans[right[-1]] = tuple(before[i] for i in left)
    spans[group] = ()
    return Form(group, inner, after[group], width, tuple(spans))

"""The text of an optimized HLO module, read into instructions.

Only what the meter needs: names, shapes with their memory space, operands, and the attributes as text.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

ENTRY = "ENTRY"
BITS = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2", "f8e4m3b11fnuz", "f8e4m3", "f8e8m0fnu"), 8),
    **dict.fromkeys(("s2", "u2"), 2),
    **dict.fromkeys(("s4", "u4", "f4e2m1fn"), 4),
    **dict.fromkeys(("bf16", "f16", "s16", "u16"), 16),
    **dict.fromkeys(("f32", "s32", "u32"), 32),
    **dict.fromkeys(("f64", "s64", "u64", "c64"), 64),
}
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-<>]+) \(.*\{\s*$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-<>]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_SHAPE = re.compile(r"\b(\w+)\[([\d,]*)\](?:\{([^}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_OPERAND = re.compile(r"%([\w.\-<>]+)")


@dataclass(frozen=True)
class Shape:
    """One array: HLO's dtype name, dimensions, and memory space (0 is HBM, 1 is VMEM, others are tiny)."""

    dtype: str
    dims: tuple[int, ...]
    space: int

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def total_bytes(self) -> int:
        return self.size * BITS[self.dtype] // 8

    @property
    def hbm_bytes(self) -> int:
        return self.total_bytes if self.space == 0 else 0


@dataclass(frozen=True)
class Instruction:
    """`shapes` has one entry per array of the result; `arguments` is the raw text between the parentheses."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    arguments: str
    attributes: str
    root: bool

    @property
    def hbm_bytes(self) -> int:
        return sum(s.hbm_bytes for s in self.shapes)

    def called(self, *keys: str) -> list[str]:
        """Names of the computations that attributes of these keys (`calls`, `body` ...) point at."""
        found: list[str] = []
        for key in keys:
            match = re.search(rf"\b{key}=(?:\{{([^}}]*)\}}|%?([\w.\-<>]+))", self.attributes)
            if match:
                found += _OPERAND.findall(match[1]) if match[1] else [match[2]]
        return found


Computation = dict[str, Instruction]


def parse(text: str) -> dict[str, Computation]:
    """Every computation of the module by name (instructions by name, in order); the entry's name is ENTRY."""
    computations: dict[str, Computation] = {}
    current: Computation | None = None
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            current = computations.setdefault(ENTRY if head[1] else head[2], {})
        elif line.startswith("}"):
            current = None
        elif current is not None and (match := _LINE.match(line)):
            made = _instruction(match)
            current[made.name] = made
    return computations


def shapes(text: str) -> tuple[Shape, ...]:
    """The arrays named in a shape's text, tuples flattened; tokens and unknown dtypes are left out."""
    return tuple(
        Shape(dtype, tuple(int(d) for d in dims.split(",") if d), int(space[1]) if space else 0)
        for dtype, dims, layout in _SHAPE.findall(text)
        if dtype in BITS
        for space in [_SPACE.search(layout)]
    )


def _instruction(match: re.Match[str]) -> Instruction:
    root, name, shape, opcode, rest = match.groups()
    end = _closing(rest)
    arguments = rest[:end]
    return Instruction(
        name=name,
        opcode=opcode,
        shapes=shapes(shape),
        operands=tuple(_OPERAND.findall(arguments)),
        arguments=arguments,
        attributes=rest[end + 1 :],
        root=bool(root),
    )


def _closing(text: str) -> int:
    """Index of the parenthesis that closes the one opened just before `text`."""
    depth = 1
    for i, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return i
    return len(text)

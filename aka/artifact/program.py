"""A Mosaic body as plain data. MLIR objects live only while `read_program` runs; everything else works on these values.

Values are numbered: operands and results are indices into an environment (a list) of `Function.size` slots.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from aka.artifact import dialect
from aka.artifact.errors import Undecodable
from aka.artifact.mlir import context

DYNAMIC = -(2**63)
_SHAPED = re.compile(r"(?:memref|vector|tensor)<((?:[\d?]+x)*)([!\w.]+)")
_SPACE = re.compile(r"memory_space<(\w+)>")
# Operations without an effect: dropped when nobody reads their result.
_PURE = ("arith.", "math.", "vector.")
_PURE_TPU = frozenset(
    {"tpu.transpose", "tpu.iota", "tpu.concatenate", "tpu.bitcast", "memref.load", "tpu.memref_slice"}
)


@dataclass(frozen=True)
class Type:
    """A value's type. `dtype` is NumPy's name, or "dma_semaphore" / "semaphore"; a scalar has kind "scalar"."""

    kind: str
    shape: tuple[int, ...]
    dtype: str
    space: str = ""


@dataclass(frozen=True)
class Block:
    arguments: tuple[int, ...]
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Op:
    """One operation; `operand_types` and `result_types` run parallel to `operands` and `results`."""

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    operand_types: tuple[Type, ...]
    result_types: tuple[Type, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    regions: tuple[Block, ...] = ()

    @property
    def segments(self) -> list[int]:
        """Sizes of the operand groups (MLIR's operandSegmentSizes)."""
        return list(self.attributes.get("operandSegmentSizes", ()))

    def group(self, values: Any, index: int) -> Any:
        """The slice of `values` (one per operand) that belongs to operand group `index`."""
        start = sum(self.segments[:index])
        return values[start : start + self.segments[index]]


@dataclass(frozen=True)
class Function:
    """`types` are the entry arguments' types; `size` is the number of slots that an environment needs."""

    name: str
    body: Block
    types: tuple[Type, ...]
    attributes: dict[str, Any]
    size: int


@dataclass(frozen=True)
class Program:
    """A Mosaic module: `main` is the kernel, `functions` also hold the index maps."""

    version: int
    main: Function
    functions: dict[str, Function]


def walk(block: Block) -> Iterator[Op]:
    """Every operation of the block, outermost first."""
    for op in block.ops:
        yield op
        for region in op.regions:
            yield from walk(region)


def read_program(body: bytes) -> Program:
    """Parse Mosaic bytecode. Raises Undecodable for a version that is not in the dialect table or no kernel in it."""
    with context():
        try:
            module = ir.Module.parse(body)
        except (ir.MLIRError, ValueError) as error:
            raise Undecodable(f"the Mosaic body does not parse: {str(error).splitlines()[0]}") from error
        found: Any = module.operation.attributes
        version = int(found[dialect.VERSION_ATTRIBUTE].value) if dialect.VERSION_ATTRIBUTE in found else 0
        if version not in dialect.KNOWN_VERSIONS:
            raise Undecodable(f"Mosaic version {version} is not one of {sorted(dialect.KNOWN_VERSIONS)}")
        functions = {f.name: f for f in (_Reader().function(op.operation) for op in module.body)}
    main = next((f for f in functions.values() if "scratch_operands" in f.attributes), None)
    if main is None:
        raise Undecodable("the Mosaic body holds no kernel function")
    return Program(version, main, functions)


class _Reader:
    """Numbers the values of one function and copies its operations."""

    def __init__(self) -> None:
        self.slots: dict[Any, int] = {}

    def function(self, op: Any) -> Function:
        attributes = {name: attribute(op.attributes[name]) for name in op.attributes if name != "function_type"}
        entry = op.regions[0].blocks[0]
        types = tuple(read_type(str(v.type)) for v in entry.arguments)
        body = _prune(self.block(entry), set())
        return Function(str(attributes["sym_name"]), body, types, attributes, len(self.slots))

    def slot(self, value: Any) -> int:
        return self.slots.setdefault(value, len(self.slots))

    def block(self, block: Any) -> Block:
        arguments = tuple(self.slot(v) for v in block.arguments)
        return Block(arguments, tuple(self.op(o.operation) for o in block))

    def op(self, op: Any) -> Op:
        operands, results = list(op.operands), list(op.results)
        return Op(
            dialect.canonical(op.name),
            tuple(self.slot(v) for v in operands),
            tuple(self.slot(v) for v in results),
            tuple(read_type(str(v.type)) for v in operands),
            tuple(read_type(str(v.type)) for v in results),
            {name: attribute(op.attributes[name]) for name in op.attributes},
            tuple(self.block(r.blocks[0]) if len(r.blocks) else Block((), ()) for r in op.regions),
        )


def _prune(block: Block, used: set[int]) -> Block:
    """The block without pure operations that nobody reads (a store's unused load of the old value, mostly)."""
    kept = []
    for op in reversed(block.ops):
        pure = op.name in _PURE_TPU or op.name.startswith(_PURE)
        if pure and not used.intersection(op.results):
            continue
        used.update(op.operands)
        regions = tuple(_prune(r, used) for r in op.regions)
        kept.append(Op(op.name, op.operands, op.results, op.operand_types, op.result_types, op.attributes, regions))
    return Block(block.arguments, tuple(reversed(kept)))


@functools.lru_cache(maxsize=4096)
def read_type(text: str) -> Type:
    """`memref<64x256xf32, #tpu.memory_space<vmem>>` and its like; a dynamic size reads as -1."""
    shaped = _SHAPED.match(text)
    if shaped is None:
        return Type("scalar", (), _dtype(text))
    shape = tuple(-1 if d == "?" else int(d) for d in shaped[1].split("x")[:-1])
    space = _SPACE.search(text)
    return Type(text.split("<", 1)[0], shape, _dtype(shaped[2]), space[1] if space else "")


def _dtype(name: str) -> str:
    if name.startswith("!tpu."):
        return name.removeprefix("!tpu.")
    found = dialect.NUMPY.get(name)
    return found.name if found is not None else name


def attribute(value: Any) -> Any:
    """An MLIR attribute as a Python value: numbers, text, tuples, arrays, dictionaries; anything else as its text."""
    if isinstance(value, (ir.DenseI64ArrayAttr, ir.DenseI32ArrayAttr)):
        return tuple(int(v) for v in value)
    if isinstance(value, (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr, ir.StringAttr, ir.FlatSymbolRefAttr)):
        return value.value
    if isinstance(value, ir.DictAttr):
        return {value[i].name: attribute(value[i].attr) for i in range(len(value))}
    if isinstance(value, ir.ArrayAttr):
        return tuple(attribute(v) for v in value)
    if isinstance(value, ir.DenseElementsAttr):
        return attribute(value.get_splat_value()) if value.is_splat else np.array(value)
    return str(value)

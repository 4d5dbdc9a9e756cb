"""What an artifact's kernels are: grid, windows, scratch, and what their bodies do, read from the judged bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.export
import numpy as np
from jax.export import Exported

from aka.artifact import dialect, mlir
from aka.artifact.callsite import CallSite, call_sites
from aka.artifact.errors import Undecodable
from aka.artifact.program import DYNAMIC, Block, Function, Op, Program, Type, read_program, walk
from aka.artifact.scalars import Evaluator, grid_points, index_map

Array = np.ndarray[Any, Any]
ON_CHIP = frozenset({"vmem", "smem"})
MAX_STEPS = 1 << 24
LANES = 128
SUBLANES = 8


@dataclass(frozen=True)
class Window:
    """One operand or result as the kernel sees it, block by block.

    `block` is in elements, `dtype` NumPy's name, `space` "vmem", "smem", "any", "hbm" or "semaphore_mem"; `array` is
    the whole array's shape. `indices` holds the block index at every grid step, int64 of shape (steps, rank), None
    without an index map or where it reads prefetched data. `element` marks indices that count elements, not blocks.
    `pipelined`: the compiler keeps two buffers of it.
    """

    name: str
    block: tuple[int, ...]
    dtype: str
    space: str
    array: tuple[int, ...]
    index_map: str | None
    indices: Array | None
    is_output: bool
    pipelined: bool
    element: bool = False

    @property
    def block_bytes(self) -> int:
        return math.prod(self.block) * dialect.bits(self.dtype) // 8


@dataclass(frozen=True)
class Kernel:
    """One `tpu_custom_call`. Scratch and `scoped` (run_scoped) entries are (shape, dtype, space).

    `branching_axes` are the grid axes whose program id the body reads. `dynamic_loops`: some loop's trip count is not
    known from the artifact. A dynamic grid axis has size -1 and every `indices` None. `aliases` are (operand, result)
    pairs; `options` the compiler options in its config other than the body; `site` where the program calls it.
    """

    name: str
    grid: tuple[int, ...]
    semantics: tuple[str, ...]
    prefetch: int
    windows: tuple[Window, ...]
    scratch: tuple[tuple[tuple[int, ...], str, str], ...]
    dma_count: int
    branching_axes: tuple[int, ...]
    dynamic_loops: bool
    vmem_limit_bytes: int | None
    scoped: tuple[tuple[tuple[int, ...], str, str], ...]
    aliases: tuple[tuple[int, int], ...]
    options: tuple[str, ...]
    site: CallSite
    program: Program

    @property
    def steps(self) -> int:
        return math.prod(self.grid)


def load(data: bytes) -> Exported:
    """The artifact in these bytes. Raises Undecodable if they are none."""
    try:
        return jax.export.deserialize(bytearray(data))
    except (ValueError, TypeError, AssertionError, LookupError, AttributeError, struct.error) as error:
        raise Undecodable(f"not an exported artifact: {error}") from error


def kernels(exported: Exported, prefetched: Sequence[Sequence[Array]] | None = None) -> list[Kernel]:
    """The kernels in the order in which the program first reaches them, each call site's function once.

    `prefetched[i]` are the scalar-prefetch operands of kernel i where the caller knows them (index maps may read them).
    Raises Undecodable for a form or a Mosaic version that the decoder doesn't know.
    """
    with mlir.context():
        module = mlir.module_of(exported)
        found = [(mlir.config(op), site) for op, site in call_sites(module)]
    known = prefetched or [None] * len(found)  # type: ignore[list-item]
    return [read_kernel(conf, site, arrays) for (conf, site), arrays in zip(found, known, strict=True)]


def read_kernel(conf: dict[str, Any], site: CallSite, prefetched: Sequence[Array] | None = None) -> Kernel:
    """The kernel that a call's `backend_config` holds."""
    program = read_program(mlir.body(conf))
    main = program.main
    grid = tuple(-1 if g == DYNAMIC else g for g in main.attributes.get("iteration_bounds", ()))
    if math.prod(g for g in grid if g > 0) > MAX_STEPS:
        raise Undecodable(f"kernel {main.name} has a grid of {grid}: more than {MAX_STEPS} steps")
    prefetch = int(main.attributes.get("scalar_prefetch", 0))
    ops = list(walk(main.body))
    return Kernel(
        name=main.name,
        grid=grid,
        semantics=tuple(_enum(s) for s in main.attributes.get("dimension_semantics", ())),
        prefetch=prefetch,
        windows=_windows(program, grid, prefetch, site, prefetched),
        scratch=tuple((t.shape, t.dtype, t.space) for t in _scratch_types(main)),
        dma_count=sum(o.name == "tpu.enqueue_dma" for o in ops),
        branching_axes=_branching(main, len(grid), ops),
        dynamic_loops=_has_dynamic_loops(main, ops),
        vmem_limit_bytes=_vmem_limit(conf),
        scoped=tuple(_scoped(o.result_types[0]) for o in ops if o.name in ("memref.alloca", "tpu.sem_alloc")),
        aliases=site.aliases,
        options=tuple(sorted(conf["custom_call_config"].keys() - {"body"} | conf.keys() - {"custom_call_config"})),
        site=site,
        program=program,
    )


def _enum(text: str) -> str:
    return text.rsplit("<", 1)[-1].rstrip(">")


def _scoped(type_: Type) -> tuple[tuple[int, ...], str, str]:
    return type_.shape, type_.dtype, type_.space


def _scratch_types(main: Function) -> tuple[Type, ...]:
    count = int(main.attributes["scratch_operands"])
    return main.types[len(main.types) - count :]


def _windows(
    program: Program, grid: tuple[int, ...], prefetch: int, site: CallSite, prefetched: Sequence[Array] | None
) -> tuple[Window, ...]:
    main = program.main
    first = len(grid) + prefetch
    types = main.types[first : len(main.types) - int(main.attributes["scratch_operands"])]
    params: tuple[dict[str, Any], ...] = main.attributes.get("window_params", ()) or ({},) * len(types)
    inputs = len(types) - len(site.results)
    dynamic = sum(g < 0 for g in grid)
    arrays = [*site.operands[prefetch + dynamic :], *site.results]
    if len(params) != len(types) or len(arrays) != len(types):
        raise Undecodable(f"kernel {main.name} has {len(types)} windows for {len(arrays)} arrays")
    points = grid_points(grid) if dynamic == 0 else None
    return tuple(
        _window(program, t, dict(p), a, i >= inputs, points, prefetched, i)
        for i, (t, p, a) in enumerate(zip(types, params, arrays, strict=True))
    )


def _window(
    program: Program,
    type_: Type,
    params: dict[str, Any],
    array: tuple[int, ...],
    is_output: bool,
    points: Array | None,
    prefetched: Sequence[Array] | None,
    number: int,
) -> Window:
    map_name = str(params.get("transform_indices", ""))
    blocked = bool(map_name) and type_.space in ON_CHIP
    mode = next((str(params[m]) for m in dialect.MODE_ATTRIBUTES if m in params), "")
    indices = index_map(program.functions[map_name], points, prefetched) if blocked and points is not None else None
    return Window(
        name=f"{'out' if is_output else 'in'}{number}",
        block=tuple(params["window_bounds"]) if blocked else type_.shape,
        dtype=type_.dtype,
        space=type_.space,
        array=array,
        index_map=map_name if blocked else None,
        indices=indices,
        is_output=is_output,
        pipelined=blocked and "synchronous" not in mode,
        element="element_window" in str(params.get(dialect.WINDOW_KIND_ATTRIBUTE, "")),
    )


def _branching(main: Function, rank: int, ops: list[Op]) -> tuple[int, ...]:
    used = {slot for op in ops for slot in op.operands}
    return tuple(i for i in range(rank) if main.body.arguments[i] in used)


def _has_dynamic_loops(main: Function, ops: list[Op]) -> bool:
    """Whether any trip count stays unknown when every program id is 0 and no memory is known."""
    if not any(op.name in ("scf.for", "scf.while") for op in ops):
        return False
    probe = Evaluator(main.size, trips_only=True)
    ids = [0] * sum(t.kind == "scalar" for t in main.types)
    probe.run(main.body, ids + [None] * (len(main.types) - len(ids)))
    return probe.unknown_loops > 0


def _vmem_limit(conf: dict[str, Any]) -> int | None:
    sizes = [c["size"] for c in conf.get("scoped_memory_configs", ()) if c.get("memory_space") == 1]
    return int(sizes[0]) if sizes else None


def padded_bytes(shape: Sequence[int], dtype: str) -> int:
    """Bytes in VMEM after padding to tiles: 128 lanes, and rows to a multiple of 8, or below 8 to a power of two.

    A row holds at least one 32-bit word, so 16-bit types have at least 2 rows and 8-bit types 4. The rule reproduces
    the allocation sizes in the v5e and v6e compilers' out-of-memory errors (libtpu 0.0.42.1) for 1 to 40 rows.
    """
    width = dialect.bits(dtype)
    *lead, rows, minor = (1, 1, *shape)
    few = max(32 // width, 1 << (rows - 1).bit_length())
    padded = few if rows < SUBLANES else math.ceil(rows / SUBLANES) * SUBLANES
    return math.prod(lead) * padded * math.ceil(minor / LANES) * LANES * width // 8


def vmem_bytes(kernel: Kernel) -> int:
    """VMEM that the kernel needs: two buffers of each pipelined window, one of each resident one, and all scratch.

    A lower bound of what the compiler allocates (it adds spills and internal scratch); prune with it, don't report it.
    """
    windows = sum(
        padded_bytes(w.block, w.dtype) * (2 if w.pipelined else 1) for w in kernel.windows if w.space == "vmem"
    )
    scratch = sum(padded_bytes(shape, dtype) for shape, dtype, space in kernel.scratch if space == "vmem")
    return windows + scratch + _scoped_bytes(kernel.program.main.body)


def _scoped_bytes(block: Block) -> int:
    """Most VMEM that run_scoped holds at once: scopes that follow each other share it."""
    types = [op.result_types[0] for op in block.ops if op.name == "memref.alloca"]
    own = sum(padded_bytes(t.shape, t.dtype) for t in types if t.space == "vmem")
    return own + max((_scoped_bytes(region) for op in block.ops for region in op.regions), default=0)

"""Role `runner`: our own code, in a process kept for the run. Reads facts off artifacts, compiles and runs them.

No candidate's Python ever comes here: only artifact bytes do.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from aka.evaluate import sampling, wire


def warm() -> None:
    import jax

    from aka.artifact import decode, run, structure
    from aka.targets import aot

    del jax, decode, run, structure, aot


def run_inspect(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """blob: a TPU artifact. Result: `kernels` (grid, VMEM bytes, reduction axes, ...), `outside` (StableHLO
    operations around them), `endless` (a loop of unknown length), `elements` (in and out), `targets` of custom calls,
    `constants_bytes`, `feeds` (does each kernel reach the result)."""
    from aka.artifact import decode, structure

    exported = decode.load(blobs[0])
    targets = structure.custom_call_targets(exported)
    foreign = [t for t in targets if t != "tpu_custom_call"]
    kernels = [] if foreign else decode.kernels(exported)
    return {
        "kernels": [_kernel(k) for k in kernels],
        "outside": [{"name": o.name, "elements": o.elements, "runs": o.runs} for o in structure.outside(exported)],
        "endless": structure.endless(exported),
        "elements": structure.interface_elements(exported),
        "targets": targets,
        "constants_bytes": structure.constants_bytes(exported),
        "feeds": structure.feeds_output(exported),
    }, []


def _kernel(kernel: Any) -> dict[str, Any]:
    from aka.artifact import decode
    from aka.artifact.lifting import NARROW

    return {
        "name": kernel.name,
        "grid": list(kernel.grid),
        "reduction_axes": reduction_axes(kernel),
        "axis_blocks": axis_blocks(kernel),
        "vmem_bytes": decode.vmem_bytes(kernel),
        "vmem_limit_bytes": kernel.vmem_limit_bytes,
        "dynamic_loops": kernel.dynamic_loops,
        "narrow_windows": any(w.dtype.startswith(NARROW) for w in kernel.windows),
        "options": list(kernel.options),
    }


def reduction_axes(kernel: Any) -> list[int]:
    """Grid axes along which no output block moves: results are accumulated over their steps."""
    outputs = [w.indices for w in kernel.windows if w.is_output and w.indices is not None]
    return [
        a
        for a, n in enumerate(kernel.grid)
        if n > 1 and outputs and not any(_moves(i, kernel.grid, a) for i in outputs)
    ]


def axis_blocks(kernel: Any) -> list[list[list[int]]]:
    """For each grid axis, the [array dimension, block size] pairs that its steps walk over, in the order of the
    windows. Told by the index maps at made-up grid points, so that an axis of one step has its pairs too."""
    rank = len(kernel.grid)
    made: list[list[list[int]]] = [[] for _ in range(rank)]
    for window in kernel.windows:
        if window.index_map is not None and rank:
            for axis, dimension in sorted(_walks(kernel, window, rank)):
                made[axis].append([window.array[dimension], window.block[dimension]])
    return made


def _walks(kernel: Any, window: Any, rank: int) -> set[tuple[int, int]]:
    """(grid axis, dimension) pairs: which block indices change when one program id grows. Two starting points, since
    a map may clamp or divide its ids."""
    from aka.artifact.scalars import index_map

    found: set[tuple[int, int]] = set()
    for start in (0, 8):
        points = np.full((rank + 1, rank), start, np.int64)
        points[1:] += 8 * np.eye(rank, dtype=np.int64)
        indices = index_map(kernel.program.functions[window.index_map], points, None)
        if indices is not None:
            axes, dimensions = np.nonzero(indices[1:] != indices[:1])
            found |= {(int(a), int(d)) for a, d in zip(axes, dimensions, strict=True)}
    return found


def _moves(indices: np.ndarray[Any, Any], grid: tuple[int, ...], axis: int) -> bool:
    steps = indices.reshape(*grid, -1)
    return bool((np.diff(steps, axis=axis) != 0).any())


def run_compile(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: chip. blob: a TPU artifact. Result: ok, and floor_us (see `aka.targets.meter`), or code, message, evidence
    when the compiler refuses it."""
    from aka.artifact import decode
    from aka.targets import aot, meter

    exported = decode.load(blobs[0])
    made = aot.compile(exported, args["chip"])
    if isinstance(made, aot.CompileFailure):
        return {"ok": False, "code": made.code, "message": made.message, "evidence": made.evidence}, []
    return {"ok": True, "floor_us": meter.floor_us(exported, made.hlo_text, args["chip"])}, []


def run_execute(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: arrays (specs), split (which parallel axis is dealt to two cores; None: one core), mxu ("bf16", or "exact":
    as if the matrix unit rounded nothing), lazy (copies land at their wait, not at their start). blobs: a TPU artifact,
    then the arrays. Runs the artifact itself: StableHLO on the CPU, the Mosaic body in the NumPy machine. `rows` says
    what of the outputs is wanted. Result: `arrays` specs, or `fault` {code, message}."""
    from aka.artifact import errors

    try:
        prepared = _prepared(blobs[0], args["mxu"], args["lazy"])
        made, _ = prepared.run(wire.unpack(args["arrays"], blobs[1:]), args["split"])
    except errors.Unsupported as error:
        return {"fault": {"code": "unsupported_feature", "message": str(error)}}, []
    except errors.MachineFault as error:
        return {"fault": {"code": "incorrect", "message": str(error)}}, []
    specs, data = wire.pack(_taken(made, args))
    return {"fault": None, "arrays": specs}, list(data)


def _taken(arrays: list[Any], args: dict[str, Any]) -> list[Any]:
    """What of the outputs is sent back: `rows`, one entry for each; without it, everything."""
    return [sampling.take(a, rows) for a, rows in zip(arrays, args.get("rows") or [None] * len(arrays), strict=True)]


@functools.lru_cache(maxsize=8)
def _prepared(artifact: bytes, mxu: Any, lazy: bool) -> Any:
    """Compiled once for all input families; only code of ours is kept, and every run starts in fresh memory."""
    from aka.artifact import decode, run

    return run.Prepared(decode.load(artifact), mxu=mxu, lazy=lazy)


def run_ghost(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: arrays (specs), fill ("nan" or a number) and whole, which take the place of what the kernels give. blobs:
    a TPU artifact, then the arrays. Runs what is left on the CPU. Result: `arrays` specs."""
    import jax

    made = _ghost(blobs[0], float(args["fill"]), int(args["whole"]))(*wire.unpack(args["arrays"], blobs[1:]))
    specs, data = wire.pack([np.asarray(m) for m in jax.tree.leaves(made)])
    return {"arrays": specs}, list(data)


def _ghost(artifact: bytes, fill: float, whole: int) -> Any:
    import jax

    from aka.artifact import decode, ghost

    return jax.jit(ghost.ghost(decode.load(artifact), fill, whole)[0].call)


def run_call(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: arrays (specs). blobs: a CPU artifact, then the arrays, which are cast to its argument dtypes (float64 for
    the exact reference). `rows` says what of the outputs is wanted. Result: `arrays` specs; blobs: the outputs."""
    import jax

    fn, dtypes = _callable(blobs[0])
    arrays = wire.unpack(args["arrays"], blobs[1:])
    with jax.enable_x64(True):
        made = fn(*(jax.numpy.asarray(a.astype(d)) for a, d in zip(arrays, dtypes, strict=True)))
        specs, data = wire.pack(_taken([np.asarray(m) for m in jax.tree.leaves(made)], args))
    return {"arrays": specs}, list(data)


@functools.lru_cache(maxsize=32)
def _callable(artifact: bytes) -> tuple[Any, list[Any]]:
    import jax

    from aka.artifact import decode

    exported = decode.load(artifact)
    return jax.jit(exported.call), [a.dtype for a in exported.in_avals]


OPS = {
    "inspect": run_inspect,
    "compile": run_compile,
    "execute": run_execute,
    "ghost": run_ghost,
    "call": run_call,
}

"""Role `runner`: our own code in a fresh process. It reads facts off an artifact, compiles it and runs it.

No candidate's Python ever comes here: only artifact bytes do.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from aka.evaluate import wire


def warm() -> None:
    import jax

    from aka.artifact import decode, run, structure
    from aka.targets import aot

    del jax, decode, run, structure, aot


def run_inspect(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """blob: a TPU artifact. Result: `kernels` (grid, VMEM bytes, reduction axes, ...), `outside` (StableHLO
    operations around them), `targets` of custom calls, `constants_bytes`, `feeds` (does each kernel reach the
    result)."""
    from aka.artifact import decode, structure

    exported = decode.load(blobs[0])
    targets = structure.custom_call_targets(exported)
    foreign = [t for t in targets if t != "tpu_custom_call"]
    kernels = [] if foreign else decode.kernels(exported)
    return {
        "kernels": [_kernel(k) for k in kernels],
        "outside": [{"name": o.name, "elements": o.elements} for o in structure.outside(exported)],
        "targets": targets,
        "constants_bytes": structure.constants_bytes(exported),
        "feeds": structure.feeds_output(exported),
    }, []


def _kernel(kernel: Any) -> dict[str, Any]:
    from aka.artifact import decode

    return {
        "name": kernel.name,
        "grid": list(kernel.grid),
        "reduction_axes": reduction_axes(kernel),
        "axis_blocks": axis_blocks(kernel),
        "vmem_bytes": decode.vmem_bytes(kernel),
        "vmem_limit_bytes": kernel.vmem_limit_bytes,
        "dynamic_loops": kernel.dynamic_loops,
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
    """For each grid axis, the distinct [array dimension, block size] pairs that its steps walk over."""
    made: list[list[list[int]]] = []
    for axis in range(len(kernel.grid)):
        pairs: set[tuple[int, int]] = set()
        for window in kernel.windows:
            if window.indices is None or kernel.grid[axis] < 2:
                continue
            steps = window.indices.reshape(*kernel.grid, -1)
            moved = (np.diff(steps, axis=axis) != 0).any(axis=tuple(range(steps.ndim - 1)))
            pairs |= {(window.array[d], window.block[d]) for d in np.flatnonzero(moved)}
        made.append([list(p) for p in sorted(pairs)])
    return made


def _moves(indices: np.ndarray[Any, Any], grid: tuple[int, ...], axis: int) -> bool:
    steps = indices.reshape(*grid, -1)
    return bool((np.diff(steps, axis=axis) != 0).any())


def run_compile(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: chip. blob: a TPU artifact. Result: ok, and code, message, evidence when the compiler refuses it."""
    from aka.artifact import decode
    from aka.targets import aot

    made = aot.compile(decode.load(blobs[0]), args["chip"])
    if isinstance(made, aot.CompileFailure):
        return {"ok": False, "code": made.code, "message": made.message, "evidence": made.evidence}, []
    return {"ok": True}, []


def run_execute(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: arrays (specs). blobs: a TPU artifact, then the arrays. Runs the artifact itself: StableHLO on the CPU, the
    Mosaic body in the NumPy machine. Result: `arrays` specs, or `fault` {code, message}."""
    from aka.artifact import errors

    try:
        made, _ = _prepared(blobs[0]).run(wire.unpack(args["arrays"], blobs[1:]))
    except errors.Unsupported as error:
        return {"fault": {"code": "unsupported_feature", "message": str(error)}}, []
    except errors.MachineFault as error:
        return {"fault": {"code": "incorrect", "message": str(error)}}, []
    specs, data = wire.pack(made)
    return {"fault": None, "arrays": specs}, list(data)


@functools.lru_cache(maxsize=8)
def _prepared(artifact: bytes) -> Any:
    """Compiled once for all input families; only code of ours is kept, and every run starts in fresh memory."""
    from aka.artifact import decode, run

    return run.Prepared(decode.load(artifact))


def run_call(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: arrays (specs). blobs: a CPU artifact, then the arrays, which are cast to its argument dtypes (float64 for
    the exact reference). Result: `arrays` specs; blobs: the outputs."""
    import jax

    fn, dtypes = _callable(blobs[0])
    arrays = wire.unpack(args["arrays"], blobs[1:])
    with jax.enable_x64(True):
        made = fn(*(jax.numpy.asarray(a.astype(d)) for a, d in zip(arrays, dtypes, strict=True)))
        specs, data = wire.pack([np.asarray(m) for m in jax.tree.leaves(made)])
    return {"arrays": specs}, list(data)


@functools.lru_cache(maxsize=32)
def _callable(artifact: bytes) -> tuple[Any, list[Any]]:
    import jax

    from aka.artifact import decode

    exported = decode.load(artifact)
    return jax.jit(exported.call), [a.dtype for a in exported.in_avals]


OPS = {"inspect": run_inspect, "compile": run_compile, "execute": run_execute, "call": run_call}

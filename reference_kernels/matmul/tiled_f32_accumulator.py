"""---
id: matmul-tiled-f32-accumulator
title: Tiled matmul, k innermost, f32 accumulator in VMEM
family: matmul
op: y = x @ w
signature: "x:f[m,k], w:f[k,n] -> f[m,n]"
statics: {}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [k-innermost, f32-accumulator, whole-k-block, masked-tail, vmem-budget]
primitives: [dot_general]
when_to_use: >-
  The frame for fused matmuls. bf16 4096^3 in blocks of 1024 x 1024 x 4096 (whole k): cycles take 717 us on v5e and 162
  on v6e (MXU floor 698 and 150; HBM 246 and 123); 1024 x 1024 x 1024: 735 and 176, but 184 us of HBM time on v6e.
  8192 x 8192 x 28672 with whole k: 19.64 and 4.26 ms (floor 19.53 and 4.19), with block_k 1024 20.19 and 4.73.
when_xla_wins: >-
  A plain matmul is a tie at best: XLA's 4096^3 is estimated at 718 us on v5e. Take this kernel for what is fused around
  it.
sources:
  - "estimated: static LLO profile of this kernel, libtpu 0.0.52, jax 0.10.2, a few output tiles extrapolated"
  - "MXU floor: 2 m n k over 197 (v5e) and 918 (v6e) TFLOP/s"
  - "XLA: sum over HLO ops of max(static cycles, HBM floor), libtpu 0.0.52, jax 0.10.2, from an earlier study"
---
The grid is (m, n, k) with k innermost, so one output tile stays in an f32 scratch while the blocks along k stream past;
it is rounded once, when it is complete. The blocks decide the HBM traffic: x is read n / block_n times and w
m / block_m times. With block_k = k the index of x's block does not change along n, so the pipeline fetches x only once.

If block_k does not divide k, the last blocks are padded with garbage, and garbage times zero may be NaN: both operands
are masked there, in a branch of its own, so that the other steps pay nothing. Padding along m and n needs no care, for
it only reaches outputs that are not written.

What it teaches: the order of the grid, where the accumulator lives, when it is zeroed and flushed, and how to choose
blocks: square and large until the traffic takes less time than the MXU.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_m": 512, "block_n": 1024, "block_k": 1024}


def reference(x: jax.Array, w: jax.Array) -> jax.Array:
    """x @ w, accumulated in f32; the result has the promoted dtype of the two."""
    return jnp.dot(x, w, preferred_element_type=jnp.float32).astype(jnp.result_type(x, w))


def _vmem_bytes(bm: int, bn: int, bk: int, x_size: int, w_size: int, y_size: int) -> int:
    """Two buffers of each operand and of the output, accumulator, one product, a spilled operand, and slack."""
    x_block, w_block = bm * bk * x_size, bk * bn * w_size
    return 2 * (x_block + w_block + bm * bn * y_size) + 8 * bm * bn + max(x_block, w_block) + 2**21


def _within(block: jax.Array, axis: int, size: int) -> jax.Array:
    index = lax.broadcasted_iota(jnp.int32, block.shape, axis)
    return jnp.where(index < size, block, jnp.zeros_like(block))


def _body(x_ref: Any, w_ref: Any, y_ref: Any, acc_ref: Any, *, steps: int, tail: int) -> None:
    step = pl.program_id(2)

    @pl.when(step == 0)
    def _() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def accumulate(x: jax.Array, w: jax.Array) -> None:
        acc_ref[...] += jnp.dot(x, w, preferred_element_type=jnp.float32)

    if tail:
        pl.when(step < steps - 1)(lambda: accumulate(x_ref[...], w_ref[...]))
        pl.when(step == steps - 1)(lambda: accumulate(_within(x_ref[...], 1, tail), _within(w_ref[...], 0, tail)))
    else:
        accumulate(x_ref[...], w_ref[...])

    @pl.when(step == steps - 1)
    def _() -> None:
        y_ref[...] = acc_ref[...].astype(y_ref.dtype)


def kernel(x: jax.Array, w: jax.Array, *, block_m: int = 512, block_n: int = 1024, block_k: int = 1024) -> jax.Array:
    """Same as `reference`. Raises ValueError if an array is empty or the blocks cannot fit in any chip's VMEM."""
    (m, depth), n = x.shape, w.shape[1]
    if m * n * depth == 0:
        raise ValueError("A matmul of empty arrays has nothing to compute.")
    bm, bn, bk = min(block_m, m), min(block_n, n), min(block_k, depth)
    dtype = jnp.result_type(x, w)
    needed = _vmem_bytes(bm, bn, bk, x.dtype.itemsize, w.dtype.itemsize, dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"Blocks of {bm} x {bn} x {bk} do not fit in VMEM.")
    steps = pl.cdiv(depth, bk)
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, steps=steps, tail=depth % bk),
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), steps),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(x, w)
    return y


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Block sizes up to the array. The first values together fit the chip's VMEM (16, 64 or 128 MiB a core)."""
    x, w = shapes[0], shapes[1]
    (m, depth), n = x.shape, w.shape[1]
    sizes = (x.dtype.itemsize, w.dtype.itemsize, max(x.dtype.itemsize, w.dtype.itemsize))
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    whole = depth if depth <= 8192 else 2048
    presets = ((1024, 1024, whole), (1024, 1024, 1024), (512, 1024, 1024), (512, 512, 512), (256, 256, 512))
    first = next(p for p in presets if p == presets[-1] or _vmem_bytes(*p, *sizes) <= budget)

    def values(best: int, size: int, others: tuple[int, ...]) -> list[int]:
        return list(dict.fromkeys([min(best, size), *(v for v in others if v < size)]))

    return {
        "block_m": values(first[0], m, (512, 1024, 256, 2048, 128)),
        "block_n": values(first[1], n, (1024, 512, 2048, 256, 128)),
        "block_k": values(first[2], depth, (1024, 512, 2048, 4096, 256)),
    }

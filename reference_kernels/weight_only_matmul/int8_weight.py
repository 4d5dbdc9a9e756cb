"""---
id: weight-only-matmul-int8-weight
title: Float activations times an int8 weight with a scale per column
family: weight_only_matmul
op: y = (x @ w) * scale
signature: "x:f[*rows,k], w:int8[k,n], scale:f[*unit,n] -> f[*rows,n]"
statics: {}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [weight-streaming, dequantise-in-vmem, scale-after-accumulate, k-innermost, f32-accumulator, masked-tail]
primitives: [convert_element_type, dot_general, mul]
when_to_use: >-
  Decoding. bf16 32 rows, int8 weight 8192 x 28672, all of k in a block: 289.8 us on v5e and 144.9 us on v6e, the time
  of one trip of the weight. With block_k 2048 and x fetched again for each block along n it was 307.1 and 153.5 us.
when_xla_wins: >-
  XLA's time was a floor, 290.0 and 144.9 us: no gain was shown. Many rows were compiled, but not measured.
sources:
  - "estimated: aka profile of this kernel and of XLA's version, libtpu 0.0.42.1, jax 0.10.2"
  - "estimated: aka check of this kernel, libtpu 0.0.42.1, jax 0.10.2"
---
The weight travels as int8 and becomes the activations' dtype in VMEM, block by block; every int8 is exact in bf16. Its
scale is constant along k, so it is applied to the f32 sum, once per output, rather than to each of the k x n weights.
With few rows the time is the weight's trip from HBM, which is half of bf16's; conversion must stay below it, on a
vector unit that has nothing else to do. With many rows a block of the weight is converted once for each block of rows,
so those are large.

What it teaches: dequantise after the copy, scale after the sum. Past the end of k only x is masked: an int8 is never
NaN.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_m": 256, "block_n": 512, "block_k": 2048}


def reference(x: jax.Array, w: jax.Array, scale: jax.Array) -> jax.Array:
    """x @ w, accumulated in f32, times a scale per column ([n] or [1, n]); the result has the dtype of x."""
    y = jnp.dot(x, w.astype(x.dtype), preferred_element_type=jnp.float32)
    return (y * scale.reshape(1, -1).astype(jnp.float32)).astype(x.dtype)


def _vmem_bytes(bm: int, bn: int, bk: int, x_size: int) -> int:
    """Two buffers of each operand and of y, accumulator, one product, the widened weight (bf16 by way of 32 bits), and
    slack."""
    return 2 * (bm * bk * x_size + bk * bn + bm * bn * x_size) + 8 * bm * bn + 4 * bk * bn + 2**21


def _within(block: jax.Array, axis: int, size: int) -> jax.Array:
    index = lax.broadcasted_iota(jnp.int32, block.shape, axis)
    return jnp.where(index < size, block, jnp.zeros_like(block))


def _body(x_ref: Any, w_ref: Any, scale_ref: Any, y_ref: Any, acc_ref: Any, *, steps: int, tail: int) -> None:
    step = pl.program_id(2)

    @pl.when(step == 0)
    def _() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def accumulate(x: jax.Array, w: jax.Array) -> None:
        acc_ref[...] += jnp.dot(x, w, preferred_element_type=jnp.float32)

    if tail:
        # No int8 is NaN, so zeros on the side of x are enough.
        pl.when(step < steps - 1)(lambda: accumulate(x_ref[...], w_ref[...].astype(x_ref.dtype)))
        pl.when(step == steps - 1)(
            lambda: accumulate(_within(x_ref[...], 1, tail), w_ref[...].astype(x_ref.dtype)),
        )
    else:
        accumulate(x_ref[...], w_ref[...].astype(x_ref.dtype))

    @pl.when(step == steps - 1)
    def _() -> None:
        y_ref[...] = (acc_ref[...] * scale_ref[...].astype(jnp.float32)).astype(y_ref.dtype)


def kernel(
    x: jax.Array, w: jax.Array, scale: jax.Array, *, block_m: int = 256, block_n: int = 512, block_k: int = 2048
) -> jax.Array:
    """Same as `reference`. Raises ValueError if an array is empty, there is not one scale per column, or the blocks
    cannot fit in any chip's VMEM."""
    if x.size * w.size == 0:
        raise ValueError("A matmul of empty arrays has nothing to compute.")
    depth, n = w.shape
    if scale.size != n:
        raise ValueError("The scales must be one per column of w.")
    flat = x.reshape(-1, depth)
    m = flat.shape[0]
    bm, bn, bk = min(block_m, m), min(block_n, n), min(block_k, depth)
    needed = _vmem_bytes(bm, bn, bk, x.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"Blocks of {bm} x {bn} x {bk} do not fit in VMEM.")
    steps = pl.cdiv(depth, bk)
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, steps=steps, tail=depth % bk),
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), steps),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
            pl.BlockSpec((1, bn), lambda i, j, k: (0, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(flat, w, scale.reshape(1, n))
    return y.reshape(*x.shape[:-1], n)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Few rows: wide and deep blocks of the weight. Many: square tiles. The first values together fit the chip's VMEM
    (16, 64 or 128 MiB a core)."""
    x, w = shapes[0], shapes[1]
    (depth, n), m = w.shape, max(1, x.size // x.shape[-1])
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    presets = ((2048, 1024, 1024), (1024, 1024, 1024), (512, 1024, 1024), (512, 512, 512))
    if m <= 256:
        # With all of k in a block, x keeps its place and is fetched once.
        whole = depth if depth <= 8192 else 2048
        presets = ((256, 512, whole), (256, 256, whole), (256, 512, 1024), (256, 512, 512))
    fits = [p for p in presets if _vmem_bytes(min(p[0], m), min(p[1], n), min(p[2], depth), x.dtype.itemsize) <= budget]
    first = (fits or presets[-1:])[0]

    def values(best: int, size: int, others: tuple[int, ...]) -> list[int]:
        return list(dict.fromkeys([min(best, size), *(v for v in others if v < size)]))

    return {
        "block_m": values(first[0], m, (512, 1024, 256)),
        "block_n": values(first[1], n, (512, 1024, 2048, 256)),
        "block_k": values(first[2], depth, (1024, 2048, 512, 4096)),
    }

"""---
id: int8-matmul-w8a8-scaled
title: int8 x int8 matmul with row and column scales applied to the int32 sum
family: int8_matmul
op: y = (x @ w) * x_scale[:, None] * w_scale
signature: "x:int8[m,k], w:int8[k,n], x_scale:f[m,*one], w_scale:f[*unit,n] -> f[m,n]"
statics: {to_bf16: bool}
dtypes: [int8]
chips: [v5e, v5p, v6e, tpu7x]
techniques: [int8-mxu, scale-after-accumulate, i32-accumulator, whole-k-block, k-innermost, masked-tail, vmem-budget]
primitives: [dot_general, convert_element_type, mul]
when_to_use: >-
  Quantised layers that add more to the epilogue. 1024 x 1024 x 2048 to bf16 is estimated at 17.7 us on v5e and 6.2 us
  on v6e (MXU floor 10.9 and 2.3).
when_xla_wins: >-
  The plain scaled product at 1024 x 1024 x 2048: XLA is estimated at 15.6 us on v5e and 5.7 us on v6e. With only two
  output tiles, the first fetch and the last write hide behind nothing. Larger shapes were compiled, but not measured.
sources:
  - "estimated: aka profile of this kernel and of XLA's version, libtpu 0.0.42.1, jax 0.10.2"
  - "MXU floor: 2 m n k over 197 (v5e) and 918 (v6e) TFLOP/s, int8 over 393 and 1836 TOP/s"
---
The product of int8 by int8 is exact in int32, and a scale per row or per column does not depend on k: so both scales
wait until the sum is complete, and the loop is nothing but int8 matmuls, at twice the bf16 rate on v5e, v5p and v6e
(tpu7x has no int8 unit and runs it at the rate of bf16; on v4 Mosaic has no int8 matmul). The operands are a quarter of
f32's bytes, so blocks with all of k fit, and then no accumulator is carried either.

Past the end of k only x is masked: an integer has no NaN, and anything times zero is zero.

What it teaches: what is constant along k belongs in the epilogue; integers sum exactly in any order up to 2^31 / 127^2
= 133,000 terms; int8 has no compare or select in Mosaic, so the mask is made in 32 bits.
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


def reference(
    x: jax.Array, w: jax.Array, x_scale: jax.Array, w_scale: jax.Array, *, to_bf16: bool = False
) -> jax.Array:
    """The int32 product times a scale per row ([m] or [m, 1]) and per column ([n] or [1, n]), in f32; the result has
    the scales' promoted dtype, or bfloat16."""
    product = jnp.dot(x, w, preferred_element_type=jnp.int32).astype(jnp.float32)
    y = product * x_scale.reshape(-1, 1).astype(jnp.float32) * w_scale.reshape(1, -1).astype(jnp.float32)
    return y.astype(jnp.bfloat16 if to_bf16 else jnp.result_type(x_scale, w_scale))


def _vmem_bytes(bm: int, bn: int, bk: int, y_size: int) -> int:
    """Two buffers of each operand and of y, accumulator, one product, row scales (a column of 128 lanes), and slack."""
    return 2 * (bm * bk + bk * bn + bm * bn * y_size + 512 * bm) + 8 * bm * bn + max(bm, bn) * bk + 2**21


def _within(block: jax.Array, axis: int, size: int) -> jax.Array:
    # Mosaic compares and selects 32-bit integers only.
    index = lax.broadcasted_iota(jnp.int32, block.shape, axis)
    return jnp.where(index < size, block.astype(jnp.int32), 0).astype(jnp.int8)


def _scaled(product: jax.Array, x_scale_ref: Any, w_scale_ref: Any) -> jax.Array:
    rows, columns = x_scale_ref[...].astype(jnp.float32), w_scale_ref[...].astype(jnp.float32)
    return product.astype(jnp.float32) * rows * columns


def _whole(x_ref: Any, w_ref: Any, x_scale_ref: Any, w_scale_ref: Any, y_ref: Any) -> None:
    product = jnp.dot(x_ref[...], w_ref[...], preferred_element_type=jnp.int32)
    y_ref[...] = _scaled(product, x_scale_ref, w_scale_ref).astype(y_ref.dtype)


def _steps(
    x_ref: Any, w_ref: Any, x_scale_ref: Any, w_scale_ref: Any, y_ref: Any, acc_ref: Any, *, steps: int, tail: int
) -> None:
    step = pl.program_id(2)

    @pl.when(step == 0)
    def _() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def accumulate(x: jax.Array, w: jax.Array) -> None:
        acc_ref[...] += jnp.dot(x, w, preferred_element_type=jnp.int32)

    if tail:
        # Any int8 times zero is zero, so it is enough to mask one operand: integers have no NaN.
        pl.when(step < steps - 1)(lambda: accumulate(x_ref[...], w_ref[...]))
        pl.when(step == steps - 1)(lambda: accumulate(_within(x_ref[...], 1, tail), w_ref[...]))
    else:
        accumulate(x_ref[...], w_ref[...])

    @pl.when(step == steps - 1)
    def _() -> None:
        y_ref[...] = _scaled(acc_ref[...], x_scale_ref, w_scale_ref).astype(y_ref.dtype)


def kernel(
    x: jax.Array,
    w: jax.Array,
    x_scale: jax.Array,
    w_scale: jax.Array,
    *,
    to_bf16: bool = False,
    block_m: int = 512,
    block_n: int = 1024,
    block_k: int = 1024,
) -> jax.Array:
    """Same as `reference`. Raises ValueError if an array is empty, there is not one scale per row and per column, or
    the blocks cannot fit in any chip's VMEM."""
    (m, depth), n = x.shape, w.shape[1]
    if m * n * depth == 0:
        raise ValueError("A matmul of empty arrays has nothing to compute.")
    if x_scale.size != m or w_scale.size != n:
        raise ValueError("The scales must be one per row of x and one per column of w.")
    bm, bn, bk = min(block_m, m), min(block_n, n), min(block_k, depth)
    dtype = jnp.dtype(jnp.bfloat16) if to_bf16 else jnp.result_type(x_scale, w_scale)
    needed = _vmem_bytes(bm, bn, bk, dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"Blocks of {bm} x {bn} x {bk} do not fit in VMEM.")
    steps = pl.cdiv(depth, bk)
    y: jax.Array = pl.pallas_call(
        _whole if steps == 1 else functools.partial(_steps, steps=steps, tail=depth % bk),
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), steps),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
            pl.BlockSpec((bm, 1), lambda i, j, k: (i, 0)),
            pl.BlockSpec((1, bn), lambda i, j, k: (0, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype),
        scratch_shapes=[] if steps == 1 else [pltpu.VMEM((bm, bn), jnp.int32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(x, w, x_scale.reshape(m, 1), w_scale.reshape(1, n))
    return y


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Block sizes up to the array. The first values together fit the chip's VMEM (16, 64 or 128 MiB a core)."""
    x, w = shapes[0], shapes[1]
    (m, depth), n = x.shape, w.shape[1]
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    whole = depth if depth <= 8192 else 4096
    presets = ((1024, 1024, whole), (1024, 1024, 2048), (1024, 1024, 1024), (512, 1024, 1024), (512, 512, 512))
    fits = [p for p in presets if _vmem_bytes(min(p[0], m), min(p[1], n), min(p[2], depth), 4) <= budget]
    first = (fits or presets[-1:])[0]

    def values(best: int, size: int, others: tuple[int, ...]) -> list[int]:
        return list(dict.fromkeys([min(best, size), *(v for v in others if v < size)]))

    return {
        "block_m": values(first[0], m, (512, 1024, 256, 2048)),
        "block_n": values(first[1], n, (1024, 512, 256, 2048)),
        "block_k": values(first[2], depth, (1024, 2048, 512, 4096)),
    }

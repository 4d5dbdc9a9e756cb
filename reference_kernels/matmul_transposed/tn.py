"""---
id: matmul-transposed-tn
title: Matmul with a transposed left operand, contracted over both first axes
family: matmul_transposed
op: y = x.T @ w
signature: "x:f[k,m], w:f[k,n] -> f[m,n]"
statics: {}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [contract-first-axes, no-transpose, k-innermost, f32-accumulator, whole-k-block, masked-tail, vmem-budget]
primitives: [dot_general, transpose]
when_to_use: >-
  Gradients of weights with something fused around them. bf16 1024 x 1152 x 2048 is estimated at 32.3 us on v5e and
  10.3 us on v6e; the same product with the other operand transposed takes 32.0 and 10.2.
when_xla_wins: >-
  The plain product: XLA is estimated at 31.3 us on v5e at that shape, 3 % less.
sources:
  - "estimated: aka profile of this kernel and of XLA's version, libtpu 0.0.42.1, jax 0.10.2"
  - "estimated: aka check of this kernel and of nt.py, libtpu 0.0.42.1, jax 0.10.2"
---
A weight's gradient is x.T @ dy: both operands have the contracted axis first. Blocks of x are fetched as they lie,
(block_k, block_m), and `dot_general` contracts both first axes. The left operand streams through the matrix unit row by
row, so here the compiler transposes each block of x on its way there, which the transpose units do beside the matrix
unit. Each block of x is transposed once for every tile along n: wide tiles make it rare.

What it teaches: of the two transposed forms this is the dearer one, yet cheaper than a transposed copy in HBM; and
block_m is now the lane axis of x's blocks, so it has to be a multiple of 128 (or all of m).
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
    """x.T @ w, accumulated in f32; the result has the promoted dtype of the two."""
    return jnp.dot(x.T, w, preferred_element_type=jnp.float32).astype(jnp.result_type(x, w))


def _vmem_bytes(bm: int, bn: int, bk: int, x_size: int, w_size: int, y_size: int) -> int:
    """Two buffers of each operand and of the output, accumulator, one product, the transposed operand, and slack."""
    x_block, w_block = bm * bk * x_size, bk * bn * w_size
    return 2 * (x_block + w_block + bm * bn * y_size) + 8 * bm * bn + max(x_block, w_block) + 2**21


def _within(block: jax.Array, axis: int, size: int) -> jax.Array:
    index = lax.broadcasted_iota(jnp.int32, block.shape, axis)
    return jnp.where(index < size, block, jnp.zeros_like(block))


def _product(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.dot_general(x, w, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def _whole(x_ref: Any, w_ref: Any, y_ref: Any) -> None:
    y_ref[...] = _product(x_ref[...], w_ref[...]).astype(y_ref.dtype)


def _steps(x_ref: Any, w_ref: Any, y_ref: Any, acc_ref: Any, *, steps: int, tail: int) -> None:
    step = pl.program_id(2)

    @pl.when(step == 0)
    def _() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def accumulate(x: jax.Array, w: jax.Array) -> None:
        acc_ref[...] += _product(x, w)

    if tail:
        pl.when(step < steps - 1)(lambda: accumulate(x_ref[...], w_ref[...]))
        pl.when(step == steps - 1)(lambda: accumulate(_within(x_ref[...], 0, tail), _within(w_ref[...], 0, tail)))
    else:
        accumulate(x_ref[...], w_ref[...])

    @pl.when(step == steps - 1)
    def _() -> None:
        y_ref[...] = acc_ref[...].astype(y_ref.dtype)


def kernel(x: jax.Array, w: jax.Array, *, block_m: int = 512, block_n: int = 1024, block_k: int = 1024) -> jax.Array:
    """Same as `reference`. Raises ValueError if an array is empty or the blocks cannot fit in any chip's VMEM."""
    if x.size * w.size == 0:
        raise ValueError("A matmul of empty arrays has nothing to compute.")
    (depth, m), n = x.shape, w.shape[1]
    bm, bn, bk = min(block_m, m), min(block_n, n), min(block_k, depth)
    dtype = jnp.result_type(x, w)
    needed = _vmem_bytes(bm, bn, bk, x.dtype.itemsize, w.dtype.itemsize, dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"Blocks of {bm} x {bn} x {bk} do not fit in VMEM.")
    steps = pl.cdiv(depth, bk)
    y: jax.Array = pl.pallas_call(
        _whole if steps == 1 else functools.partial(_steps, steps=steps, tail=depth % bk),
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), steps),
        in_specs=[pl.BlockSpec((bk, bm), lambda i, j, k: (k, i)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype),
        scratch_shapes=[] if steps == 1 else [pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(x, w)
    return y


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Block sizes up to the array. The first values together fit the chip's VMEM (16, 64 or 128 MiB a core)."""
    x, w = shapes[0], shapes[1]
    (depth, m), n = x.shape, w.shape[1]
    sizes = (x.dtype.itemsize, w.dtype.itemsize, max(x.dtype.itemsize, w.dtype.itemsize))
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    whole = depth if depth <= 8192 else 2048
    presets = ((1024, 1024, whole), (1024, 1024, 1024), (512, 1024, 1024), (512, 512, 512), (256, 256, 512))
    fits = [p for p in presets if _vmem_bytes(min(p[0], m), min(p[1], n), min(p[2], depth), *sizes) <= budget]
    first = (fits or presets[-1:])[0]

    def values(best: int, size: int, others: tuple[int, ...]) -> list[int]:
        return list(dict.fromkeys([min(best, size), *(v for v in others if v < size)]))

    return {
        "block_m": values(first[0], m, (512, 1024, 256, 2048)),
        "block_n": values(first[1], n, (1024, 512, 256, 2048)),
        "block_k": values(first[2], depth, (1024, 512, 2048, 4096)),
    }

"""---
id: matmul-transposed-nt
title: Matmul with a transposed right operand, contracted over both last axes
family: matmul_transposed
op: y = x @ w.T
signature: "x:f[*rows,k], w:f[n,k] -> f[*rows,n]"
statics: {}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [contract-last-axes, no-transpose, k-innermost, f32-accumulator, whole-k-block, masked-tail, vmem-budget]
primitives: [dot_general, transpose]
when_to_use: >-
  A weight kept as [out, in], or scores of queries and keys. bf16 1024 x 1152 x 2048 is estimated at 32.0 us on v5e
  and 10.2 us on v6e (MXU floor 24.5 and 5.3).
when_xla_wins: >-
  XLA contracts any axes without a copy too; its time was not measured at this shape. Expect a tie for a plain
  product, and take this kernel for what is fused around it.
sources:
  - "estimated: aka check of this kernel, libtpu 0.0.42.1, jax 0.10.2"
  - "MXU floor: 2 m n k over 197 (v5e) and 918 (v6e) TFLOP/s, int8 over 393 and 1836 TOP/s"
---
PyTorch keeps a linear layer's weight as [out, in], and attention's scores are q @ k.T: the right operand comes with its
contracted axis last. Here its blocks are fetched as they lie, (block_n, block_k), and `dot_general` contracts both last
axes. The matrix unit can load a transposed tile as its stationary operand, so nothing is transposed in HBM and no copy
of the weight is made. The rest is the tiled matmul: k innermost, an f32 sum, both operands masked past the end of k.

What it teaches: write the contraction that the data has. `w.T` inside a kernel, or before it, is a copy that somebody
pays for: a transpose outside is a trip of the whole weight through HBM.
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
    """x @ w.T, accumulated in f32; the result has the promoted dtype of the two."""
    return jnp.dot(x, w.T, preferred_element_type=jnp.float32).astype(jnp.result_type(x, w))


def _vmem_bytes(bm: int, bn: int, bk: int, x_size: int, w_size: int, y_size: int) -> int:
    """Two buffers of each operand and of the output, accumulator, one product, the transposed operand, and slack."""
    x_block, w_block = bm * bk * x_size, bk * bn * w_size
    return 2 * (x_block + w_block + bm * bn * y_size) + 8 * bm * bn + w_block + 2**21


def _within(block: jax.Array, axis: int, size: int) -> jax.Array:
    index = lax.broadcasted_iota(jnp.int32, block.shape, axis)
    return jnp.where(index < size, block, jnp.zeros_like(block))


def _product(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.dot_general(x, w, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


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
        pl.when(step == steps - 1)(lambda: accumulate(_within(x_ref[...], 1, tail), _within(w_ref[...], 1, tail)))
    else:
        accumulate(x_ref[...], w_ref[...])

    @pl.when(step == steps - 1)
    def _() -> None:
        y_ref[...] = acc_ref[...].astype(y_ref.dtype)


def kernel(x: jax.Array, w: jax.Array, *, block_m: int = 512, block_n: int = 1024, block_k: int = 1024) -> jax.Array:
    """Same as `reference`. Raises ValueError if an array is empty or the blocks cannot fit in any chip's VMEM."""
    if x.size * w.size == 0:
        raise ValueError("A matmul of empty arrays has nothing to compute.")
    n, depth = w.shape
    flat = x.reshape(-1, depth)
    m = flat.shape[0]
    bm, bn, bk = min(block_m, m), min(block_n, n), min(block_k, depth)
    dtype = jnp.result_type(x, w)
    needed = _vmem_bytes(bm, bn, bk, x.dtype.itemsize, w.dtype.itemsize, dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"Blocks of {bm} x {bn} x {bk} do not fit in VMEM.")
    steps = pl.cdiv(depth, bk)
    y: jax.Array = pl.pallas_call(
        _whole if steps == 1 else functools.partial(_steps, steps=steps, tail=depth % bk),
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), steps),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bn, bk), lambda i, j, k: (j, k))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype),
        scratch_shapes=[] if steps == 1 else [pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(flat, w)
    return y.reshape(*x.shape[:-1], n)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Block sizes up to the array. The first values together fit the chip's VMEM (16, 64 or 128 MiB a core)."""
    x, w = shapes[0], shapes[1]
    (n, depth), m = w.shape, max(1, x.size // x.shape[-1])
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

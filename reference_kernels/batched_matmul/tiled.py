"""---
id: batched-matmul-tiled
title: Batched matmul, several small products per grid step or tiles of a large one
family: batched_matmul
op: y[b] = a[b] @ w[b]
signature: "a:f[*b,m,k], w:f[*b,k,n] -> f[*b,m,n]"
statics: {}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [batch-block, k-innermost, f32-accumulator, whole-k-block, masked-tail, vmem-budget]
primitives: [dot_general]
when_to_use: >-
  Small products in large batches, where one step should do several. bf16 512 products of 256 x 128 x 384 are
  estimated at 225.3 us on v5e and 112.7 us on v6e: HBM time.
when_xla_wins: >-
  Never clearly, and this kernel does not win either: XLA's time at that shape is a floor, and the same 225.3 and
  112.7 us. Take it for what is fused around it.
sources:
  - "estimated: aka profile of this kernel and of XLA's version, libtpu 0.0.42.1, jax 0.10.2"
---
The batch is the outermost axis of the grid. Large matrices are tiled as in any matmul, one of the batch at a time.
Small ones would leave a grid step with little to do (a step costs some hundred cycles of bookkeeping, and copies of a
few KiB do not reach HBM's bandwidth), so block_b of them share a step: one long copy each way, and a loop, unrolled
when it is traced, over products that do not depend on each other. With block_k = k no accumulator is kept.

What it teaches: choose the batch's block so that a step moves some MiB, and no more: the first fetch hides behind
nothing. A last block past the end of the batch computes on garbage, and nothing of it is written.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_b": 1, "block_m": 512, "block_n": 512, "block_k": 1024}


def reference(a: jax.Array, w: jax.Array) -> jax.Array:
    """a[b] @ w[b] for every leading index b, accumulated in f32; the result has the promoted dtype of the two."""
    return jnp.matmul(a, w, preferred_element_type=jnp.float32).astype(jnp.result_type(a, w))


def _vmem_bytes(bb: int, bm: int, bn: int, bk: int, a_size: int, w_size: int, y_size: int) -> int:
    """Two buffers of each operand and of y, accumulators, one product, a spilled operand, and slack. A block's last two
    dimensions are padded to whole tiles of 8 x 128."""
    bm, bn, bk = -(-bm // 8) * 8, -(-bn // 128) * 128, -(-bk // 128) * 128
    a_block, w_block = bm * bk * a_size, bk * bn * w_size
    return bb * (2 * (a_block + w_block + bm * bn * y_size) + 4 * bm * bn) + 4 * bm * bn + max(a_block, w_block) + 2**21


def _within(block: jax.Array, axis: int, size: int) -> jax.Array:
    index = lax.broadcasted_iota(jnp.int32, block.shape, axis)
    return jnp.where(index < size, block, jnp.zeros_like(block))


def _whole(a_ref: Any, w_ref: Any, y_ref: Any) -> None:
    for b in range(a_ref.shape[0]):
        y_ref[b] = jnp.dot(a_ref[b], w_ref[b], preferred_element_type=jnp.float32).astype(y_ref.dtype)


def _steps(a_ref: Any, w_ref: Any, y_ref: Any, acc_ref: Any, *, steps: int, tail: int) -> None:
    step = pl.program_id(3)

    @pl.when(step == 0)
    def _() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def accumulate(size: int) -> None:
        for b in range(a_ref.shape[0]):
            a, w = a_ref[b], w_ref[b]
            if size:
                a, w = _within(a, 1, size), _within(w, 0, size)
            acc_ref[b] += jnp.dot(a, w, preferred_element_type=jnp.float32)

    if tail:
        pl.when(step < steps - 1)(lambda: accumulate(0))
        pl.when(step == steps - 1)(lambda: accumulate(tail))
    else:
        accumulate(0)

    @pl.when(step == steps - 1)
    def _() -> None:
        y_ref[...] = acc_ref[...].astype(y_ref.dtype)


def kernel(
    a: jax.Array,
    w: jax.Array,
    *,
    block_b: int = 1,
    block_m: int = 512,
    block_n: int = 512,
    block_k: int = 1024,
) -> jax.Array:
    """Same as `reference`. Raises ValueError if an array is empty or the blocks cannot fit in any chip's VMEM."""
    if a.size * w.size == 0:
        raise ValueError("A matmul of empty arrays has nothing to compute.")
    (m, depth), n, batch = a.shape[-2:], w.shape[-1], math.prod(a.shape[:-2])
    bb, bm, bn, bk = min(block_b, batch), min(block_m, m), min(block_n, n), min(block_k, depth)
    dtype = jnp.result_type(a, w)
    needed = _vmem_bytes(bb, bm, bn, bk, a.dtype.itemsize, w.dtype.itemsize, dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"Blocks of {bb} x {bm} x {bn} x {bk} do not fit in VMEM.")
    steps = pl.cdiv(depth, bk)
    y: jax.Array = pl.pallas_call(
        _whole if steps == 1 else functools.partial(_steps, steps=steps, tail=depth % bk),
        grid=(pl.cdiv(batch, bb), pl.cdiv(m, bm), pl.cdiv(n, bn), steps),
        in_specs=[
            pl.BlockSpec((bb, bm, bk), lambda b, i, j, k: (b, i, k)),
            pl.BlockSpec((bb, bk, bn), lambda b, i, j, k: (b, k, j)),
        ],
        out_specs=pl.BlockSpec((bb, bm, bn), lambda b, i, j, k: (b, i, j)),
        out_shape=jax.ShapeDtypeStruct((batch, m, n), dtype),
        scratch_shapes=[] if steps == 1 else [pltpu.VMEM((bb, bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(a.reshape(batch, m, depth), w.reshape(batch, depth, n))
    return y.reshape(*a.shape[:-1], n)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Blocks of about 1024 x 1024 with all of k, and so many of a batch of small products that a step does as much.
    The first values together fit the chip's VMEM (16, 64 or 128 MiB a core)."""
    a, w = shapes[0], shapes[1]
    (m, depth), n, batch = a.shape[-2:], w.shape[-1], max(1, math.prod(a.shape[:-2]))
    sizes = (a.dtype.itemsize, w.dtype.itemsize, max(a.dtype.itemsize, w.dtype.itemsize))
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    whole = depth if depth <= 4096 else 2048
    presets = [(b, s, s, k) for s, k in ((1024, whole), (512, whole), (512, 512)) for b in (16, 8, 4, 2, 1)]
    clamped = [(min(b, batch), min(p, m), min(q, n), min(k, depth)) for b, p, q, k in presets]
    # 1024^2 x 512 multiply-adds are enough for a step; more of a batch only makes the first fetch longer.
    fits = [
        c for c in clamped if _vmem_bytes(*c, *sizes) <= budget and (c[0] == 1 or math.prod(c) <= 1024 * 1024 * 512)
    ]
    first = (fits or clamped[-1:])[0]

    def values(best: int, size: int, others: tuple[int, ...]) -> list[int]:
        return list(dict.fromkeys([best, *(v for v in others if v < size)]))

    return {
        "block_b": values(first[0], batch, (1, 2, 4, 8)),
        "block_m": values(first[1], m, (512, 1024, 256)),
        "block_n": values(first[2], n, (512, 1024, 256)),
        "block_k": values(first[3], depth, (512, 1024, 2048)),
    }

"""---
id: decode-matmul-skinny
title: Matmul of a few rows, streaming the weight through VMEM once
family: decode_matmul
op: y = x @ w
signature: "x:f[*rows,k], w:f[k,n] -> f[*rows,n]"
statics: {}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [weight-streaming, resident-activations, large-contiguous-dma, f32-accumulator, masked-tail, vmem-budget]
primitives: [dot_general]
when_to_use: >-
  A few rows. bf16 16 x 8192 x 28672 with all of k in a block: 575.0 us on v5e and 287.5 us on v6e, the time of one
  trip of the weight. With block_k 2048 and x fetched again for each block along n it was 583.7 and 291.8 us.
when_xla_wins: >-
  A plain product is a tie: XLA is estimated at 575.0 us on v5e and 287.5 us on v6e. Take this kernel for what is
  fused around it.
sources:
  - "estimated: aka profile of this kernel and of XLA's version, libtpu 0.0.42.1, jax 0.10.2"
  - "estimated: aka check of this kernel, libtpu 0.0.42.1, jax 0.10.2"
---
A decoding step multiplies a few rows by a whole weight: 2 m operations for each weight, far below what the matrix unit
needs to be busy, so the time is one trip of the weight through HBM. All rows are in every step; the grid walks over the
weight's blocks, and the pipeline fetches the next while this one is multiplied. The blocks are some MiB, so that each
copy runs at full bandwidth and the per-step cost disappears, yet small beside the weight, for the first one is waited
for.

What it teaches: with one operand small, keep it whole and tile only the other; the figure to reach is bytes of the
weight over the bandwidth, and nothing in the body matters as long as it stays below that.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_n": 512, "block_k": 2048}


def reference(x: jax.Array, w: jax.Array) -> jax.Array:
    """x @ w, accumulated in f32; the result has the promoted dtype of the two."""
    return jnp.dot(x, w, preferred_element_type=jnp.float32).astype(jnp.result_type(x, w))


def _vmem_bytes(m: int, bn: int, bk: int, x_size: int, w_size: int, y_size: int) -> int:
    """Two buffers of each operand and of y, accumulator and one product, a weight block's spills, and slack. Rows come
    in tiles of 16."""
    m = -(-m // 16) * 16
    return 2 * (m * bk * x_size + bk * bn * w_size + m * bn * y_size) + 8 * m * bn + bk * bn * w_size + 2**21


def _within(block: jax.Array, axis: int, size: int) -> jax.Array:
    index = lax.broadcasted_iota(jnp.int32, block.shape, axis)
    return jnp.where(index < size, block, jnp.zeros_like(block))


def _body(x_ref: Any, w_ref: Any, y_ref: Any, acc_ref: Any, *, steps: int, tail: int) -> None:
    step = pl.program_id(1)

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


def kernel(x: jax.Array, w: jax.Array, *, block_n: int = 512, block_k: int = 2048) -> jax.Array:
    """Same as `reference`. All rows are in every block: meant for a few, up to some hundred. Raises ValueError if an
    array is empty or the blocks cannot fit in any chip's VMEM."""
    if x.size * w.size == 0:
        raise ValueError("A matmul of empty arrays has nothing to compute.")
    depth, n = w.shape
    flat = x.reshape(-1, depth)
    m, bn, bk = flat.shape[0], min(block_n, n), min(block_k, depth)
    dtype = jnp.result_type(x, w)
    needed = _vmem_bytes(m, bn, bk, x.dtype.itemsize, w.dtype.itemsize, dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"{m} rows and weight blocks of {bk} x {bn} do not fit in VMEM.")
    steps = pl.cdiv(depth, bk)
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, steps=steps, tail=depth % bk),
        grid=(pl.cdiv(n, bn), steps),
        in_specs=[pl.BlockSpec((m, bk), lambda j, k: (0, k)), pl.BlockSpec((bk, bn), lambda j, k: (k, j))],
        out_specs=pl.BlockSpec((m, bn), lambda j, k: (0, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype),
        scratch_shapes=[pltpu.VMEM((m, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=needed if needed > 16 * 2**20 else None
        ),
    )(flat, w)
    return y.reshape(*x.shape[:-1], n)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Weight blocks of up to 8 MiB. The first values together fit the chip's VMEM (16, 64 or 128 MiB a core); where the
    rows alone do not, the smallest block is named and the kernel refuses it."""
    x, w = shapes[0], shapes[1]
    (depth, n), m = w.shape, max(1, x.size // x.shape[-1])
    sizes = (x.dtype.itemsize, w.dtype.itemsize, max(x.dtype.itemsize, w.dtype.itemsize))
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    # With all of k in a block, x keeps its place and is fetched once.
    whole = depth if depth <= 16384 else 2048
    presets = ((1024, whole), (512, whole), (256, whole), (1024, 2048), (512, 1024), (256, 512), (128, 256))
    clamped = [(min(p[0], n), min(p[1], depth)) for p in presets]
    fits = [p for p in clamped if _vmem_bytes(m, *p, *sizes) <= budget and p[0] * p[1] * sizes[1] <= 8 * 2**20]
    first = (fits or presets[-1:])[0]

    def values(best: int, size: int, others: tuple[int, ...]) -> list[int]:
        return list(dict.fromkeys([min(best, size), *(v for v in others if v < size)]))

    return {
        "block_n": values(first[0], n, (512, 1024, 2048, 256)),
        "block_k": values(first[1], depth, (2048, 1024, 4096, 8192, 512)),
    }

"""---
id: matmul-bias-gelu-epilogue
title: Matmul with bias and GELU applied to the tile in VMEM
family: matmul
op: y = gelu(x @ w + bias)
signature: "x:f[m,k], w:f[k,n], bias:f[n] -> f[m,n]"
statics: {approximate: bool}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [fused-epilogue, k-innermost, f32-accumulator, masked-tail, vmem-budget]
primitives: [dot_general, add, mul, tanh, erf, integer_pow]
when_to_use: >-
  Large blocks. f32 4096 x 8192 x 8192 at default precision in blocks of 2048 x 2048 x 512: cycles take 2930 us on v5e,
  where HBM takes 1475, and 748 us on v6e, where HBM takes 737. At 1024 x 1024 x 1024 they take 2943 us on v5e, where
  HBM takes 2786, and 816 us on v6e, where HBM takes 1393.
when_xla_wins: >-
  XLA is estimated at 3.09 ms on v5e and 0.86 ms on v6e at this shape, so it wins on v6e wherever the blocks are small
  (1393 us at 1024 x 1024), and the gain on v5e is 5 % at best.
sources:
  - "estimated: static LLO profile of this kernel, libtpu 0.0.52, jax 0.10.2, one and two output tiles extrapolated"
  - "HBM time: bytes by block index maps over 819 GB/s (v5e) and 1638 GB/s (v6e)"
  - "XLA: sum over HLO ops of max(static cycles, HBM floor), libtpu 0.0.52, jax 0.10.2, from an earlier study"
---
The tiled matmul of `tiled_f32_accumulator.py`, whose last step along k adds the bias and applies GELU to the f32
accumulator before the only rounding. The epilogue costs no HBM traffic, and its VALU work is done once per output
element while the MXU does 2 k floating-point operations for it.

What it teaches: where an epilogue belongs (in the flush, never in every step along k), and that with f32 operands the
traffic is twice that of bf16, so the blocks must be larger before the MXU is the bound: at 2048 x 2048 an f32 operand
is read half as often as at 1024 x 1024.
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

TUNED_PARAMS = {"block_m": 512, "block_n": 1024, "block_k": 1024}


def reference(x: jax.Array, w: jax.Array, bias: jax.Array, *, approximate: bool = True) -> jax.Array:
    """gelu(x @ w + bias), accumulated in f32; the result has the promoted dtype of the three."""
    y = jnp.dot(x, w, preferred_element_type=jnp.float32) + bias.astype(jnp.float32)
    return jax.nn.gelu(y, approximate=approximate).astype(jnp.result_type(x, w, bias))


def _vmem_bytes(bm: int, bn: int, bk: int, x_size: int, w_size: int, y_size: int) -> int:
    """Two buffers of each operand and of the output, accumulator, one product, a spilled operand, and slack."""
    x_block, w_block = bm * bk * x_size, bk * bn * w_size
    return 2 * (x_block + w_block + bm * bn * y_size) + 8 * bm * bn + max(x_block, w_block) + 2**21


def _within(block: jax.Array, axis: int, size: int) -> jax.Array:
    index = lax.broadcasted_iota(jnp.int32, block.shape, axis)
    return jnp.where(index < size, block, jnp.zeros_like(block))


def _gelu(x: jax.Array, approximate: bool) -> jax.Array:
    # The exact form is spelled with erf: Mosaic has no erfc, which jax.nn.gelu uses.
    if approximate:
        return 0.5 * x * (1.0 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + lax.erf(x * math.sqrt(0.5)))


def _body(
    x_ref: Any, w_ref: Any, bias_ref: Any, y_ref: Any, acc_ref: Any, *, steps: int, tail: int, approximate: bool
) -> None:
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
        y = _gelu(acc_ref[...] + bias_ref[...].astype(jnp.float32), approximate)
        y_ref[...] = y.astype(y_ref.dtype)


def kernel(
    x: jax.Array,
    w: jax.Array,
    bias: jax.Array,
    *,
    approximate: bool = True,
    block_m: int = 512,
    block_n: int = 1024,
    block_k: int = 1024,
) -> jax.Array:
    """Same as `reference`. Raises ValueError if an array is empty or the blocks cannot fit in any chip's VMEM."""
    (m, depth), n = x.shape, w.shape[1]
    if m * n * depth == 0:
        raise ValueError("A matmul of empty arrays has nothing to compute.")
    bm, bn, bk = min(block_m, m), min(block_n, n), min(block_k, depth)
    dtype = jnp.result_type(x, w, bias)
    needed = _vmem_bytes(bm, bn, bk, x.dtype.itemsize, w.dtype.itemsize, dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"Blocks of {bm} x {bn} x {bk} do not fit in VMEM.")
    steps = pl.cdiv(depth, bk)
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, steps=steps, tail=depth % bk, approximate=approximate),
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), steps),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
            pl.BlockSpec((1, bn), lambda i, j, k: (0, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(x, w, bias.reshape(1, n))
    return y


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Block sizes up to the array. The first values together fit the chip's VMEM (16, 64 or 128 MiB a core)."""
    x, w = shapes[0], shapes[1]
    (m, depth), n = x.shape, w.shape[1]
    sizes = (x.dtype.itemsize, w.dtype.itemsize, max(x.dtype.itemsize, w.dtype.itemsize))
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    presets = ((2048, 2048, 512), (1024, 1024, 1024), (512, 1024, 1024), (512, 512, 512), (256, 256, 512))
    first = next(p for p in presets if p == presets[-1] or _vmem_bytes(*p, *sizes) <= budget)

    def values(best: int, size: int, others: tuple[int, ...]) -> list[int]:
        return list(dict.fromkeys([min(best, size), *(v for v in others if v < size)]))

    return {
        "block_m": values(first[0], m, (512, 1024, 256, 2048, 128)),
        "block_n": values(first[1], n, (1024, 512, 2048, 256, 128)),
        "block_k": values(first[2], depth, (1024, 512, 2048, 4096, 256)),
    }

"""---
id: layer-norm-row-blocks
title: LayerNorm with scale and bias, one pass over row blocks
family: layer_norm
op: y = (x - mean(x, -1)) * rsqrt(var(x, -1) + eps) * scale + bias
signature: "x:f[*rows,d], scale:f[d], bias:f[d] -> f[*rows,d]"
statics: {eps: float}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [row-blocks, single-pass, two-pass-variance, f32-statistics, vmem-budget]
primitives: [reduce_sum, div, sub, mul, square, integer_pow, rsqrt, add, convert_element_type]
tags: [normalization, layernorm, transformer]
when_to_use: >-
  Rows that fit VMEM several at a time. bf16[8,4096,4096] with block_rows 128: 657 us on v5e and 328 us on v6e, which
  is the time of one pass over HBM; the cycles (716,012 and 501,261) take 477 and 286 us beside it.
when_xla_wins: >-
  No case was measured. At this shape XLA is estimated at 1633 us on v5e and 657 us on v6e. Where XLA fuses the norm
  with its neighbours, this kernel adds a trip through HBM.
sources:
  - "estimated: aka check and aka profile of this kernel on
    examples/layernorm.py, libtpu 0.0.42.1, jax 0.10.2"
---
Mean, variance and result need each row three times. A block of whole rows sits in VMEM, so only the first reading
costs HBM traffic. That also pays for the exact form of the variance: the mean of (x - mean)^2 and not
mean(x^2) - mean^2, which loses every digit where the mean is large beside the spread.

What it teaches: once the rows are in VMEM another pass over them is nearly free, so take the numerically good formula.
Statistics and arithmetic are in f32; only the last cast rounds. Rows that pad the last block hold garbage that is never
written back, and since the reduced axis is never split nothing needs a mask.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_rows": 128}


def reference(x: jax.Array, scale: jax.Array, bias: jax.Array, *, eps: float = 1e-5) -> jax.Array:
    """LayerNorm over the last axis in f32; the result has the dtype of x."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    inverse = lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + eps)
    return (centred * inverse * scale.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)


def _vmem_bytes(rows: int, d: int, itemsize: int) -> int:
    """Two buffers each of input and output, one f32 copy of the block, scale, bias and slack."""
    return rows * d * (4 * itemsize + 4) + 128 * d + 2**20


def _body(x_ref: Any, scale_ref: Any, bias_ref: Any, o_ref: Any, *, eps: float) -> None:
    x = x_ref[...].astype(jnp.float32)
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    inverse = lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + eps)
    scaled = centred * inverse * scale_ref[...].astype(jnp.float32)
    o_ref[...] = (scaled + bias_ref[...].astype(jnp.float32)).astype(o_ref.dtype)


def kernel(x: jax.Array, scale: jax.Array, bias: jax.Array, *, eps: float = 1e-5, block_rows: int = 128) -> jax.Array:
    """Same as `reference`. Raises ValueError if x is empty or a block of rows cannot fit in any chip's VMEM."""
    d = x.shape[-1]
    if x.size == 0:
        raise ValueError("LayerNorm of an empty array has nothing to compute.")
    flat = x.reshape(-1, d)
    rows = min(block_rows, flat.shape[0])
    needed = _vmem_bytes(rows, d, x.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"A block of {rows} rows of {d} does not fit in VMEM.")
    block, vector = pl.BlockSpec((rows, d), lambda i: (i, 0)), pl.BlockSpec((1, d), lambda i: (0, 0))
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, eps=eps),
        grid=(pl.cdiv(flat.shape[0], rows),),
        in_specs=[block, vector, vector],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(flat.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=needed if needed > 16 * 2**20 else None
        ),
    )(flat, scale.reshape(1, d), bias.reshape(1, d))
    return y.reshape(x.shape)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Row blocks that fit the chip's VMEM (16, 64 or 128 MiB a core); beyond the row count all are alike."""
    x = shapes[0]
    rows, d = max(1, x.size // x.shape[-1]), x.shape[-1]
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    sizes = (128, 256, 64, 192, 96, 32, 512, 48, 384, 16, 768, 8)
    fits = [r for r in sizes if _vmem_bytes(r, d, x.dtype.itemsize) <= budget]
    return {"block_rows": [r for r in fits if r < 2 * rows or r == 8] or [8]}

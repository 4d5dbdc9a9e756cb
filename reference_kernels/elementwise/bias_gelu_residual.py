"""---
id: bias-gelu-residual
title: gelu(x + bias) + residual in one pass
family: elementwise
op: y = gelu(x + bias) + residual
signature: "x:f[*rows,d], bias:f[d], residual:f[*rows,d] -> f[*rows,d]"
statics: {approximate: bool}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [fused-elementwise, two-axis-blocks, f32-arithmetic, broadcast-row]
primitives: [add, mul, tanh, erf, integer_pow, convert_element_type]
when_to_use: >-
  The frame for a chain that grows into a larger kernel. bf16[8192,8192], tanh form, 256 x 2048: cycles take 220 us on
  v5e, where HBM takes 492, and 138 us on v6e, where HBM takes 246; 128 x 2048 takes 269 and 162, 64 x 2048 370 and 215.
  The exact form takes 519 us of cycles on v5e, more than HBM, and 124 on v6e.
when_xla_wins: >-
  Expect a tie: by the byte count one XLA fusion of the chain moves the same bytes. XLA was not measured here.
sources:
  - "estimated: static LLO profile of this kernel, libtpu 0.0.52, jax 0.10.2, 4 and 16 grid steps extrapolated"
  - "HBM time: 402,669,568 bytes by block index maps over 819 GB/s (v5e) and 1638 GB/s (v6e)"
---
A chain of elementwise operations is bound by HBM when it is fused: two arrays in, one out, whatever the length of the
chain. Each grid step takes one rectangle, computes in f32 and casts once at the end. No axis is reduced, so the padding
of the last blocks is harmless garbage, and both grid axes are "parallel". The bias is one row that is broadcast down
the block; its index map ignores the row axis, so with columns outermost it is fetched once per column block.

What it teaches: the frame for every elementwise chain (replace the line in `_body`), and what decides its speed: the
VALU operations per element against the bytes per element. erf is far dearer than tanh on chips without a native erf
(v4, v5e, v5p).
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

TUNED_PARAMS = {"block_rows": 256, "block_cols": 2048}


def reference(x: jax.Array, bias: jax.Array, residual: jax.Array, *, approximate: bool = True) -> jax.Array:
    """gelu(x + bias) + residual in f32; the result has the promoted dtype of the three."""
    wide = x.astype(jnp.float32) + bias.astype(jnp.float32)
    y = jax.nn.gelu(wide, approximate=approximate) + residual.astype(jnp.float32)
    return y.astype(jnp.result_type(x, bias, residual))


def _gelu(x: jax.Array, approximate: bool) -> jax.Array:
    # The exact form is spelled with erf: Mosaic has no erfc, which jax.nn.gelu uses.
    if approximate:
        return 0.5 * x * (1.0 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + lax.erf(x * math.sqrt(0.5)))


def _body(x_ref: Any, bias_ref: Any, residual_ref: Any, o_ref: Any, *, approximate: bool) -> None:
    x = x_ref[...].astype(jnp.float32) + bias_ref[...].astype(jnp.float32)
    o_ref[...] = (_gelu(x, approximate) + residual_ref[...].astype(jnp.float32)).astype(o_ref.dtype)


def kernel(
    x: jax.Array,
    bias: jax.Array,
    residual: jax.Array,
    *,
    approximate: bool = True,
    block_rows: int = 256,
    block_cols: int = 2048,
) -> jax.Array:
    """Same as `reference`. Raises ValueError if x is empty."""
    d = x.shape[-1]
    if x.size == 0:
        raise ValueError("An empty array has nothing to compute.")
    flat = x.reshape(-1, d)
    rows, cols = min(block_rows, flat.shape[0]), min(block_cols, d)
    block = pl.BlockSpec((rows, cols), lambda j, i: (i, j))
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, approximate=approximate),
        grid=(pl.cdiv(d, cols), pl.cdiv(flat.shape[0], rows)),
        in_specs=[block, pl.BlockSpec((1, cols), lambda j, i: (0, j)), block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(flat.shape, jnp.result_type(x, bias, residual)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )(flat, bias.reshape(1, d), residual.reshape(-1, d))
    return y.reshape(x.shape)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Rectangles whose double buffers (two inputs, one output) stay under 12 MiB with any pair of values."""
    x = shapes[0]
    widest = 4096 if x.dtype.itemsize <= 2 else 2048
    cols = [c for c in (2048, 4096, 1024, 512) if c <= widest and (c < 2 * x.shape[-1] or c == 512)]
    return {"block_rows": [256, 128, 64, 32], "block_cols": cols}

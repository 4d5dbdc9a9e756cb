"""---
id: log-softmax-row-blocks
title: Log-softmax over the last axis, one pass over row blocks
family: log_softmax
op: y = x - max(x, -1) - log(sum(exp(x - max(x, -1)), -1))
signature: "x:f[*rows,d] -> f[*rows,d]"
statics: {}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [row-blocks, single-pass, max-subtraction, f32-statistics, vmem-budget]
primitives: [reduce_max, sub, exp, reduce_sum, log]
tags: [logits, log-probabilities, vocabulary]
when_to_use: >-
  Rows that fit VMEM several at a time, whole vocabularies included. bf16[8192,32000] with block_rows 32: 1280 us on
  v5e and 640 us on v6e, the time of one pass over HBM; the cycles (1,093,326 and 770,052) take 729 and 440 us beside
  it.
when_xla_wins: >-
  No case was measured. At this shape XLA is estimated at 3637 us on v5e and 1357 us on v6e. Where the log-
  probabilities are only gathered from, the cross entropy kernels do not write them at all.
sources:
  - "estimated: aka check and aka profile of this kernel on bf16[8192,32000], libtpu 0.0.42.1, jax 0.10.2"
---
A block of whole rows stays in VMEM while the maximum, the sum of exponentials and the result are formed, so x is
fetched once and y written once. Unlike softmax, the second reading does not need the exponentials again: what is
kept is x, and the last pass is two subtractions.

What it teaches: subtract the maximum and the logarithm one after the other. x - (max + log(sum)) saves one subtraction
per element and loses the small result where the logits are large: beside 1000 a sum's logarithm of 1e-5 is rounded
away. If only some of the log-probabilities are needed, do not write them all: see `cross_entropy/mean_loss.py`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_rows": 32}


def reference(x: jax.Array) -> jax.Array:
    """Log-softmax over the last axis in f32; the result has the dtype of x."""
    return jax.nn.log_softmax(x.astype(jnp.float32), axis=-1).astype(x.dtype)


def _vmem_bytes(rows: int, d: int, itemsize: int) -> int:
    """Two buffers each of input and output, one f32 copy of the block, and slack."""
    return rows * d * (4 * itemsize + 4) + 2**20


def _body(x_ref: Any, o_ref: Any) -> None:
    x = x_ref[...].astype(jnp.float32)
    shifted = x - jnp.max(x, axis=-1, keepdims=True)
    o_ref[...] = (shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=-1, keepdims=True))).astype(o_ref.dtype)


def kernel(x: jax.Array, *, block_rows: int = 32) -> jax.Array:
    """Same as `reference`. Raises ValueError if x is empty or a block of rows cannot fit in any chip's VMEM."""
    d = x.shape[-1]
    if x.size == 0:
        raise ValueError("Log-softmax of an empty array has nothing to compute.")
    flat = x.reshape(-1, d)
    rows = min(block_rows, flat.shape[0])
    needed = _vmem_bytes(rows, d, x.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"A block of {rows} rows of {d} does not fit in VMEM.")
    y: jax.Array = pl.pallas_call(
        _body,
        grid=(pl.cdiv(flat.shape[0], rows),),
        in_specs=[pl.BlockSpec((rows, d), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((rows, d), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct(flat.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=needed if needed > 16 * 2**20 else None
        ),
    )(flat)
    return y.reshape(x.shape)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Row blocks that fit the chip's VMEM (16, 64 or 128 MiB a core); beyond the row count all are alike."""
    x = shapes[0]
    rows, d = max(1, x.size // x.shape[-1]), x.shape[-1]
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    fits = [r for r in (32, 64, 16, 128, 48, 96, 24, 256, 8) if _vmem_bytes(r, d, x.dtype.itemsize) <= budget]
    return {"block_rows": [r for r in fits if r < 2 * rows or r == 8] or [8]}

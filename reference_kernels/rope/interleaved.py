"""---
id: rope-interleaved
title: Rotary embedding, interleaved pairs, sequence before heads
family: rope
op: y[2i] = x[2i] * cos[i] - x[2i+1] * sin[i], y[2i+1] = x[2i+1] * cos[i] + x[2i] * sin[i]
signature: "x:f[*batch,s,h,d], cos:f[s,p], sin:f[s,p] -> f[*batch,s,h,d]"
statics: {}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [lane-roll, lane-select, small-operand-prepared-outside, table-reuse-over-batch, vmem-budget]
primitives: [mul, add, sub, reshape, slice, concatenate, convert_element_type]
when_to_use: >-
  bf16[4,4096,32,128] with f32 tables: 344 us on v5e and 174 us on v6e at block_s 128, of which 328 and 164 are the
  kernel's HBM traffic and the rest the widening of the tables; the kernel's cycles take 224 and 132 us. XLA's version
  was not measured.
when_xla_wins: >-
  No case was measured. Models whose weights can be permuted once should use the rotate-half form instead.
sources:
  - "estimated: aka check and aka profile of this kernel, libtpu 0.0.42.1, jax 0.10.2"
---
Here the partner of an element is its neighbour. Taken literally (every second element), this is a strided access along
the lanes, the worst thing to ask of a TPU. Instead every element gets both neighbours by rolling the lanes one step
left and one step right, and its parity picks one. What wraps around is never picked.

The tables need each column twice, side by side, with the sine's sign in turn. They are small, so XLA makes that before
the kernel runs. (A product with a 0/1 matrix inside would do it too, until a table holds an infinity: 0 * inf is NaN.)

What it teaches: a fixed shuffle of lanes is rolls and a select on the large operand; never a strided slice. Roll before
widening: two bf16 share a lane, so the cross-lane unit has half the work.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_s": 128}
LANES = 128


def reference(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Pairs of neighbours turned in f32 by the angles of their positions; cos and sin have d / 2 columns."""
    wide = x.astype(jnp.float32)
    even, odd = wide[..., ::2], wide[..., 1::2]
    c, s = cos.astype(jnp.float32)[:, None, :], sin.astype(jnp.float32)[:, None, :]
    return jnp.stack([even * c - odd * s, odd * c + even * s], axis=-1).reshape(x.shape).astype(x.dtype)


def _vmem_bytes(bs: int, heads: int, d: int, itemsize: int) -> int:
    """Two buffers each of input and output, three f32 copies of the block, tables and slack."""
    wide = pl.cdiv(d, LANES) * LANES
    return bs * pl.cdiv(heads, 8) * 8 * wide * (4 * itemsize + 12) + bs * wide * 64 + 2**20


def _rolled(x: jax.Array, step: int) -> jax.Array:
    d = x.shape[-1]
    if d % LANES == 0:
        return pltpu.roll(x, step % d, axis=x.ndim - 1)
    return jnp.concatenate([x[..., -step:], x[..., :-step]], axis=-1)


def _paired(left: jax.Array, right: jax.Array) -> jax.Array:
    """Columns of the two in turn, f32."""
    return jnp.stack([left, right], axis=-1).astype(jnp.float32).reshape(left.shape[0], -1)


def _body(x_ref: Any, cos_ref: Any, sin_ref: Any, y_ref: Any) -> None:
    x = x_ref[...]
    even = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1) % 2 == 0
    left, right = (_rolled(x, step).astype(jnp.float32) for step in (-1, 1))
    c, s = cos_ref[...][:, None, :], sin_ref[...][:, None, :]
    y_ref[...] = (x.astype(jnp.float32) * c + jnp.where(even, left, right) * s).astype(y_ref.dtype)


def kernel(x: jax.Array, cos: jax.Array, sin: jax.Array, *, block_s: int = 128) -> jax.Array:
    """Same as `reference`. Raises ValueError if x is empty, a table is not d / 2 wide, or the block fits no VMEM."""
    s, heads, d = x.shape[-3:]
    if x.size == 0:
        raise ValueError("Rotary embedding of an empty array has nothing to compute.")
    if 2 * cos.shape[1] != d:
        raise ValueError(f"Heads of {d} need tables of {d // 2} columns, not {cos.shape[1]}.")
    flat = x.reshape(-1, s, heads, d)
    bs = min(block_s, s)
    needed = _vmem_bytes(bs, heads, d, x.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"A block of {bs} positions of {heads} x {d} does not fit in VMEM.")
    block = pl.BlockSpec((None, bs, heads, d), lambda i, b: (b, i, 0, 0))
    table = pl.BlockSpec((bs, d), lambda i, b: (i, 0))
    y: jax.Array = pl.pallas_call(
        _body,
        grid=(pl.cdiv(s, bs), flat.shape[0]),
        in_specs=[block, table, table],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(flat.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(flat, _paired(cos, cos), _paired(-sin, sin))
    return y.reshape(x.shape)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Blocks of positions, all heads of each, that fit the chip's VMEM."""
    x = shapes[0]
    s, heads, d = x.shape[-3:]
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    blocks = (128, 64, 256, 32, 512, 16, 8, 1024)
    fits = [b for b in blocks if _vmem_bytes(b, heads, d, x.dtype.itemsize) <= budget]
    return {"block_s": [b for b in fits if b < 2 * s or b == 8] or [8]}

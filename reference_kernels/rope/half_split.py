"""---
id: rope-half-split
title: Rotary embedding of one array, sequence before heads, rotate-half form
family: rope
op: y = concat(x1 * cos - x2 * sin, x2 * cos + x1 * sin), where x = concat(x1, x2)
signature: "x:f[*batch,s,h,d], cos:f[s,p], sin:f[s,p] -> f[*batch,s,h,d]"
statics: {}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [lane-roll, table-reuse-over-batch, f32-arithmetic, vmem-budget]
primitives: [mul, add, sub, split, concatenate, broadcast_in_dim, convert_element_type]
when_to_use: >-
  bf16[4,4096,32,128] with f32 tables: 334 us on v5e and 167 us on v6e at block_s 128, the time of its 270.5 MB of HBM
  traffic; cycles take 210 and 126 us. XLA's version takes at least 1530 us on v5e and 659 us on v6e.
when_xla_wins: >-
  No case was measured. Where XLA fuses the rotation into a neighbour (a projection's output), this kernel adds a trip
  through HBM; heads narrower than 128 leave lanes empty.
sources:
  - "estimated: aka check and aka profile of this kernel, libtpu 0.0.42.1, jax 0.10.2"
---
Two halves of the last axis turn against each other by an angle that depends on the position. Written with halves, a
head of 128 would be cut in the middle of a register. Here the partner of each element comes from one rotation of the
lanes by d / 2, the cosines stand twice beside each other, and the sign of the sine is in the table: two products and
one sum per element, in whole registers.

The tables are read once per block of positions, because the batch runs innermost; they are widened to d lanes inside
the kernel. Positions are independent, so both axes are "parallel" and padding is harmless.

What it teaches: move the irregularity of an op (halves, signs) into the small operand, and leave the large one whole.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_s": 128}
LANES = 128


def reference(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """x turned in f32 by the angles of its positions; cos and sin have d / 2 columns. The result has x's dtype."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    c, s = cos.astype(jnp.float32)[:, None, :], sin.astype(jnp.float32)[:, None, :]
    return jnp.concatenate([first * c - second * s, second * c + first * s], axis=-1).astype(x.dtype)


def _vmem_bytes(bs: int, heads: int, d: int, itemsize: int) -> int:
    """Two buffers each of input and output, two f32 copies of the block, tables and slack."""
    block = bs * pl.cdiv(heads, 8) * 8 * pl.cdiv(d, LANES) * LANES
    return block * (4 * itemsize + 8) + bs * pl.cdiv(d, LANES) * LANES * 64 + 2**20


def _halves_swapped(x: jax.Array) -> jax.Array:
    d = x.shape[-1]
    if d % LANES == 0:
        return pltpu.roll(x, d // 2, axis=x.ndim - 1)
    return jnp.concatenate([x[..., d // 2 :], x[..., : d // 2]], axis=-1)


def _body(x_ref: Any, cos_ref: Any, sin_ref: Any, y_ref: Any) -> None:
    x = x_ref[...].astype(jnp.float32)
    c, s = cos_ref[...].astype(jnp.float32), sin_ref[...].astype(jnp.float32)
    c, s = jnp.concatenate([c, c], axis=-1)[:, None, :], jnp.concatenate([-s, s], axis=-1)[:, None, :]
    y_ref[...] = (x * c + _halves_swapped(x) * s).astype(y_ref.dtype)


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
    table = pl.BlockSpec((bs, d // 2), lambda i, b: (i, 0))
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
    )(flat, cos, sin)
    return y.reshape(x.shape)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Blocks of positions, all heads of each, that fit the chip's VMEM."""
    x = shapes[0]
    s, heads, d = x.shape[-3:]
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    blocks = (128, 64, 256, 32, 512, 16, 8, 1024)
    fits = [b for b in blocks if _vmem_bytes(b, heads, d, x.dtype.itemsize) <= budget]
    return {"block_s": [b for b in fits if b < 2 * s or b == 8] or [8]}

"""---
id: rope-half-split-heads-first
title: Rotary embedding, heads before sequence, rotate-half form
family: rope
op: y = concat(x1 * cos - x2 * sin, x2 * cos + x1 * sin), where x = concat(x1, x2)
signature: "x:f[*heads,s,d], cos:f[s,p], sin:f[s,p] -> f[*heads,s,d]"
statics: {}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [lane-roll, prepared-once-in-scratch, f32-arithmetic, vmem-budget]
primitives: [mul, add, sub, split, concatenate, broadcast_in_dim, convert_element_type]
when_to_use: >-
  bf16[4,32,4096,128] with f32 tables: 334 us on v5e and 167 us on v6e at block_s 4096, the time of its 270.5 MB of
  HBM traffic (cycles: 201 and 116 us). On v5e 352 us at block_s 1024, where 512 steps are too short to hide their
  overhead. The same rotation with the sequence before the heads takes XLA at least 1530 us.
when_xla_wins: >-
  No case was measured; XLA's version of this layout was not either. Short sequences make small blocks and many steps.
sources:
  - "estimated: aka check and aka profile of this kernel, libtpu 0.0.42.1, jax 0.10.2"
---
The rotation of `half_split.py` for arrays in the layout [batch, heads, sequence, d], which attention kernels like best.
A row of a table lies over a row of a head, so nothing has to be spread over heads as in the other layout. Batch and
heads run innermost: at the first of them the tables are widened to d lanes and kept in a scratch, and all other heads
find them there. That order is why the inner axis is "arbitrary".

What it teaches: what depends on the outer grid axis alone is prepared at the first inner step and kept in a scratch.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_s": 4096}
LANES = 128


def reference(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """x turned in f32 by the angles of its positions; cos and sin have d / 2 columns. The result has x's dtype."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    c, s = cos.astype(jnp.float32), sin.astype(jnp.float32)
    return jnp.concatenate([first * c - second * s, second * c + first * s], axis=-1).astype(x.dtype)


def _vmem_bytes(bs: int, d: int, itemsize: int) -> int:
    """Two buffers each of input and output, two f32 copies of the block, tables as read and as kept, and slack."""
    return pl.cdiv(bs, 8) * 8 * pl.cdiv(d, LANES) * LANES * (4 * itemsize + 32) + 2**20


def _halves_swapped(x: jax.Array) -> jax.Array:
    d = x.shape[-1]
    if d % LANES == 0:
        return pltpu.roll(x, d // 2, axis=x.ndim - 1)
    return jnp.concatenate([x[..., d // 2 :], x[..., : d // 2]], axis=-1)


def _body(x_ref: Any, cos_ref: Any, sin_ref: Any, y_ref: Any, cosines_ref: Any, sines_ref: Any) -> None:
    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        c, s = cos_ref[...].astype(jnp.float32), sin_ref[...].astype(jnp.float32)
        cosines_ref[...] = jnp.concatenate([c, c], axis=-1)
        sines_ref[...] = jnp.concatenate([-s, s], axis=-1)

    x = x_ref[...]
    turned = x.astype(jnp.float32) * cosines_ref[...]
    turned += _halves_swapped(x).astype(jnp.float32) * sines_ref[...]
    y_ref[...] = turned.astype(y_ref.dtype)


def kernel(x: jax.Array, cos: jax.Array, sin: jax.Array, *, block_s: int = 4096) -> jax.Array:
    """Same as `reference`. Raises ValueError if x is empty, a table is not d / 2 wide, or the block fits no VMEM."""
    s, d = x.shape[-2:]
    if x.size == 0:
        raise ValueError("Rotary embedding of an empty array has nothing to compute.")
    if 2 * cos.shape[1] != d:
        raise ValueError(f"Heads of {d} need tables of {d // 2} columns, not {cos.shape[1]}.")
    flat = x.reshape(-1, s, d)
    bs = min(block_s, s)
    needed = _vmem_bytes(bs, d, x.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"A block of {bs} x {d} does not fit in VMEM.")
    block = pl.BlockSpec((None, bs, d), lambda i, b: (b, i, 0))
    table = pl.BlockSpec((bs, d // 2), lambda i, b: (i, 0))
    y: jax.Array = pl.pallas_call(
        _body,
        grid=(pl.cdiv(s, bs), flat.shape[0]),
        in_specs=[block, table, table],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(flat.shape, x.dtype),
        scratch_shapes=[pltpu.VMEM((bs, d), jnp.float32)] * 2,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(flat, cos, sin)
    return y.reshape(x.shape)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Blocks of positions that fit the chip's VMEM."""
    x = shapes[0]
    s, d = x.shape[-2:]
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    blocks = (4096, 2048, 1024, 512, 8192, 256, 128, 64, 32, 16)
    fits = [b for b in blocks if _vmem_bytes(b, d, x.dtype.itemsize) <= budget]
    return {"block_s": [b for b in fits if b < 2 * s or b == 16] or [16]}

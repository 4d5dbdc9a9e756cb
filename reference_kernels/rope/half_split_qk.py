"""---
id: rope-half-split-qk
title: Rotary embedding of queries and keys in one kernel, rotate-half form
family: rope
op: q, k -> turned q, turned k by the same angles, each head's halves against each other
signature: "q:f[*batch,s,h,d], k:f[*batch,s,g,d], cos:f[s,p], sin:f[s,p] -> f[*batch,s,h,d], f[*batch,s,g,d]"
statics: {}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [several-outputs, lane-roll, table-reuse-over-batch, f32-arithmetic, vmem-budget]
primitives: [mul, add, sub, split, concatenate, broadcast_in_dim, convert_element_type]
when_to_use: >-
  bf16 queries [4,4096,32,128] and keys [4,4096,8,128], f32 tables: 416 us on v5e and 208 us on v6e at block_s 128,
  the time of its 337.6 MB of HBM traffic. XLA's version takes at least 1437 us on v5e and 741 us on v6e.
when_xla_wins: >-
  No case was measured. With very many heads on one side a block of positions grows large; then two calls of
  `half_split.py` choose their blocks apart.
sources:
  - "estimated: aka check and aka profile of this kernel, libtpu 0.0.42.1, jax 0.10.2"
---
The rotation of `half_split.py` for two arrays at once. Queries and keys share positions, so one grid over blocks of
positions serves both: the tables are fetched and widened once for the two, and a kernel launch is saved. The numbers of
heads may differ (grouped queries), since each array has a block of its own with all its heads.

What it teaches: a kernel may have several outputs with blocks of different shapes, as long as one grid walks them all;
ops that share an operand and an iteration space belong together.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_s": 128}
LANES = 128


def _turned(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    c, s = cos.astype(jnp.float32)[:, None, :], sin.astype(jnp.float32)[:, None, :]
    return jnp.concatenate([first * c - second * s, second * c + first * s], axis=-1).astype(x.dtype)


def reference(q: jax.Array, k: jax.Array, cos: jax.Array, sin: jax.Array) -> tuple[jax.Array, jax.Array]:
    """q and k turned in f32 by the angles of their positions; cos and sin have d / 2 columns."""
    return _turned(q, cos, sin), _turned(k, cos, sin)


def _vmem_bytes(bs: int, heads: int, d: int, itemsize: int) -> int:
    """Two buffers each of inputs and outputs, two f32 copies of the blocks, tables and slack."""
    block = bs * (pl.cdiv(heads, 8) + 1) * 8 * pl.cdiv(d, LANES) * LANES
    return block * (4 * itemsize + 8) + bs * pl.cdiv(d, LANES) * LANES * 64 + 2**20


def _halves_swapped(x: jax.Array) -> jax.Array:
    d = x.shape[-1]
    if d % LANES == 0:
        return pltpu.roll(x, d // 2, axis=x.ndim - 1)
    return jnp.concatenate([x[..., d // 2 :], x[..., : d // 2]], axis=-1)


def _body(q_ref: Any, k_ref: Any, cos_ref: Any, sin_ref: Any, q_out_ref: Any, k_out_ref: Any) -> None:
    c, s = cos_ref[...].astype(jnp.float32), sin_ref[...].astype(jnp.float32)
    c, s = jnp.concatenate([c, c], axis=-1)[:, None, :], jnp.concatenate([-s, s], axis=-1)[:, None, :]
    for x_ref, y_ref in ((q_ref, q_out_ref), (k_ref, k_out_ref)):
        x = x_ref[...].astype(jnp.float32)
        y_ref[...] = (x * c + _halves_swapped(x) * s).astype(y_ref.dtype)


def kernel(
    q: jax.Array, k: jax.Array, cos: jax.Array, sin: jax.Array, *, block_s: int = 128
) -> tuple[jax.Array, jax.Array]:
    """Same as `reference`. Raises ValueError if q or k is empty, a table is not d / 2 wide, or the blocks fit no
    VMEM."""
    (s, heads, d), groups = q.shape[-3:], k.shape[-2]
    if q.size == 0 or k.size == 0:
        raise ValueError("Rotary embedding of an empty array has nothing to compute.")
    if 2 * cos.shape[1] != d:
        raise ValueError(f"Heads of {d} need tables of {d // 2} columns, not {cos.shape[1]}.")
    bs = min(block_s, s)
    needed = _vmem_bytes(bs, heads + groups, d, max(q.dtype.itemsize, k.dtype.itemsize))
    if needed > 120 * 2**20:
        raise ValueError(f"Blocks of {bs} positions of {heads} and {groups} heads of {d} do not fit in VMEM.")
    flat = [a.reshape(-1, s, a.shape[-2], d) for a in (q, k)]
    blocks = [pl.BlockSpec((None, bs, a.shape[-2], d), lambda i, b: (b, i, 0, 0)) for a in (q, k)]
    table = pl.BlockSpec((bs, d // 2), lambda i, b: (i, 0))
    turned = pl.pallas_call(
        _body,
        grid=(pl.cdiv(s, bs), flat[0].shape[0]),
        in_specs=[*blocks, table, table],
        out_specs=blocks,
        out_shape=[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in flat],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(*flat, cos, sin)
    return turned[0].reshape(q.shape), turned[1].reshape(k.shape)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Blocks of positions, all heads of each, that fit the chip's VMEM."""
    q, k = shapes[0], shapes[1]
    s, heads, d = q.shape[-3:]
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    blocks = (128, 64, 256, 32, 512, 16, 8, 1024)
    fits = [b for b in blocks if _vmem_bytes(b, heads + k.shape[-2], d, q.dtype.itemsize) <= budget]
    return {"block_s": [b for b in fits if b < 2 * s or b == 8] or [8]}

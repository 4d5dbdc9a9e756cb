"""---
id: decode-attention-split-kv
title: Decoding attention, one query per head against blocks of the cache
family: decode_attention
op: y = softmax(scale * q @ k^T) @ v, one query per sequence and head
signature: "q:f[b,hq,d], k:f[b,hk,s,d], v:f[b,hk,s,d] -> f[b,hq,d]"
statics: {scale: float}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [online-softmax, grouped-heads, chunks-in-block, exp2, masked-tail, memory-bound]
primitives: [dot_general, mul, reduce_max, sub, exp, reduce_sum, div, broadcast_in_dim]
when_to_use: >-
  Caches of thousands of keys. 16 sequences, 32 heads on 8, 4096 x 128 bf16, a block of all keys in one chunk: 328 us on
  v5e, its bandwidth, and 175 us on v6e, where HBM takes 164. In chunks of 1024 it is 333 and 229 us.
when_xla_wins: >-
  XLA's floor is the same 328 us on v5e and 164 on v6e, so the estimate shows no gain at this shape. There is one where
  XLA repeats k and v in HBM or writes the scores, which a floor does not show.
sources:
  - "estimated: aka profile, libtpu 0.0.42.1, jax 0.10.2; XLA by its floor of bytes and FLOP"
---
The cache is read once and that is all the time there is: a query does two floating-point operations per number of it.
A block is a few thousand keys of one key head, contiguous in HBM; the query heads that share it are the rows of one
small matmul, and k and v are never repeated. The softmax runs over chunks and blocks as in flash attention.

What it teaches: with a handful of rows the matrix unit is nearly idle and it does not matter; large contiguous copies,
few steps and no second pass do. Chunks inside a block keep scores in registers without making the copies small. The
block at the end of s is masked, and v zeroed there, since 0 * NaN is NaN. `scale=None` means 1 / sqrt(d).
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

TUNED_PARAMS = {"block_kv": 4096, "chunk": 4096}
LANES = 128
MASKED = -1e30


def reference(q: jax.Array, k: jax.Array, v: jax.Array, *, scale: float | None = None) -> jax.Array:
    """Softmax attention in f32 over k and v repeated to q's heads; `scale=None` is 1 / sqrt(d)."""
    d, group = q.shape[-1], q.shape[1] // k.shape[1]
    k, v = jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)
    scores = jnp.einsum("bhd,bhkd->bhk", q, k, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(scores * (d**-0.5 if scale is None else scale), axis=-1).astype(v.dtype)
    return jnp.einsum("bhk,bhkd->bhd", weights, v, preferred_element_type=jnp.float32).astype(q.dtype)


def _vmem_bytes(group: int, bk: int, d: int, itemsize: int) -> int:
    """Two buffers of k and v, three f32 blocks of scores, queries, statistics and accumulator, and slack."""
    wide, rows = pl.cdiv(d, LANES) * LANES, pl.cdiv(group, 8) * 8
    return 4 * bk * wide * itemsize + 4 * rows * (3 * bk + 6 * wide + 2 * LANES) + 2**21


def _body(
    q_ref: Any, k_ref: Any, v_ref: Any, y_ref: Any, max_ref: Any, sum_ref: Any, acc_ref: Any,
    *, scale: float, chunk: int, size: int,
) -> None:  # fmt: skip
    bk = k_ref.shape[0]

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        max_ref[...] = jnp.full_like(max_ref, MASKED)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    q, top, total, acc = q_ref[...], max_ref[:, :1], sum_ref[:, :1], acc_ref[...]
    for start in range(0, bk, chunk):
        k, v = k_ref[start : start + chunk, :], v_ref[start : start + chunk, :]
        scores = lax.dot_general(q, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        scores = scores * (scale * math.log2(math.e))
        if size % bk:
            col0 = pl.program_id(1) * bk + start
            scores = jnp.where(col0 + lax.broadcasted_iota(jnp.int32, scores.shape, 1) < size, scores, MASKED)
            v = jnp.where(col0 + lax.broadcasted_iota(jnp.int32, v.shape, 0) < size, v, jnp.zeros_like(v))
        before, top = top, jnp.maximum(top, jnp.max(scores, axis=1, keepdims=True))
        shrink, weights = jnp.exp2(before - top), jnp.exp2(scores - top)
        total = total * shrink + jnp.sum(weights, axis=1, keepdims=True)
        acc = acc * shrink + jnp.dot(weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    max_ref[...] = jnp.broadcast_to(top, max_ref.shape)
    sum_ref[...] = jnp.broadcast_to(total, sum_ref.shape)
    acc_ref[...] = acc

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def _() -> None:
        y_ref[...] = (acc / total).astype(y_ref.dtype)


def kernel(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float | None = None,
    block_kv: int = 4096,
    chunk: int = 4096,
) -> jax.Array:
    """Same as `reference`. Raises ValueError if an array is empty, hk does not divide hq, or the blocks cannot fit."""
    (heads, d), (kv_heads, size) = q.shape[1:], k.shape[1:3]
    if q.size == 0 or k.size == 0:
        raise ValueError("Attention over an empty cache has nothing to compute.")
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} key heads evenly.")
    group = heads // kv_heads
    chunk = min(chunk, block_kv, pl.cdiv(size, LANES) * LANES)
    bk = pl.cdiv(min(block_kv, size), chunk) * chunk
    needed = _vmem_bytes(group, bk, d, k.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"Blocks of {bk} keys of depth {d} do not fit in VMEM.")
    q_spec = pl.BlockSpec((None, group, d), lambda i, j: (i, 0, 0))
    kv_spec = pl.BlockSpec((None, bk, d), lambda i, j: (i, j, 0))
    folded = q.reshape(-1, group, d)
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, scale=d**-0.5 if scale is None else scale, chunk=chunk, size=size),
        grid=(folded.shape[0], pl.cdiv(size, bk)),
        in_specs=[q_spec, kv_spec, kv_spec],
        out_specs=q_spec,
        out_shape=jax.ShapeDtypeStruct(folded.shape, q.dtype),
        scratch_shapes=[pltpu.VMEM((group, width), jnp.float32) for width in (LANES, LANES, d)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(folded, *(a.reshape(-1, size, d) for a in (k, v)))
    return y.reshape(q.shape)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Keys of a block of the cache (large copies, few steps) within the chip's VMEM, and of one matmul in it."""
    q, k = shapes[0], shapes[1]
    (size, d), group = k.shape[2:], max(1, q.shape[1] // k.shape[1])
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    blocks = [n for n in (4096, 8192, 2048, 1024, 512) if _vmem_bytes(group, n, d, k.dtype.itemsize) <= budget]
    return {
        "block_kv": [n for n in blocks if n < 2 * size or n == 512] or [512],
        "chunk": [n for n in (4096, 1024, 2048, 512) if n < 2 * size or n == 512],
    }

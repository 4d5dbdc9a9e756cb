"""---
id: attention-gqa-flash-grouped
title: Flash attention for grouped heads, shared keys by index map
family: attention_gqa
op: y_h = softmax(scale * q_h @ k_g^T + causal mask) @ v_g, g = h // (hq / hk)
signature: "q:f[b,hq,s,d], k:f[b,hk,s,d], v:f[b,hk,s,d] -> f[b,hq,s,d]"
statics: {causal: bool, scale: float}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [online-softmax, causal-block-skip, grouped-heads, repeat-by-index-map, exp2, masked-tail]
primitives: [dot_general, mul, select_n, reduce_max, sub, exp, reduce_sum, div, broadcast_in_dim]
when_to_use: >-
  Long sequences with shared key heads. 32 heads on 8 x 4096 x 128 bf16, causal, 1024 x 1024: 1269 us on v5e, where
  XLA's bytes alone take 10.6 ms.
when_xla_wins: >-
  Not at this shape by the estimate. One query per sequence is another op: see `decode_attention/split_kv.py`.
sources:
  - "estimated: aka profile, libtpu 0.0.42.1, jax 0.10.2; XLA by its floor of bytes and FLOP"
---
Query head h reads key head h // group, and that is said in the index map alone: no repeated copy of k and v is made.
Inside it is flash attention as in `attention/flash_causal.py`: scores stay in VMEM, a running maximum and sum per row,
blocks above the diagonal skipped, masks on the edge only.

What it teaches: a repeat along an axis is an integer division in an index map. At long s the fetches hide behind the
matrix unit, so each query head may fetch its keys again. Folding the group's heads into the rows of one block saves
those fetches and shortens the diagonal, but its blocks are boxes of three dimensions, for which the compiler's profile
tells no cycles, so nothing could be said for it here. `scale=None` means 1 / sqrt(d).
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

TUNED_PARAMS = {"block_q": 1024, "block_kv": 1024}
LANES = 128


def reference(
    q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool = True, scale: float | None = None
) -> jax.Array:
    """Softmax attention in f32 over k and v repeated to q's heads; `scale=None` is 1 / sqrt(d)."""
    size, d = q.shape[-2:]
    group = q.shape[1] // k.shape[1]
    k, v = jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32)
    scores = scores * (d**-0.5 if scale is None else scale)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((size, size), bool)), scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v, preferred_element_type=jnp.float32).astype(q.dtype)


def _vmem_bytes(bq: int, bk: int, d: int, itemsize: int) -> int:
    """Two buffers of q, k, v and the output, the accumulator, both statistics, three f32 score blocks, and slack."""
    wide = pl.cdiv(d, LANES) * LANES
    return 4 * (bq + bk) * wide * itemsize + bq * (wide + 2 * LANES) * 4 + 12 * bq * bk + 2**21


def _widen(stat: jax.Array, width: int) -> jax.Array:
    """A statistic that is the same in all lanes, repeated or cut to `width` lanes."""
    return jnp.tile(stat, (1, pl.cdiv(width, LANES)))[:, :width]


def _mask(scores: jax.Array, row0: jax.Array, col0: jax.Array, size: int, causal: bool) -> jax.Array:
    col = col0 + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
    # A causal row below `size` ends before the padding; rows beyond it are not written.
    keep = col <= row0 + lax.broadcasted_iota(jnp.int32, scores.shape, 0) if causal else col < size
    return jnp.where(keep, scores, -jnp.inf)


def _body(
    q_ref: Any, k_ref: Any, v_ref: Any, y_ref: Any, max_ref: Any, sum_ref: Any, acc_ref: Any,
    *, scale: float, causal: bool, size: int,
) -> None:  # fmt: skip
    (bq, d), bk = q_ref.shape, k_ref.shape[0]
    row0, col0 = pl.program_id(1) * bq, pl.program_id(2) * bk

    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        max_ref[...] = jnp.full_like(max_ref, -jnp.inf)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def visit(edge: bool) -> None:
        v = v_ref[...]
        scores = lax.dot_general(q_ref[...], k_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        scores = scores * (scale * math.log2(math.e))
        if edge:
            scores = _mask(scores, row0, col0, size, causal)
        if edge and size % bk:
            v = jnp.where(col0 + lax.broadcasted_iota(jnp.int32, v.shape, 0) < size, v, jnp.zeros_like(v))
        top = jnp.maximum(max_ref[...], jnp.max(scores, axis=1, keepdims=True))
        shrink = jnp.exp2(max_ref[...] - top)
        weights = jnp.exp2(scores - _widen(top, bk))
        max_ref[...] = top
        sum_ref[...] = sum_ref[...] * shrink + sum(weights[:, c : c + LANES] for c in range(0, bk, LANES))
        product = jnp.dot(weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
        acc_ref[...] = acc_ref[...] * _widen(shrink, d) + product

    inside = col0 + bk <= (row0 + 1 if causal else size)
    visible = col0 < row0 + bq if causal else True
    pl.when(inside)(lambda: visit(edge=False))
    if causal or size % bk:
        pl.when(jnp.logical_not(inside) & visible)(lambda: visit(edge=True))

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _() -> None:
        y_ref[...] = (acc_ref[...] / jnp.sum(sum_ref[...], axis=1, keepdims=True)).astype(y_ref.dtype)


def kernel(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = True,
    scale: float | None = None,
    block_q: int = 1024,
    block_kv: int = 1024,
) -> jax.Array:
    """Same as `reference`. Raises ValueError if an array is empty, hk does not divide hq, or the blocks cannot fit."""
    (heads, size, d), kv_heads = q.shape[1:], k.shape[1]
    if q.size == 0 or k.size == 0:
        raise ValueError("Attention over empty arrays has nothing to compute.")
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} key heads evenly.")
    group = heads // kv_heads
    bq, bk = min(block_q, size), min(block_kv, pl.cdiv(size, LANES) * LANES)
    needed = _vmem_bytes(bq, bk, d, q.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"Blocks of {bq} queries and {bk} keys of depth {d} do not fit in VMEM.")

    def kv_index(b: Any, i: Any, j: Any) -> tuple[Any, Any, int]:
        return b // group, jnp.minimum(j, (i * bq + bq - 1) // bk) if causal else j, 0

    q_spec = pl.BlockSpec((None, bq, d), lambda b, i, j: (b, i, 0))
    kv_spec = pl.BlockSpec((None, bk, d), kv_index)
    flat = [a.reshape(-1, size, d) for a in (q, k, v)]
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, scale=d**-0.5 if scale is None else scale, causal=causal, size=size),
        grid=(flat[0].shape[0], pl.cdiv(size, bq), pl.cdiv(size, bk)),
        in_specs=[q_spec, kv_spec, kv_spec],
        out_specs=q_spec,
        out_shape=jax.ShapeDtypeStruct(flat[0].shape, q.dtype),
        scratch_shapes=[pltpu.VMEM((bq, width), jnp.float32) for width in (LANES, LANES, d)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(*flat)
    return y.reshape(q.shape)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Blocks of queries and keys, each fitting the chip's VMEM beside the smallest block of the other."""
    q = shapes[0]
    size, d = q.shape[-2:]
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    side = (1024, 512, 256, 128)
    best = next(b for b in side if b == side[-1] or _vmem_bytes(b, b, d, q.dtype.itemsize) <= budget)
    others = [b for b in (512, 1024, 256, 2048, 128) if _vmem_bytes(b, 128, d, q.dtype.itemsize) <= budget]
    values = [b for b in dict.fromkeys([best, *others]) if b < 2 * size or b == 128]
    return {"block_q": values, "block_kv": list(values)}

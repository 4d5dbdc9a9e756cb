"""---
id: attention-window-sliding
title: Flash attention over a causal sliding window, blocks outside it not visited
family: attention_window
op: y = softmax(scale * q @ k^T, only where 0 <= i - j < window) @ v
signature: "q:f[*batch,s,d], k:f[*batch,s,d], v:f[*batch,s,d] -> f[*batch,s,d]"
statics: {window: int, scale: float}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [online-softmax, window-block-skip, short-grid, exp2, deferred-normalisation, masked-tail]
primitives: [dot_general, mul, select_n, reduce_max, sub, exp, reduce_sum, div]
when_to_use: >-
  Windows much shorter than s. 8 heads x 8192 x 128 bf16, window 512, blocks of 512: 419 us on v5e and 303 on v6e, where
  XLA's bytes alone take 10.6 and 5.95 ms.
when_xla_wins: >-
  Not where s is several windows long. Where the window covers s, use `attention/flash_causal.py`: its larger blocks
  are cheaper per key.
sources:
  - "estimated: aka profile, libtpu 0.0.42.1, jax 0.10.2; XLA by its floor of bytes and FLOP"
---
A row sees `window` keys, itself the last of them. The grid's last axis has only as many steps as a block of queries has
blocks of keys, and the index map adds where they begin, so what lies outside the window costs not even an empty step.
Inside it is flash attention as in `attention/flash_causal.py`.

What it teaches: put a static band into the grid and not into predicates. The masked score is a large negative number
and not -inf: a row may see nothing of the first block that it meets, and -inf minus -inf would be NaN; the ones that
such a row sums up are wiped when its first real score rescales them by exp2(-huge) = 0. Blocks much larger than the
window compute what is masked. `scale=None` means 1 / sqrt(d).
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

TUNED_PARAMS = {"block_q": 512, "block_kv": 512}
LANES = 128
MASKED = -1e30


def reference(q: jax.Array, k: jax.Array, v: jax.Array, *, window: int = 1024, scale: float | None = None) -> jax.Array:
    """Softmax attention in f32 over the last `window` keys of each row; `scale=None` is 1 / sqrt(d)."""
    size, d = q.shape[-2:]
    scores = jnp.einsum("...qd,...kd->...qk", q, k, preferred_element_type=jnp.float32)
    distance = jnp.arange(size)[:, None] - jnp.arange(size)[None, :]
    seen = (distance >= 0) & (distance < window)
    scores = jnp.where(seen, scores * (d**-0.5 if scale is None else scale), -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("...qk,...kd->...qd", weights, v, preferred_element_type=jnp.float32).astype(q.dtype)


def _vmem_bytes(bq: int, bk: int, d: int, itemsize: int) -> int:
    """Two buffers of q, k, v and the output, the accumulator, both statistics, three f32 score blocks, and slack."""
    wide = pl.cdiv(d, LANES) * LANES
    return 4 * (bq + bk) * wide * itemsize + bq * (wide + 2 * LANES) * 4 + 12 * bq * bk + 2**21


def _widen(stat: jax.Array, width: int) -> jax.Array:
    """A statistic that is the same in all lanes, repeated or cut to `width` lanes."""
    return jnp.tile(stat, (1, pl.cdiv(width, LANES)))[:, :width]


def _first(i: Any, bq: int, bk: int, window: int) -> Any:
    """The first block of keys that block i of the queries sees."""
    return jnp.maximum(i * bq - window + 1, 0) // bk


def _visits(size: int, bq: int, bk: int, window: int) -> int:
    """The most blocks of keys that a block of queries sees."""
    starts = range(0, size, bq)
    return max((min(row + bq, size) - 1) // bk - max(row - window + 1, 0) // bk + 1 for row in starts)


def _body(
    q_ref: Any, k_ref: Any, v_ref: Any, y_ref: Any, max_ref: Any, sum_ref: Any, acc_ref: Any,
    *, scale: float, window: int, size: int,
) -> None:  # fmt: skip
    (bq, d), bk = q_ref.shape, k_ref.shape[0]
    i, step = pl.program_id(1), pl.program_id(2)
    row0, col0 = i * bq, (_first(i, bq, bk, window) + step) * bk

    @pl.when(step == 0)
    def _() -> None:
        max_ref[...] = jnp.full_like(max_ref, MASKED)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def visit(edge: bool) -> None:
        v = v_ref[...]
        scores = lax.dot_general(q_ref[...], k_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        scores = scores * (scale * math.log2(math.e))
        if edge:
            ahead = lax.broadcasted_iota(jnp.int32, scores.shape, 0) - lax.broadcasted_iota(jnp.int32, scores.shape, 1)
            scores = jnp.where((ahead >= col0 - row0) & (ahead < col0 - row0 + window), scores, MASKED)
        if edge and size % bk:
            v = jnp.where(col0 + lax.broadcasted_iota(jnp.int32, v.shape, 0) < size, v, jnp.zeros_like(v))
        top = jnp.maximum(max_ref[...], jnp.max(scores, axis=1, keepdims=True))
        shrink = jnp.exp2(max_ref[...] - top)
        weights = jnp.exp2(scores - _widen(top, bk))
        max_ref[...] = top
        sum_ref[...] = sum_ref[...] * shrink + sum(weights[:, c : c + LANES] for c in range(0, bk, LANES))
        product = jnp.dot(weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
        acc_ref[...] = acc_ref[...] * _widen(shrink, d) + product

    inside = (col0 + bk <= row0 + 1) & (col0 > row0 + bq - 1 - window)
    visible = (col0 < row0 + bq) & (col0 < size)
    pl.when(inside)(lambda: visit(edge=False))
    pl.when(jnp.logical_not(inside) & visible)(lambda: visit(edge=True))

    @pl.when(step == pl.num_programs(2) - 1)
    def _() -> None:
        y_ref[...] = (acc_ref[...] / jnp.sum(sum_ref[...], axis=1, keepdims=True)).astype(y_ref.dtype)


def kernel(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    window: int = 1024,
    scale: float | None = None,
    block_q: int = 512,
    block_kv: int = 512,
) -> jax.Array:
    """Same as `reference`. Raises ValueError if q is empty, the window is, or the blocks cannot fit in any VMEM."""
    size, d = q.shape[-2:]
    if q.size == 0 or window < 1:
        raise ValueError("Attention over empty arrays or an empty window has nothing to compute.")
    bq, bk = min(block_q, size), min(block_kv, pl.cdiv(size, LANES) * LANES)
    needed = _vmem_bytes(bq, bk, d, q.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"Blocks of {bq} queries and {bk} keys of depth {d} do not fit in VMEM.")

    def kv_index(b: Any, i: Any, j: Any) -> tuple[Any, Any, int]:
        last = jnp.minimum(i * bq + bq - 1, size - 1) // bk
        return b, jnp.minimum(_first(i, bq, bk, window) + j, last), 0

    q_spec = pl.BlockSpec((None, bq, d), lambda b, i, j: (b, i, 0))
    kv_spec = pl.BlockSpec((None, bk, d), kv_index)
    flat = [a.reshape(-1, size, d) for a in (q, k, v)]
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, scale=d**-0.5 if scale is None else scale, window=window, size=size),
        grid=(flat[0].shape[0], pl.cdiv(size, bq), _visits(size, bq, bk, window)),
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
    side = [b for b in (512, 1024, 256, 128) if _vmem_bytes(b, b, d, q.dtype.itemsize) <= budget]
    values = [b for b in side if b < 2 * size or b == 128] or [128]
    return {"block_q": values, "block_kv": list(values)}

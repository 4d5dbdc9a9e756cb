"""---
id: retention-chunked
title: Multi-scale retention in chunks, the state carried in VMEM
family: retention
op: y_i = scale * sum over j <= i of gamma_h^(i-j) (q_i . k_j) v_j, gamma_h = 1 - 2^(-5-h)
signature: "q:f[b,h,s,d], k:f[b,h,s,d], v:f[b,h,s,e] -> f[b,h,s,e]"
statics: {scale: float}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [chunked-recurrence, carried-state, sequential-grid-axis, table-in-scratch, masked-tail]
primitives: [dot_general, mul, pow, select_n]
when_to_use: >-
  Whenever s is several chunks long: the work grows with s, XLA's with s squared. bf16[1,16,4096,128] in blocks of 1024
  and chunks of 256: 105 us on v5e (82 of them HBM) and 70 us on v6e, where XLA's FLOP alone take 698 and 160 us.
when_xla_wins: >-
  Not at s of 2048 and more. At s of one chunk the two do the same work, and XLA may fuse the neighbours.
sources:
  - "estimated: aka profile, libtpu 0.0.42.1, jax 0.10.2; XLA by its floor of bytes and FLOP"
---
The decay is a product along the path from j to i, so everything before a chunk reaches it through one d x e matrix, the
state. Per chunk: scores inside the chunk times a triangular table of decays, plus q times the state; then the state
decays by gamma^chunk and takes in the chunk's keys and values. The work is linear in s and the s x s scores exist
nowhere; the grid axis along s is sequential because the state goes from step to step in scratch.

What it teaches: the table of decays depends on the head alone, so it is made once per head, at the first step, and not
with s x s exponentials; a block holds several chunks, so that the pipeline moves large blocks while the quadratic part
stays small; the head's log2(gamma) comes as a block of its own, since a kernel that reads no program id of the outer
axis is alike for all heads. `scale=None` means 1 / sqrt(d).
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

TUNED_PARAMS = {"block_rows": 1024, "chunk": 256}
LANES = 128


def reference(q: jax.Array, k: jax.Array, v: jax.Array, *, scale: float | None = None) -> jax.Array:
    """Retention by all scores in f32, the decayed weights rounded to v's dtype; `scale=None` is 1 / sqrt(d)."""
    heads, size, d = q.shape[1:]
    gamma = 1 - 2.0 ** (-5.0 - jnp.arange(heads, dtype=jnp.float32))
    distance = jnp.arange(size)[:, None] - jnp.arange(size)[None, :]
    powers = gamma[:, None, None] ** jnp.maximum(distance, 0).astype(jnp.float32)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32)
    weights = scores * (d**-0.5 if scale is None else scale) * jnp.where(distance >= 0, powers, 0)
    y = jnp.einsum("bhqk,bhke->bhqe", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return y.astype(q.dtype)


def _vmem_bytes(rows: int, chunk: int, d: int, e: int, itemsize: int) -> int:
    """Two buffers of q, k, v and the output, table, three f32 chunks of scores, three states, powers, and slack."""
    wide_d, wide_e = (pl.cdiv(n, LANES) * LANES for n in (d, e))
    work = 4 * chunk * chunk + 3 * chunk * (wide_d + wide_e) + 3 * wide_d * wide_e + 2 * chunk * LANES
    return 4 * rows * (wide_d + wide_e) * itemsize + 4 * work + 2**21


def _widen(table: jax.Array, width: int) -> jax.Array:
    """What is the same in all lanes, repeated or cut to `width` lanes."""
    return jnp.tile(table, (1, pl.cdiv(width, LANES)))[:, :width]


def _tables(log_ref: Any, decay_ref: Any, rise_ref: Any, fall_ref: Any, scale: float) -> None:
    """gamma^(i-j) below the diagonal, gamma^(i+1), and gamma^(chunk-1-i), the first and the last times scale."""
    chunk = decay_ref.shape[0]
    log = log_ref[...]
    row = lax.broadcasted_iota(jnp.int32, rise_ref.shape, 0).astype(jnp.float32)
    rise_ref[...] = jnp.exp2(log * (row + 1))
    fall_ref[...] = jnp.exp2(log * (chunk - 1 - row)) * scale
    ahead = lax.broadcasted_iota(jnp.int32, decay_ref.shape, 0) - lax.broadcasted_iota(jnp.int32, decay_ref.shape, 1)
    powers = jnp.exp2(_widen(log, chunk) * jnp.maximum(ahead, 0).astype(jnp.float32))
    decay_ref[...] = jnp.where(ahead >= 0, powers * scale, 0)


def _within(block: jax.Array, first: Any, size: int) -> jax.Array:
    row = first + lax.broadcasted_iota(jnp.int32, block.shape, 0)
    return jnp.where(row < size, block, jnp.zeros_like(block))


def _halves(state: jax.Array, dtype: Any) -> jax.Array:
    """The state as two numbers of eight bits each, one above the other: their sum has sixteen. What is not finite has
    nothing below it."""
    high = state.astype(jnp.bfloat16).astype(jnp.float32)
    low = jnp.where(jnp.abs(high) < jnp.inf, state - high, 0.0)
    return jnp.concatenate([high.astype(dtype), low.astype(dtype)], axis=0)


def _body(
    log_ref: Any, q_ref: Any, k_ref: Any, v_ref: Any, y_ref: Any,
    state_ref: Any, decay_ref: Any, rise_ref: Any, fall_ref: Any, *, scale: float, size: int,
) -> None:  # fmt: skip
    rows, e, chunk = q_ref.shape[0], v_ref.shape[1], decay_ref.shape[0]

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        state_ref[...] = jnp.zeros_like(state_ref)
        _tables(log_ref, decay_ref, rise_ref, fall_ref, scale)

    state = state_ref[...]
    for start in range(0, rows, chunk):
        here = pl.ds(start, chunk)
        q, k, v = q_ref[here, :], k_ref[here, :], v_ref[here, :]
        if size % rows:
            first = pl.program_id(1) * rows + start
            k, v = _within(k, first, size), _within(v, first, size)
        scores = lax.dot_general(q, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        weights = (scores * decay_ref[...]).astype(v.dtype)
        inner = jnp.dot(weights, v, preferred_element_type=jnp.float32)
        outer = jnp.dot(jnp.concatenate([q, q], axis=1), _halves(state, q.dtype), preferred_element_type=jnp.float32)
        y_ref[here, :] = (inner + outer * _widen(rise_ref[...], e)).astype(y_ref.dtype)
        faded = (v.astype(jnp.float32) * _widen(fall_ref[...], e)).astype(v.dtype)
        gained = lax.dot_general(k, faded, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
        state = state * _widen(rise_ref[chunk - 1 :, :], e) + gained
    state_ref[...] = state


def kernel(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float | None = None,
    block_rows: int = 1024,
    chunk: int = 256,
) -> jax.Array:
    """Same as `reference`. Raises ValueError if an array is empty or the blocks cannot fit in any chip's VMEM."""
    (batch, heads, size, d), e = q.shape, v.shape[-1]
    if q.size == 0 or v.size == 0:
        raise ValueError("Retention over empty arrays has nothing to compute.")
    padded = pl.cdiv(size, LANES) * LANES
    chunk = pl.cdiv(min(chunk, padded), LANES) * LANES
    rows = pl.cdiv(min(max(block_rows, chunk), padded), chunk) * chunk
    needed = _vmem_bytes(rows, chunk, d, e, q.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"Blocks of {rows} rows in chunks of {chunk} do not fit in VMEM.")
    logs = jnp.array([math.log2(1 - 2.0 ** (-5 - h)) for h in range(heads)], jnp.float32)
    lanes = jnp.broadcast_to(logs[:, None, None], (heads, 1, LANES))

    def spec(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, rows, width), lambda i, j: (i, j, 0))

    y: jax.Array = pl.pallas_call(
        functools.partial(_body, scale=d**-0.5 if scale is None else scale, size=size),
        grid=(batch * heads, pl.cdiv(size, rows)),
        in_specs=[
            pl.BlockSpec((None, 1, LANES), lambda i, j: (lax.rem(i, heads), 0, 0)),
            spec(d),
            spec(d),
            spec(e),
        ],
        out_specs=spec(e),
        out_shape=jax.ShapeDtypeStruct((batch * heads, size, e), q.dtype),
        scratch_shapes=[
            pltpu.VMEM(shape, jnp.float32) for shape in ((d, e), (chunk, chunk), (chunk, LANES), (chunk, LANES))
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(lanes, *(a.reshape(-1, *a.shape[2:]) for a in (q, k, v)))
    return y.reshape(v.shape)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Chunks of the quadratic part and blocks of several chunks that fit the chip's VMEM."""
    q, v = shapes[0], shapes[2]
    (size, d), e, itemsize = q.shape[2:], v.shape[-1], q.dtype.itemsize
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    chunks = [c for c in (256, 128, 512) if c < 2 * size or c == 128]
    fits = [r for r in (1024, 512, 2048, 256) if _vmem_bytes(r, min(r, 512), d, e, itemsize) <= budget]
    return {"block_rows": [r for r in fits if r < 2 * size or r == 256] or [256], "chunk": chunks}

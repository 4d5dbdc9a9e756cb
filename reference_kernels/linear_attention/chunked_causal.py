"""---
id: linear-attention-chunked-causal
title: Causal linear attention in chunks, the state carried in VMEM
family: linear_attention
op: y_i = scale * q_i . sum over j <= i of k_j^T v_j
signature: "q:f[*batch,s,d], k:f[*batch,s,d], v:f[*batch,s,e] -> f[*batch,s,e]"
statics: {scale: float}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [chunked-recurrence, carried-state, sequential-grid-axis, masked-tail]
primitives: [dot_general, mul, select_n]
when_to_use: >-
  Whenever s is several chunks long: the work grows with s, XLA's with s squared. bf16[1,16,4096,128] in blocks of 1024
  and chunks of 256: 102 us on v5e (82 of them HBM) and 68 us on v6e, where XLA's FLOP alone take 698 and 150 us.
when_xla_wins: >-
  Not at s of 2048 and more. At s of one chunk the two do the same work, and XLA may fuse the neighbours.
sources:
  - "estimated: aka profile, libtpu 0.0.42.1, jax 0.10.2; XLA by its floor of bytes and FLOP"
---
Without a softmax the sum over j can be taken first: all keys and values before a chunk act through one d x e matrix.
Per chunk: causal scores inside it times v, plus q times the state; then the state takes in k^T v. Neither the s x s
scores nor the s states of a running sum reach HBM, and the work is linear in s. A feature map of q and k comes before.

What it teaches: the quadratic part costs chunk per row and the state d per row, so a chunk of about d balances them; a
block holds several chunks, so that the pipeline moves large blocks. The state is summed in f32 and rounded only as an
operand. The grid axis along s is sequential, since the state stays in scratch from step to step.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_rows": 1024, "chunk": 256}
LANES = 128


def reference(q: jax.Array, k: jax.Array, v: jax.Array, *, scale: float = 1.0) -> jax.Array:
    """Attention without a softmax: masked scores in f32, rounded to v's dtype, times v."""
    size = q.shape[-2]
    scores = jnp.einsum("...qd,...kd->...qk", q, k, preferred_element_type=jnp.float32) * scale
    weights = jnp.where(jnp.tril(jnp.ones((size, size), bool)), scores, 0).astype(v.dtype)
    return jnp.einsum("...qk,...ke->...qe", weights, v, preferred_element_type=jnp.float32).astype(q.dtype)


def _vmem_bytes(rows: int, chunk: int, d: int, e: int, itemsize: int) -> int:
    """Two buffers of q, k, v and the output, three f32 chunks of scores, three states, two f32 outputs, and slack."""
    wide_d, wide_e = (pl.cdiv(n, LANES) * LANES for n in (d, e))
    work = 3 * chunk * chunk + 2 * chunk * (wide_d + wide_e) + 3 * wide_d * wide_e
    return 4 * rows * (wide_d + wide_e) * itemsize + 4 * work + 2**21


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
    q_ref: Any, k_ref: Any, v_ref: Any, y_ref: Any, state_ref: Any, *, scale: float, chunk: int, size: int
) -> None:
    rows = q_ref.shape[0]

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        state_ref[...] = jnp.zeros_like(state_ref)

    row = lax.broadcasted_iota(jnp.int32, (chunk, chunk), 0)
    causal = row >= lax.broadcasted_iota(jnp.int32, (chunk, chunk), 1)
    state = state_ref[...]
    for start in range(0, rows, chunk):
        here = pl.ds(start, chunk)
        q, k, v = q_ref[here, :], k_ref[here, :], v_ref[here, :]
        if size % rows:
            first = pl.program_id(1) * rows + start
            k, v = _within(k, first, size), _within(v, first, size)
        scores = lax.dot_general(q, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        weights = jnp.where(causal, scores, 0).astype(v.dtype)
        inner = jnp.dot(weights, v, preferred_element_type=jnp.float32)
        outer = jnp.dot(jnp.concatenate([q, q], axis=1), _halves(state, q.dtype), preferred_element_type=jnp.float32)
        y_ref[here, :] = ((inner + outer) * scale).astype(y_ref.dtype)
        state += lax.dot_general(k, v, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    state_ref[...] = state


def kernel(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float = 1.0,
    block_rows: int = 1024,
    chunk: int = 256,
) -> jax.Array:
    """Same as `reference`. Raises ValueError if an array is empty or the blocks cannot fit in any chip's VMEM."""
    (size, d), e = q.shape[-2:], v.shape[-1]
    if q.size == 0 or v.size == 0:
        raise ValueError("Linear attention over empty arrays has nothing to compute.")
    padded = pl.cdiv(size, LANES) * LANES
    chunk = pl.cdiv(min(chunk, padded), LANES) * LANES
    rows = pl.cdiv(min(max(block_rows, chunk), padded), chunk) * chunk
    needed = _vmem_bytes(rows, chunk, d, e, q.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"Blocks of {rows} rows in chunks of {chunk} do not fit in VMEM.")

    def spec(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, rows, width), lambda i, j: (i, j, 0))

    flat = [a.reshape(-1, *a.shape[-2:]) for a in (q, k, v)]
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, scale=scale, chunk=chunk, size=size),
        grid=(flat[0].shape[0], pl.cdiv(size, rows)),
        in_specs=[spec(d), spec(d), spec(e)],
        out_specs=spec(e),
        out_shape=jax.ShapeDtypeStruct(flat[2].shape, q.dtype),
        scratch_shapes=[pltpu.VMEM((d, e), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(*flat)
    return y.reshape(v.shape)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Chunks of the quadratic part and blocks of several chunks that fit the chip's VMEM."""
    q, v = shapes[0], shapes[2]
    (size, d), e, itemsize = q.shape[-2:], v.shape[-1], q.dtype.itemsize
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    chunks = [c for c in (256, 128, 512) if c < 2 * size or c == 128]
    fits = [r for r in (1024, 512, 2048, 256) if _vmem_bytes(r, min(r, 512), d, e, itemsize) <= budget]
    return {"block_rows": [r for r in fits if r < 2 * size or r == 256] or [256], "chunk": chunks}

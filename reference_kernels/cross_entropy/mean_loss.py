"""---
id: cross-entropy-mean-loss
title: Mean cross entropy of integer labels, online over vocabulary blocks
family: cross_entropy
op: y = mean(logsumexp(logits, -1) - logits[label])
signature: "logits:f[*rows,v], labels:i[*rows] -> float32[]"
statics: {}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [online-logsumexp, per-lane-statistics, label-by-comparison, reduction-in-kernel, masked-tail, vmem-budget]
primitives: [reduce_max, sub, exp, reduce_sum, log, gather, neg, div]
tags: [loss, nll, log-softmax, language-model, take_along_axis, one-hot]
when_to_use: >-
  Logits of a language model. bf16[8192,32000] in blocks of 128 x 8192: 700 us on v5e, where HBM takes 640, and 419 us
  on v6e, where HBM takes 320; the vector unit is the bound. Strips of 16 rows take 718 and 459 us.
when_xla_wins: >-
  No case was measured. At this shape XLA is estimated at 3201 us on v5e, a lower bound, and 1768 us on v6e. A loss
  whose gradient is wanted keeps more than this kernel writes.
sources:
  - "estimated: aka check and aka profile of this kernel on
    examples/cross_entropy.py, libtpu 0.0.42.1, jax 0.10.2"
---
The logits are read from HBM once and nothing but one number is written: no log-probabilities, no gathered column, no
vector of losses. Blocks of the vocabulary stream past a block of rows; running maximum and running sum are kept for
each row and *each lane*, so the inner loop is element-wise and 128 partial results meet only once per row, at the end.

The label's logit is picked up on the way: `label - lane` is compared with the number of the tile's first column, which
costs a comparison and a selection per element and no gather. Labels arrive as a lanes-major (1, rows) vector, since a
(rows, 1) column would be padded 128-fold in HBM and VMEM, and are turned upright with the diagonal of a 128 x 128 mask.
The loss is formed as (max - picked) + log(sum): the large terms cancel exactly before the small one is added.

What it teaches: keep online statistics per lane; pick by comparing where a gather would cost a pass; sum the mean in
the kernel (the row axis is "arbitrary" for that). A label outside 0..v-1 behaves as in `take_along_axis`: a negative
one counts from the end, others give NaN. Labels must be below 2^24.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_rows": 128, "block_vocab": 8192}
LANES, STRIP = 128, 32
LOWEST = float(jnp.finfo(jnp.float32).min)


def reference(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean over all rows of -log_softmax(logits)[label], in f32."""
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    return -jnp.mean(jnp.take_along_axis(log_probs, labels[..., None], axis=-1))


def _vmem_bytes(rows: int, vocab: int, itemsize: int) -> int:
    """Two buffers of logits, four scratch blocks of one tile's width, and slack."""
    return 2 * rows * vocab * itemsize + 24 * rows * LANES + 2**20


def _start(label_ref: Any, top_ref: Any, sum_ref: Any, pick_ref: Any, code_ref: Any, size: int) -> None:
    """Reset the statistics, and write label - lane for each row and lane."""
    top_ref[...] = jnp.full_like(top_ref, LOWEST)
    sum_ref[...] = jnp.zeros_like(sum_ref)
    pick_ref[...] = jnp.full_like(pick_ref, jnp.nan)
    lane = lax.broadcasted_iota(jnp.int32, (LANES, LANES), 1)
    diagonal = lane == lax.broadcasted_iota(jnp.int32, (LANES, LANES), 0)
    for r in range(0, code_ref.shape[0], LANES):
        upright = jnp.where(diagonal, label_ref[:, r : r + LANES].astype(jnp.float32), 0.0)
        label = jnp.sum(upright, axis=1, keepdims=True).astype(jnp.int32)
        code_ref[r : r + LANES] = jnp.where(label < 0, label + size, label) - lane


def _visit(x_ref: Any, top_ref: Any, sum_ref: Any, pick_ref: Any, code_ref: Any, col0: Any, width: int) -> None:
    """Take in `width` columns, `col0` being the number of the first. Strips of rows keep statistics in registers."""

    def strip(i: Any, _: None) -> None:
        at = pl.ds(pl.multiple_of(i * STRIP, STRIP), STRIP)

        def tile(c: int) -> jax.Array:
            x = x_ref[at, c : c + LANES].astype(jnp.float32)
            left = width - c
            return jnp.where(lax.broadcasted_iota(jnp.int32, x.shape, 1) < left, x, -jnp.inf) if left < LANES else x

        columns = range(0, width, LANES)
        old, code, picked = top_ref[at], code_ref[at] - col0, pick_ref[at]
        top = functools.reduce(jnp.maximum, map(tile, columns), old)
        total = sum_ref[at] * jnp.exp(old - top)
        for c in columns:
            x = tile(c)
            total += jnp.exp(x - top)
            picked = jnp.where(code == c, x, picked)
        top_ref[at], sum_ref[at], pick_ref[at] = top, total, picked

    lax.fori_loop(0, x_ref.shape[0] // STRIP, strip, None)


def _losses(top_ref: Any, sum_ref: Any, pick_ref: Any, code_ref: Any) -> jax.Array:
    """The loss of each row as a column, from the statistics of its lanes."""
    top = jnp.max(top_ref[...], axis=1, keepdims=True)
    total = jnp.sum(sum_ref[...] * jnp.exp(top_ref[...] - top), axis=1, keepdims=True)
    own = (code_ref[...] & (LANES - 1)) == 0
    return (top - jnp.sum(jnp.where(own, pick_ref[...], 0.0), axis=1, keepdims=True)) + jnp.log(total)


def _body(x_ref: Any, label_ref: Any, o_ref: Any, *state: Any, n: int, size: int) -> None:
    (rows, bv), step = x_ref.shape, pl.program_id(1)
    last = pl.num_programs(1) - 1
    pl.when(step == 0)(lambda: _start(label_ref, *state, size))
    if size % bv:
        pl.when(step < last)(lambda: _visit(x_ref, *state, step * bv, bv))
        pl.when(step == last)(lambda: _visit(x_ref, *state, step * bv, size % bv))
    else:
        _visit(x_ref, *state, step * bv, bv)

    @pl.when((step == last) & (pl.program_id(0) == 0))
    def _() -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

    @pl.when(step == last)
    def _() -> None:
        row = pl.program_id(0) * rows + lax.broadcasted_iota(jnp.int32, (rows, 1), 0)
        o_ref[...] += jnp.sum(jnp.where(row < n, _losses(*state), 0.0), axis=0, keepdims=True) / n


def kernel(logits: jax.Array, labels: jax.Array, *, block_rows: int = 128, block_vocab: int = 8192) -> jax.Array:
    """Same as `reference`; `block_rows` is rounded up to whole 128s. Raises ValueError if an array is empty or a block
    cannot fit in any chip's VMEM."""
    size = logits.shape[-1]
    if logits.size == 0:
        raise ValueError("The cross entropy of an empty array has nothing to compute.")
    flat = logits.reshape(-1, size)
    n = flat.shape[0]
    rows = pl.cdiv(min(block_rows, n), LANES) * LANES
    bv = pl.cdiv(min(block_vocab, size), LANES) * LANES
    needed = _vmem_bytes(rows, bv, flat.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"A block of {rows} rows of {bv} does not fit in VMEM.")
    state = [pltpu.VMEM((rows, LANES), dtype) for dtype in (jnp.float32, jnp.float32, jnp.float32, jnp.int32)]
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, n=n, size=size),
        grid=(pl.cdiv(n, rows), pl.cdiv(size, bv)),
        in_specs=[pl.BlockSpec((rows, bv), lambda i, j: (i, j)), pl.BlockSpec((1, rows), lambda i, j: (0, i))],
        out_specs=pl.BlockSpec((1, 1), lambda i, j: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((1, 1), jnp.float32),
        scratch_shapes=state,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"), vmem_limit_bytes=needed if needed > 16 * 2**20 else None
        ),
    )(flat, labels.reshape(1, n).astype(jnp.int32))
    return y.reshape(())


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Row and vocabulary blocks. Each fits the chip's VMEM (16, 64, 128 MiB a core) beside the first of the other."""
    x = shapes[0]
    size, rows = x.shape[-1], max(1, x.size // x.shape[-1])
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    whole = pl.cdiv(size, LANES) * LANES
    widths = [w for w in (8192, 4096, 16384, 2048, whole, 6400, 3200, 1024) if w <= whole]
    fits = [w for w in widths if _vmem_bytes(LANES, w, x.dtype.itemsize) <= budget] or [LANES]
    heights = [r for r in (128, 256, 512) if _vmem_bytes(r, fits[0], x.dtype.itemsize) <= budget]
    return {
        "block_rows": [r for r in heights if r < 2 * rows or r == LANES] or [LANES],
        "block_vocab": list(dict.fromkeys(fits)),
    }

"""---
id: middle-reduction-blocks
title: Mean or sum over the middle axis (pooling over a sequence)
family: middle_reduction
op: y = mean(x, 1) or sum(x, 1)
signature: "x:f[b,s,d] -> f[b,d]"
statics: {mean: bool}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [reduction-innermost, f32-accumulator, masked-tail, unit-axis-output, vmem-budget]
primitives: [reduce_sum, div, convert_element_type]
when_to_use: >-
  Mean of bf16[16,4096,2048] over positions: 328 us on v5e and 164 us on v6e at 1 x 512 x 2048, the time of 268.5 MB
  of HBM traffic (v5e cycles: 274 us). XLA's version is estimated at 490 us on v5e, where its cycles are longer than
  HBM takes.
when_xla_wins: >-
  Not at this shape. In f32 expect a tie, as for the leading axis (see column-reduction-blocks).
sources:
  - "estimated: aka check and aka profile of this kernel, libtpu 0.0.42.1, jax 0.10.2"
---
Features lie across the lanes and positions across the sublanes, so pooling adds whole registers. Blocks of positions
run innermost and add to f32 rows in VMEM; the mean is one product at the end. Short sequences want several batch
entries per step, long ones a single entry.

What it teaches: the result is written as [b, 1, d] and reshaped afterwards. A block of one row of [b, d] is not
allowed (rows come in eights), a block [1, 1, d] is, because its last two axes are whole or aligned.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_b": 1, "block_s": 512, "block_d": 2048}


def reference(x: jax.Array, *, mean: bool = True) -> jax.Array:
    """Mean (or sum) over axis 1 in f32. The result has the dtype of x."""
    wide = x.astype(jnp.float32)
    return (jnp.mean(wide, axis=1) if mean else jnp.sum(wide, axis=1)).astype(x.dtype)


def _vmem_bytes(bb: int, bs: int, bd: int, itemsize: int) -> int:
    """Two buffers of the input, one f32 copy of the block, the rows of output and accumulator, and slack."""
    return bb * pl.cdiv(bs, 8) * 8 * bd * (2 * itemsize + 4) + 128 * bb * bd + 2**20


def _body(x_ref: Any, y_ref: Any, acc_ref: Any, *, tail: int, scale: float) -> None:
    step, last = pl.program_id(2), pl.num_programs(2) - 1

    @pl.when(step == 0)
    def _() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def accumulate(masked: bool) -> None:
        x = x_ref[...].astype(jnp.float32)
        if masked:
            x = jnp.where(lax.broadcasted_iota(jnp.int32, x.shape, 1) < tail, x, 0.0)
        acc_ref[...] += jnp.sum(x, axis=1, keepdims=True)

    if tail:
        pl.when(step < last)(lambda: accumulate(False))
        pl.when(step == last)(lambda: accumulate(True))
    else:
        accumulate(False)

    @pl.when(step == last)
    def _() -> None:
        y_ref[...] = (acc_ref[...] * scale).astype(y_ref.dtype)


def kernel(x: jax.Array, *, mean: bool = True, block_b: int = 1, block_s: int = 512, block_d: int = 2048) -> jax.Array:
    """Same as `reference`. Raises ValueError if x is empty or a block cannot fit in any chip's VMEM."""
    b, s, d = x.shape
    if x.size == 0:
        raise ValueError("A reduction of an empty array has nothing to compute.")
    bb, bs, bd = min(block_b, b), min(block_s, s), min(block_d, d)
    needed = _vmem_bytes(bb, bs, bd, x.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"A block of {bb} x {bs} x {bd} does not fit in VMEM.")
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, tail=s % bs, scale=1.0 / s if mean else 1.0),
        grid=(pl.cdiv(b, bb), pl.cdiv(d, bd), pl.cdiv(s, bs)),
        in_specs=[pl.BlockSpec((bb, bs, bd), lambda i, j, k: (i, k, j))],
        out_specs=pl.BlockSpec((bb, 1, bd), lambda i, j, k: (i, 0, j)),
        out_shape=jax.ShapeDtypeStruct((b, 1, d), x.dtype),
        scratch_shapes=[pltpu.VMEM((bb, 1, bd), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(x)
    return y.reshape(b, d)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Blocks up to the array; any three values together fit the chip's VMEM."""
    x = shapes[0]
    b, s, d = x.shape
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    entries = [1] if s >= 512 else [v for v in (8, 4, 2, 1) if v < 2 * b]
    positions = [v for v in (512, 256, 1024, 128) if v < 2 * s] or [128]
    worst = functools.partial(_vmem_bytes, max(entries), min(max(positions), s))
    fits = [v for v in (2048, 1024, 4096, 512) if v < 2 * d and worst(v, x.dtype.itemsize) <= budget]
    return {"block_b": entries, "block_s": positions, "block_d": fits or [512]}

"""---
id: mlp-two-matmul
title: GELU MLP, both matmuls in one kernel, hidden activations only in VMEM
family: mlp
op: y = gelu(x @ w1) @ w2
signature: "x:f[*rows,d], w1:f[d,h], w2:f[h,n] -> f[*rows,n]"
statics: {approximate: bool}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [back-to-back-matmul, hidden-innermost, f32-accumulator, masked-tail, vmem-budget]
primitives: [dot_general, mul, add, tanh, erf, integer_pow]
when_to_use: >-
  Many rows, and d and n small enough to stay in VMEM. bf16 x [8192,2048], w1 [2048,8192], w2 [8192,2048]: 2850 us on
  v5e with the first choices of the search space, where 550 GFLOP at 197 TFLOP/s take 2791 us.
when_xla_wins: >-
  XLA's version was not measured; on v5e at this shape it has at most 2 % to gain over this kernel. With few rows, or
  with d and n so large that only small row blocks fit, the weights are read too often.
sources:
  - "estimated: aka check and aka profile of this kernel, libtpu 0.0.42.1, jax 0.10.2"
---
A block of rows of x stays in VMEM while the hidden axis streams past: for each stretch of hidden units, x times a block
of w1, GELU, times the matching block of w2, added to an f32 accumulator as wide as the output. The hidden activations,
the largest array of the op, never reach HBM. The price: both weights are read once per block of rows, so the rows must
be many (`block_m` / 2 FLOP per byte of bf16 weights in each matmul), and all of d and n must fit beside them.

A partial last hidden block holds garbage in w1's columns and w2's rows; both the activations and w2 are zeroed there,
since 0 * NaN is NaN.

What it teaches: two matmuls fuse when the axis between them is the one that is walked. MXU-bound ops gain only what the
traffic cost before, so expect a few per cent at many rows and more where HBM bounds.
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

TUNED_PARAMS = {"block_m": 512, "block_h": 512}
LANES = 128


def reference(x: jax.Array, w1: jax.Array, w2: jax.Array, *, approximate: bool = True) -> jax.Array:
    """gelu(x @ w1) @ w2, each product accumulated in f32, the activations rounded to x's dtype between them."""
    hidden = jnp.dot(x, w1, preferred_element_type=jnp.float32)
    hidden = jax.nn.gelu(hidden, approximate=approximate).astype(x.dtype)
    return jnp.dot(hidden, w2, preferred_element_type=jnp.float32).astype(x.dtype)


def _vmem_bytes(bm: int, bh: int, d: int, n: int, itemsize: int) -> int:
    """Two buffers of x, output and weights, accumulator and one product, f32 and rounded activations, and slack."""
    return 2 * itemsize * (bm * (d + n) + bh * (d + n)) + 8 * bm * n + bm * bh * (8 + itemsize) + 2**21


def _gelu(x: jax.Array, approximate: bool) -> jax.Array:
    # The exact form is spelled with erf: Mosaic has no erfc, which jax.nn.gelu uses.
    if approximate:
        return 0.5 * x * (1.0 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + lax.erf(x * math.sqrt(0.5)))


def _within(block: jax.Array, axis: int, size: int) -> jax.Array:
    index = lax.broadcasted_iota(jnp.int32, block.shape, axis)
    return jnp.where(index < size, block, jnp.zeros_like(block))


def _body(x_ref: Any, w1_ref: Any, w2_ref: Any, y_ref: Any, acc_ref: Any, *, tail: int, approximate: bool) -> None:
    step, last = pl.program_id(1), pl.num_programs(1) - 1

    @pl.when(step == 0)
    def _() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def accumulate(masked: bool) -> None:
        w2 = _within(w2_ref[...], 0, tail) if masked else w2_ref[...]
        hidden = _gelu(jnp.dot(x_ref[...], w1_ref[...], preferred_element_type=jnp.float32), approximate)
        hidden = _within(hidden, 1, tail) if masked else hidden
        acc_ref[...] += jnp.dot(hidden.astype(x_ref.dtype), w2, preferred_element_type=jnp.float32)

    if tail:
        pl.when(step < last)(lambda: accumulate(False))
        pl.when(step == last)(lambda: accumulate(True))
    else:
        accumulate(False)

    @pl.when(step == last)
    def _() -> None:
        y_ref[...] = acc_ref[...].astype(y_ref.dtype)


def kernel(
    x: jax.Array, w1: jax.Array, w2: jax.Array, *, approximate: bool = True, block_m: int = 512, block_h: int = 512
) -> jax.Array:
    """Same as `reference`. Raises ValueError if an array is empty or the blocks cannot fit in any chip's VMEM."""
    (d, h), n = w1.shape, w2.shape[1]
    if x.size * h * n == 0:
        raise ValueError("An MLP over empty arrays has nothing to compute.")
    flat = x.reshape(-1, d)
    bm, bh = min(block_m, flat.shape[0]), min(block_h, pl.cdiv(h, LANES) * LANES)
    needed = _vmem_bytes(bm, bh, d, n, max(a.dtype.itemsize for a in (x, w1, w2)))
    if needed > 120 * 2**20:
        raise ValueError(f"Blocks of {bm} rows of {d} and {n} with {bh} hidden units do not fit in VMEM.")
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, tail=h % bh, approximate=approximate),
        grid=(pl.cdiv(flat.shape[0], bm), pl.cdiv(h, bh)),
        in_specs=[
            pl.BlockSpec((bm, d), lambda i, j: (i, 0)),
            pl.BlockSpec((d, bh), lambda i, j: (0, j)),
            pl.BlockSpec((bh, n), lambda i, j: (j, 0)),
        ],
        out_specs=pl.BlockSpec((bm, n), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((flat.shape[0], n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, n), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(flat, w1, w2)
    return y.reshape(*x.shape[:-1], n)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Blocks of rows and of hidden units, each fitting the chip's VMEM beside the first choice of the other."""
    x, w1, w2 = shapes
    (d, h), n = w1.shape, w2.shape[1]
    count = max(1, x.size // d)
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    itemsize = max(a.dtype.itemsize for a in (x, w1, w2))

    def fits(bm: int, bh: int) -> bool:
        return _vmem_bytes(min(bm, count), bh, d, n, itemsize) <= budget

    pairs = ((1024, 512), (512, 512), (512, 256), (256, 256), (128, 256), (128, 128), (64, 128), (8, 128))
    first = next((p for p in pairs if fits(*p)), pairs[-1])
    rows = [b for b in (1024, 512, 2048, 256, 128, 64) if b < 2 * count and b != first[0] and fits(b, first[1])]
    hidden = [b for b in (512, 1024, 256, 2048, 128) if b < 2 * h and b != first[1] and fits(first[0], b)]
    return {"block_m": [min(first[0], count), *rows], "block_h": [first[1], *hidden]}

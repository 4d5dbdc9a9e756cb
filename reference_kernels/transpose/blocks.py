"""---
id: transpose-blocks
title: Transpose of the last two axes, square blocks
family: transpose
op: y = swapaxes(x, -1, -2)
signature: "x:f[*batch,m,n] -> f[*batch,n,m]"
statics: {}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [swapped-index-map, in-register-transpose, aligned-blocks, vmem-budget]
primitives: [transpose]
when_to_use: >-
  A frame for a transpose with something else fused to it. f32[8192,8192] in 512 x 512: 656 us on v5e and 328 us on
  v6e, the time of 536.9 MB of HBM traffic (v5e cycles: 390 us).
when_xla_wins: >-
  A tie at this shape: XLA's copy is estimated at 656 us on v5e as well, with fewer cycles (364 us). And XLA often
  needs no transpose at all, since it may choose the layout of an intermediate array. Batches of small matrices make
  small blocks here.
sources:
  - "estimated: aka check and aka profile of this kernel, libtpu 0.0.42.1, jax 0.10.2"
---
Block (i, j) of the input is transposed in registers and written as block (j, i): the index maps move the blocks, the
cross-lane unit turns them. Both sides of a block should be wide, since a block is read in stretches of its width and
written in stretches of its height. Blocks are whole multiples of 128 even where the array ends earlier, because the
unit turns whole tiles; what lies beyond the array is garbage that is never written.

What it teaches: a transpose that only feeds a matmul needs no kernel (contract the other axis instead); one that must
exist costs its bytes once, as long as the cross-lane unit keeps up.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_m": 512, "block_n": 512}
LANES = 128


def reference(x: jax.Array) -> jax.Array:
    """The last two axes exchanged."""
    return jnp.swapaxes(x, -1, -2)


def _vmem_bytes(bm: int, bn: int, itemsize: int) -> int:
    """Two buffers each of input and output, two f32 copies of the block, and slack."""
    return bm * bn * (4 * itemsize + 8) + 2**20


def _body(x_ref: Any, y_ref: Any) -> None:
    y_ref[...] = x_ref[...].T


def kernel(x: jax.Array, *, block_m: int = 512, block_n: int = 512) -> jax.Array:
    """Same as `reference`. Raises ValueError if x is empty, a block size is no multiple of 128, or a block cannot fit
    in any chip's VMEM."""
    m, n = x.shape[-2:]
    if x.size == 0:
        raise ValueError("A transpose of an empty array has nothing to move.")
    if block_m % LANES or block_n % LANES:
        raise ValueError(f"Blocks of {block_m} x {block_n} are no multiples of {LANES}.")
    flat = x.reshape(-1, m, n)
    bm, bn = (min(b, pl.cdiv(size, LANES) * LANES) for b, size in ((block_m, m), (block_n, n)))
    needed = _vmem_bytes(bm, bn, x.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"A block of {bm} x {bn} does not fit in VMEM.")
    y: jax.Array = pl.pallas_call(
        _body,
        grid=(flat.shape[0], pl.cdiv(m, bm), pl.cdiv(n, bn)),
        in_specs=[pl.BlockSpec((None, bm, bn), lambda b, i, j: (b, i, j))],
        out_specs=pl.BlockSpec((None, bn, bm), lambda b, i, j: (b, j, i)),
        out_shape=jax.ShapeDtypeStruct((flat.shape[0], n, m), x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(flat)
    return y.reshape(*x.shape[:-2], n, m)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Blocks up to the array; any pair of values fits the chip's VMEM."""
    x = shapes[0]
    m, n = x.shape[-2:]
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    fits = [b for b in (512, 256, 1024, 128, 2048) if _vmem_bytes(b, b, x.dtype.itemsize) <= budget]
    return {
        "block_m": [b for b in fits if b < 2 * m or b == 128],
        "block_n": [b for b in fits if b < 2 * n or b == 128],
    }

"""---
id: quantize-rowwise-int8
title: Symmetric int8 quantization of rows by their largest magnitude
family: quantize
op: scale = max(max(abs(x), -1), floor) / 127; q = int8(round(x / scale)); returns q, scale
signature: "x:f[*rows,d] -> int8[*rows,d], float32[*rows,1]"
statics: {floor: float}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [row-blocks, single-pass, reciprocal-per-row, two-outputs, lanes-major-output, vmem-budget]
primitives: [abs, reduce_max, max, div, round, convert_element_type]
tags: [quantization, int8, absmax, dynamic, activation]
when_to_use: >-
  Activations that an int8 matmul follows. bf16[8,4096,4096] with block_rows 128: 492 us on v5e and 246 us on v6e, the
  time of one pass over HBM. An earlier form with a division per element had 583,200 and 392,899 cycles, 389 and 225
  us, and so the same times.
when_xla_wins: >-
  No case was measured. At this shape XLA is estimated at 975 us on v5e and 411 us on v6e. Where XLA fuses the
  quantization with what makes x, this kernel adds a trip through HBM.
sources:
  - "estimated: aka profile reference_kernels/quantize/rowwise_int8.py, bf16[8,4096,4096], libtpu 0.0.42.1, jax 0.10.2"
---
Each row is read once: the largest magnitude, the scaling and the rounding happen while the block of rows is in
VMEM. The codes leave as int8; the conversion goes through int32, the only integer that the vector unit computes with.

The scales are one number per row. A diagonal mask and a sum over sublanes lay 128 of them along the lanes, so they
leave as a (1, n) array; as a column every scale would fill 512 bytes.

What it teaches: an integer output leaves no tolerance, so mind the ties, which bfloat16 makes common: where x is half
of the largest magnitude the code is 63.5, and the last bit of the scale decides. On the CPU, XLA computes
x * (1 / (largest * (1/127))) for x / (largest / 127), and so does the kernel: on 512 rows of 512 all codes were the
same, where the form as written differs in 121. The only division is one per row.

`floor` bounds the magnitude from below, as in max(absmax, 1e-8); the default 0 is no bound, and then a row of zeros
gives the code 0, by way of 0 * inf. A row with a NaN gives 0 as well.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_rows": 128}
LANES = 128


def reference(x: jax.Array, *, floor: float = 0.0) -> tuple[jax.Array, jax.Array]:
    """Codes -127..127 in the shape of x, and the scale of each row as a column in f32."""
    wide = x.astype(jnp.float32)
    scale = jnp.maximum(jnp.max(jnp.abs(wide), axis=-1, keepdims=True), floor) / 127.0
    return jnp.round(wide / scale).astype(jnp.int8), scale


def _vmem_bytes(rows: int, d: int, itemsize: int) -> int:
    """Two buffers each of input and codes, one f32 copy of the block, and slack."""
    return rows * d * (2 * itemsize + 2 + 4) + 2**20


def _body(x_ref: Any, q_ref: Any, scale_ref: Any, *, floor: float) -> None:
    x = x_ref[...].astype(jnp.float32)
    largest = jnp.maximum(jnp.max(jnp.abs(x), axis=-1, keepdims=True), floor)
    # XLA on the CPU makes products with reciprocals of both divisions; other forms round other ties.
    scale = largest * (1.0 / 127.0)
    q_ref[...] = jnp.round(x * (1.0 / scale)).astype(jnp.int32).astype(jnp.int8)
    square = (LANES, LANES)
    diagonal = lax.broadcasted_iota(jnp.int32, square, 0) == lax.broadcasted_iota(jnp.int32, square, 1)
    for r in range(0, x.shape[0], LANES):
        across = jnp.where(diagonal, scale[r : r + LANES], 0.0)
        scale_ref[:, r : r + LANES] = jnp.sum(across, axis=0, keepdims=True)


def kernel(x: jax.Array, *, floor: float = 0.0, block_rows: int = 128) -> tuple[jax.Array, jax.Array]:
    """Same as `reference`; `block_rows` is rounded up to whole 128s. Raises ValueError if x is empty or a block of rows
    cannot fit in any chip's VMEM."""
    d = x.shape[-1]
    if x.size == 0:
        raise ValueError("There is nothing to quantize in an empty array.")
    n = x.size // d
    rows = pl.cdiv(min(block_rows, n), LANES) * LANES
    needed = _vmem_bytes(rows, d, x.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"A block of {rows} rows of {d} does not fit in VMEM.")
    block = pl.BlockSpec((rows, d), lambda i: (i, 0))
    q, scale = pl.pallas_call(
        functools.partial(_body, floor=floor),
        grid=(pl.cdiv(n, rows),),
        in_specs=[block],
        out_specs=[block, pl.BlockSpec((1, rows), lambda i: (0, i))],
        out_shape=[jax.ShapeDtypeStruct((n, d), jnp.int8), jax.ShapeDtypeStruct((1, n), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=needed if needed > 16 * 2**20 else None
        ),
    )(x.reshape(n, d))
    return q.reshape(x.shape), scale.reshape(*x.shape[:-1], 1)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Row blocks that fit the chip's VMEM (16, 64 or 128 MiB a core); beyond the row count all are alike."""
    x = shapes[0]
    rows, d = max(1, x.size // x.shape[-1]), x.shape[-1]
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    heights = (128, 256, 384, 512, 640, 768, 1024, 1536, 2048)
    fits = [r for r in heights if _vmem_bytes(r, d, x.dtype.itemsize) <= budget]
    return {"block_rows": [r for r in fits if r < 2 * rows or r == LANES] or [LANES]}

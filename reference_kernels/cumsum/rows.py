"""---
id: cumsum-rows
title: Cumulative sum along the last axis, by triangular matmul, carried over blocks
family: cumsum
op: y = cumsum(x, -1)
signature: "x:f[*rows,d] -> f[*rows,d]"
statics: {}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [triangular-matmul, three-part-f32, masked-tail, carry-in-scratch, f32-accumulator, vmem-budget]
primitives: [cumsum]
when_to_use: >-
  f32[8192,8192] at 256 x 1024: 656 us on v5e, the time of 536.9 MB of HBM traffic (cycles: 486 us), and 342 us of
  cycles on v6e, where HBM takes 328. On v5e XLA's version moves 3.2 GB, which alone takes 3936 us.
when_xla_wins: >-
  No case was measured. Rows shorter than 128 fill only a part of each product.
sources:
  - "estimated: aka check and aka profile of this kernel, libtpu 0.0.42.1, jax 0.10.2"
---
Mosaic has no cumsum. Within 128 lanes the running sum is a product with a triangle of ones on the MXU, which has
nothing else to do here. One pass of the MXU rounds its operands to bf16: bf16 data pass as they are; f32 data are
split into three bf16 parts that hold all 24 bits, and the three products are added, so the sums are f32 sums. The last
lane then holds the sum of the piece; spread over all lanes it is the carry of the next piece, and from one column block
to the next it waits in a scratch of [rows, 128]. The array is read once and written once.

A zero of the triangle does not hide an infinity or NaN: 0 * inf is NaN, and would spoil the piece from its first lane.
So they are taken out, a fourth product counts where they have occurred, and they are put back from there on. Padding
is zeroed for the same reason.

What it teaches: a scan along the lanes as seven rolls with masks is bound by the cross-lane unit (1180 us on v5e at the
shape above); a matmul by a 0/1 matrix moves the work to an idle unit. A scan across blocks is an "arbitrary" grid axis
with a scratch.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_rows": 256, "block_cols": 1024}
LANES = 128
LARGEST = 3.3895313892515355e38  # of bf16; what is larger would become an infinite part


def reference(x: jax.Array) -> jax.Array:
    """Cumulative sum over the last axis in f32. The result has the dtype of x."""
    return jnp.cumsum(x.astype(jnp.float32), axis=-1).astype(x.dtype)


def _vmem_bytes(rows: int, cols: int, itemsize: int) -> int:
    """Two buffers each of input and output, one f32 copy of the block, the carry, and slack."""
    return rows * cols * (4 * itemsize + 4) + rows * LANES * 16 + 2**20


def _parts(x: jax.Array, count: int) -> list[jax.Array]:
    """bf16 arrays that sum to x: three hold the 24 bits of an f32."""
    rest, parts = x, []
    for _ in range(count):
        parts.append(rest.astype(jnp.bfloat16))
        rest = rest - parts[-1].astype(jnp.float32)
    return parts


def _marks(x: jax.Array) -> jax.Array:
    """1 for inf, 256 for -inf, 65536 for NaN, else 0: a sum of up to 128 of them tells which have occurred."""
    mark = jnp.where(x > 0, 1.0, jnp.where(x < 0, 256.0, 65536.0))
    return jnp.where(jnp.abs(x) <= LARGEST, 0.0, mark)


def _restored(y: jax.Array, seen: jax.Array) -> jax.Array:
    """y with inf, -inf or NaN from where on they have occurred."""
    minus = jnp.floor(seen * (1 / 256))
    y = jnp.where(seen > minus * 256, y + jnp.inf, y)
    y = jnp.where(minus > 0, y - jnp.inf, y)
    return jnp.where(seen >= 65536, jnp.nan, y)


def _body(x_ref: Any, y_ref: Any, carry_ref: Any, *, tail: int) -> None:
    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        carry_ref[...] = jnp.zeros_like(carry_ref)

    row, lane = (lax.broadcasted_iota(jnp.int32, (LANES, LANES), axis) for axis in (0, 1))
    triangle = jnp.where(row <= lane, 1.0, 0.0).astype(jnp.bfloat16)
    count = 1 if x_ref.dtype == jnp.bfloat16 else 3

    def running(part: jax.Array) -> jax.Array:
        return jnp.dot(part.astype(jnp.bfloat16), triangle, preferred_element_type=jnp.float32)

    def scan(masked: bool) -> None:
        carry = carry_ref[...]
        for c in range(0, x_ref.shape[1], LANES):
            x = x_ref[:, c : c + LANES].astype(jnp.float32)
            if masked:
                x = jnp.where(lax.broadcasted_iota(jnp.int32, x.shape, 1) < tail - c, x, 0.0)
            finite = jnp.where(jnp.abs(x) <= LARGEST, x, 0.0)
            y = carry + sum(running(part) for part in _parts(finite, count))
            y = _restored(y, running(_marks(x)))
            y_ref[:, c : c + LANES] = y.astype(y_ref.dtype)
            carry = jnp.broadcast_to(y[:, LANES - 1 :], y.shape)
        carry_ref[...] = carry

    if tail:
        last = pl.num_programs(1) - 1
        pl.when(pl.program_id(1) < last)(lambda: scan(False))
        pl.when(pl.program_id(1) == last)(lambda: scan(True))
    else:
        scan(False)


def kernel(x: jax.Array, *, block_rows: int = 256, block_cols: int = 1024) -> jax.Array:
    """Same as `reference`. Raises ValueError if x is empty, block_cols is no multiple of 128, or a block cannot fit in
    any chip's VMEM."""
    d = x.shape[-1]
    if x.size == 0:
        raise ValueError("A cumulative sum over an empty array has nothing to compute.")
    if block_cols % LANES:
        raise ValueError(f"Blocks of {block_cols} columns are no multiple of {LANES}.")
    flat = x.reshape(-1, d)
    rows, cols = min(block_rows, flat.shape[0]), min(block_cols, pl.cdiv(d, LANES) * LANES)
    needed = _vmem_bytes(rows, cols, x.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"A block of {rows} x {cols} does not fit in VMEM.")
    block = pl.BlockSpec((rows, cols), lambda i, j: (i, j))
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, tail=d % cols),
        grid=(pl.cdiv(flat.shape[0], rows), pl.cdiv(d, cols)),
        in_specs=[block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(flat.shape, x.dtype),
        scratch_shapes=[pltpu.VMEM((rows, LANES), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(flat)
    return y.reshape(x.shape)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Blocks up to the array; any pair of values fits the chip's VMEM."""
    x = shapes[0]
    d = x.shape[-1]
    count = max(1, x.size // d)
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    cols = [c for c in (1024, 512, 2048, 256, 128) if c < 2 * d or c == 128]
    rows = (256, 128, 512, 64, 32)
    fits = [r for r in rows if r < 2 * count and _vmem_bytes(r, max(cols), x.dtype.itemsize) <= budget]
    return {"block_rows": fits or [32], "block_cols": cols}

"""---
id: geglu-split
title: GeGLU of the two halves of one array
family: geglu
op: y = gelu(gate) * up, where x = concat(gate, up)
signature: "x:f[*rows,c] -> f[*rows,d]"
statics: {approximate: bool, gate_first: bool}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [fused-elementwise, slice-by-index-map, operand-passed-twice, f32-arithmetic]
primitives: [split, slice, tanh, erf, integer_pow, mul, add, convert_element_type]
when_to_use: >-
  The frame for a gate over a fused gate-and-up product. bf16[8192,16384], tanh form: 492 us on v5e and 246 us on v6e
  at 256 x 2048, the time of 402.7 MB of HBM traffic (v5e cycles: 217 us).
when_xla_wins: >-
  Expect a tie: XLA's version was not measured here, but for SwiGLU it fuses the slices too (see swiglu-split). A half
  that is no multiple of 128 wide makes blocks of whole rows, cut in registers.
sources:
  - "estimated: aka check and aka profile of this kernel, libtpu 0.0.42.1, jax 0.10.2"
---
Gate and up arrive as the halves of one array, as a fused gate-and-up matmul leaves them. Sliced in XLA, both halves may
be copied first. Here one array is given to the kernel twice, and the index maps of the two operands differ by half the
number of column blocks: the slice costs nothing. That needs blocks that divide d, so the width is the largest multiple
of 128 up to `block_cols` that does. Where d is no multiple of 128 a block holds whole rows and is cut in registers.

What it teaches: a slice, a split or a roll by whole blocks is an index map. `gate_first` says which half is gated.
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

TUNED_PARAMS = {"block_rows": 256, "block_cols": 2048}


def reference(x: jax.Array, *, approximate: bool = True, gate_first: bool = True) -> jax.Array:
    """gelu(gate) * up in f32, where gate is the first half of the last axis (the second if not `gate_first`)."""
    first, second = jnp.split(x, 2, axis=-1)
    gate, up = (first, second) if gate_first else (second, first)
    return (jax.nn.gelu(gate.astype(jnp.float32), approximate=approximate) * up.astype(jnp.float32)).astype(x.dtype)


def _act(gate: jax.Array, approximate: bool) -> jax.Array:
    # The exact form is spelled with erf: Mosaic has no erfc, which jax.nn.gelu uses.
    if approximate:
        return 0.5 * gate * (1.0 + jnp.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate * gate * gate)))
    return 0.5 * gate * (1.0 + lax.erf(gate * math.sqrt(0.5)))


def _vmem_bytes(rows: int, cols: int, itemsize: int) -> int:
    """Two buffers each of two inputs and the output, two f32 copies of the block, and slack."""
    return rows * cols * (6 * itemsize + 8) + 2**20


def _halves(gate_ref: Any, up_ref: Any, y_ref: Any, *, approximate: bool) -> None:
    gate = gate_ref[...].astype(jnp.float32)
    y_ref[...] = (_act(gate, approximate) * up_ref[...].astype(jnp.float32)).astype(y_ref.dtype)


def _whole(x_ref: Any, y_ref: Any, *, approximate: bool, gate_first: bool) -> None:
    d = y_ref.shape[1]
    x = x_ref[...].astype(jnp.float32)
    gate, up = (x[:, :d], x[:, d:]) if gate_first else (x[:, d:], x[:, :d])
    y_ref[...] = (_act(gate, approximate) * up).astype(y_ref.dtype)


def _width(d: int, block_cols: int) -> int | None:
    """The widest block of whole registers that divides d, or None."""
    return next((c for c in range(min(block_cols, d) // 128 * 128, 0, -128) if d % c == 0), None)


def kernel(
    x: jax.Array, *, approximate: bool = True, gate_first: bool = True, block_rows: int = 256, block_cols: int = 2048
) -> jax.Array:
    """Same as `reference`. Raises ValueError if x is empty, its last axis is odd, or a block cannot fit in any chip's
    VMEM."""
    d, odd = divmod(x.shape[-1], 2)
    if x.size == 0:
        raise ValueError("A gate over an empty array has nothing to compute.")
    if odd:
        raise ValueError(f"An axis of {x.shape[-1]} has no two halves.")
    flat = x.reshape(-1, 2 * d)
    cols = _width(d, block_cols)
    rows = min(block_rows, flat.shape[0])
    needed = _vmem_bytes(rows, cols or pl.cdiv(d, 128) * 128, x.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"A block of {rows} rows of {cols or 2 * d} does not fit in VMEM.")
    if cols is None:
        steps, specs, out_cols = 1, [pl.BlockSpec((rows, 2 * d), lambda i, j: (i, 0))], d
        body = functools.partial(_whole, approximate=approximate, gate_first=gate_first)
    else:
        steps, out_cols = d // cols, cols
        shifts = (0, steps) if gate_first else (steps, 0)
        specs = [pl.BlockSpec((rows, cols), lambda i, j, shift=shift: (i, j + shift)) for shift in shifts]
        body = functools.partial(_halves, approximate=approximate)
    y: jax.Array = pl.pallas_call(
        body,
        grid=(pl.cdiv(flat.shape[0], rows), steps),
        in_specs=specs,
        out_specs=pl.BlockSpec((rows, out_cols), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((flat.shape[0], d), x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(*[flat] * len(specs))
    return y.reshape(*x.shape[:-1], d)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Rectangles up to the halves; any pair of values fits the chip's VMEM."""
    x = shapes[0]
    d = x.shape[-1] // 2
    count = max(1, x.size // x.shape[-1])
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    cols = [c for c in (2048, 1024, 4096, 512) if c < 2 * d] or [512]
    widest = pl.cdiv(d, 128) * 128 if d % 128 else max(cols)
    rows = (256, 128, 512, 64, 32, 16, 8)
    fits = [r for r in rows if r < 2 * count and _vmem_bytes(r, widest, x.dtype.itemsize) <= budget]
    return {"block_rows": fits or [8], "block_cols": cols}

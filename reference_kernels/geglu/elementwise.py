"""---
id: geglu-elementwise
title: GeGLU of two arrays in one pass
family: geglu
op: y = gelu(gate) * up
signature: "gate:f[*rows,d], up:f[*rows,d] -> f[*rows,d]"
statics: {approximate: bool}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [fused-elementwise, two-axis-blocks, f32-arithmetic]
primitives: [tanh, erf, integer_pow, mul, add, convert_element_type]
when_to_use: >-
  The frame for a gate that grows into a larger kernel. bf16[8192,8192] twice, tanh form: 492 us on v5e and 246 us on
  v6e at 256 x 2048, the time of 402.7 MB of HBM traffic (v5e cycles: 217 us). The exact form was not measured.
when_xla_wins: >-
  A tie at this shape: XLA's fusion is estimated at 492 us on v5e as well, with slightly fewer cycles (199 us).
sources:
  - "estimated: aka check and aka profile of this kernel, libtpu 0.0.42.1, jax 0.10.2"
---
The frame of SwiGLU with GELU as the gate: two arrays in, one out, f32 arithmetic, one rounding. The tanh form is one
transcendental and a few products per element; the exact form needs erf, native on v6e and tpu7x and a long polynomial
elsewhere, where it can cost more than HBM does.

What it teaches: which form of an activation is computed decides the bound. Count its vector operations against the
bytes per element before choosing.
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


def reference(gate: jax.Array, up: jax.Array, *, approximate: bool = True) -> jax.Array:
    """gelu(gate) * up in f32; the result has the promoted dtype of the two."""
    return (jax.nn.gelu(gate.astype(jnp.float32), approximate=approximate) * up.astype(jnp.float32)).astype(
        jnp.result_type(gate, up)
    )


def _act(gate: jax.Array, approximate: bool) -> jax.Array:
    # The exact form is spelled with erf: Mosaic has no erfc, which jax.nn.gelu uses.
    if approximate:
        return 0.5 * gate * (1.0 + jnp.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate * gate * gate)))
    return 0.5 * gate * (1.0 + lax.erf(gate * math.sqrt(0.5)))


def _vmem_bytes(rows: int, cols: int, itemsize: int) -> int:
    """Two buffers each of two inputs and the output, two f32 copies of the block, and slack."""
    return rows * cols * (6 * itemsize + 8) + 2**20


def _body(gate_ref: Any, up_ref: Any, y_ref: Any, *, approximate: bool) -> None:
    gate = gate_ref[...].astype(jnp.float32)
    y_ref[...] = (_act(gate, approximate) * up_ref[...].astype(jnp.float32)).astype(y_ref.dtype)


def kernel(
    gate: jax.Array, up: jax.Array, *, approximate: bool = True, block_rows: int = 256, block_cols: int = 2048
) -> jax.Array:
    """Same as `reference`. Raises ValueError if the arrays are empty or a block cannot fit in any chip's VMEM."""
    d = gate.shape[-1]
    if gate.size == 0:
        raise ValueError("A gate over empty arrays has nothing to compute.")
    flat = gate.reshape(-1, d)
    rows, cols = min(block_rows, flat.shape[0]), min(block_cols, d)
    needed = _vmem_bytes(rows, cols, max(gate.dtype.itemsize, up.dtype.itemsize))
    if needed > 120 * 2**20:
        raise ValueError(f"A block of {rows} x {cols} does not fit in VMEM.")
    block = pl.BlockSpec((rows, cols), lambda i, j: (i, j))
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, approximate=approximate),
        grid=(pl.cdiv(flat.shape[0], rows), pl.cdiv(d, cols)),
        in_specs=[block, block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(flat.shape, jnp.result_type(gate, up)),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(flat, up.reshape(-1, d))
    return y.reshape(gate.shape)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Rectangles up to the array; any pair of values fits the chip's VMEM."""
    gate = shapes[0]
    d = gate.shape[-1]
    count = max(1, gate.size // d)
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    cols = [c for c in (2048, 1024, 4096, 512) if c < 2 * d] or [512]
    rows = (256, 128, 512, 64, 32)
    fits = [r for r in rows if r < 2 * count and _vmem_bytes(r, max(cols), gate.dtype.itemsize) <= budget]
    return {"block_rows": fits or [32], "block_cols": cols}

"""---
id: adamw-fused-update-step
title: AdamW step with the step number as an array, bias correction included
family: adamw
op: m = b1 m + (1-b1) g; v = b2 v + (1-b2) g g; p = p - lr (m' / (sqrt(v') + eps) + weight_decay p)
signature: "p:f[*shape], g:f[*shape], m:f[*shape], v:f[*shape], step:i[] -> f[*shape], f[*shape], f[*shape]"
statics: {b1: float, b2: float, eps: float, weight_decay: float, lr: float}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [fused-elementwise, several-outputs, scalars-in-smem, mixed-dtypes, vmem-budget]
primitives: [mul, add, sub, div, sqrt, integer_pow]
when_to_use: >-
  A training loop that compiles one update for all steps. No time was measured: the compiler's simulation aborts on
  the SMEM operand on v5e. The bytes are those of adamw-fused-update.
when_xla_wins: >-
  Expect a tie: one XLA fusion with three outputs moves the same bytes (see adamw-fused-update).
sources:
  - "estimated: aka check and aka profile of this kernel, libtpu 0.0.42.1, jax 0.10.2"
---
The update of `fused_update.py` as a training loop needs it: the step number (from 1) arrives as an integer scalar, so
one compiled kernel serves every step. What depends on it alone, the two bias corrections, is computed once outside and
handed over as two f32 numbers in SMEM, where the scalar unit reads them; inside they are two products per element.

What it teaches: keep what is the same for all elements out of the vector unit. A scalar that changes between calls is
an operand in SMEM; one that never changes is a Python number.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {"block_rows": 128, "block_cols": 2048}


def _corrections(step: jax.Array, b1: float, b2: float) -> tuple[jax.Array, jax.Array]:
    count = step.astype(jnp.float32)
    return 1 / (1 - b1**count), 1 / (1 - b2**count)


def reference(
    p: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array, step: jax.Array, *,
    lr: float = 1e-3, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.01,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """The new p, m and v, computed in f32, each in the dtype of the old one; `step` counts from 1."""
    correct1, correct2 = _corrections(step, b1, b2)
    old, grad = p.astype(jnp.float32), g.astype(jnp.float32)
    first = b1 * m.astype(jnp.float32) + (1 - b1) * grad
    second = b2 * v.astype(jnp.float32) + (1 - b2) * grad * grad
    new = old - lr * (first * correct1 / (jnp.sqrt(second * correct2) + eps) + weight_decay * old)
    return new.astype(p.dtype), first.astype(m.dtype), second.astype(v.dtype)


def _vmem_bytes(rows: int, cols: int, itemsizes: int) -> int:
    """Two buffers of every input and output (`itemsizes`: bytes per element of all seven), two f32 copies, slack."""
    return rows * cols * (2 * itemsizes + 8) + 2**20


def _body(
    correction_ref: Any, p_ref: Any, g_ref: Any, m_ref: Any, v_ref: Any,
    p_out_ref: Any, m_out_ref: Any, v_out_ref: Any,
    *, lr: float, b1: float, b2: float, eps: float, weight_decay: float,
) -> None:  # fmt: skip
    p, g = p_ref[...].astype(jnp.float32), g_ref[...].astype(jnp.float32)
    m = b1 * m_ref[...].astype(jnp.float32) + (1 - b1) * g
    v = b2 * v_ref[...].astype(jnp.float32) + (1 - b2) * g * g
    m_out_ref[...] = m.astype(m_out_ref.dtype)
    v_out_ref[...] = v.astype(v_out_ref.dtype)
    mean, square = m * correction_ref[0], v * correction_ref[1]
    p_out_ref[...] = (p - lr * (mean / (jnp.sqrt(square) + eps) + weight_decay * p)).astype(p_out_ref.dtype)


def kernel(
    p: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array, step: jax.Array, *,
    lr: float = 1e-3, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.01,
    block_rows: int = 128, block_cols: int = 2048,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """Same as `reference`. Raises ValueError if the arrays are empty or a block cannot fit in any chip's VMEM."""
    if p.size == 0:
        raise ValueError("An update of empty arrays has nothing to compute.")
    d = p.shape[-1] if p.shape else 1
    flat = [a.reshape(-1, d) for a in (p, g, m, v)]
    rows, cols = min(block_rows, flat[0].shape[0]), min(block_cols, d)
    kept = (p, m, v)
    needed = _vmem_bytes(rows, cols, 2 * sum(a.dtype.itemsize for a in kept) + g.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"Blocks of {rows} x {cols} do not fit in VMEM.")
    block = pl.BlockSpec((rows, cols), lambda i, j: (i, j))
    made = pl.pallas_call(
        functools.partial(_body, lr=lr, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay),
        grid=(pl.cdiv(flat[0].shape[0], rows), pl.cdiv(d, cols)),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), *[block] * 4],
        out_specs=[block] * 3,
        out_shape=[jax.ShapeDtypeStruct(flat[0].shape, a.dtype) for a in kept],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(jnp.stack(_corrections(step, b1, b2)), *flat)
    return made[0].reshape(p.shape), made[1].reshape(p.shape), made[2].reshape(p.shape)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Rectangles up to the array; any pair of values fits the chip's VMEM."""
    p, g, m, v = shapes[:4]
    d = p.shape[-1] if p.shape else 1
    count = max(1, p.size // d)
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    itemsizes = g.dtype.itemsize + 2 * sum(a.dtype.itemsize for a in (p, m, v))
    cols = [c for c in (2048, 1024, 512, 4096) if c < 2 * d] or [512]
    rows = (128, 64, 256, 32, 16, 8)
    fits = [r for r in rows if r < 2 * count and _vmem_bytes(r, max(cols), itemsizes) <= budget]
    return {"block_rows": fits or [8], "block_cols": cols}

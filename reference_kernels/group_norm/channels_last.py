"""---
id: group-norm-channels-last
title: Group normalisation of each row's channels, channels last
family: group_norm
op: y = (x - mean of its group) * rsqrt(variance of its group + eps) * scale + bias
signature: "x:f[*rows,c], scale:f[c], bias:f[c] -> f[*rows,c]"
statics: {groups: int, eps: float}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [row-blocks, one-hot-matmul, split-bfloat16, aligned-lane-slices, f32-statistics, vmem-budget]
primitives: [reshape, reduce_sum, div, sub, mul, square, integer_pow, rsqrt, add, convert_element_type]
tags: [normalization, groupnorm, head-norm, per-head]
when_to_use: >-
  Groups narrower than 128 lanes, or whole tiles of them. bf16[16,4096,2048] in 32 groups of 64: 678 us on v5e
  (block_rows 512, block_lanes 128), where HBM takes 656, and 363 us on v6e (512, 256), where HBM takes 328; the
  vector unit is the bound. With block_rows 128 and block_lanes 128: 950 us on v5e and 1355 us on v6e.
when_xla_wins: >-
  No case was measured. At this shape XLA is estimated at 8089 us on v5e and 3443 us on v6e, a lower bound: the
  reshape splits its lanes. Groups that neither divide nor fill tiles of 128 need a large matrix of ones. f32 takes
  six passes through the matrix unit for three, and was not measured.
sources:
  - "estimated: aka check and aka profile of this kernel on bf16[16,4096,2048], libtpu 0.0.42.1, jax 0.10.2"
---
Each row is normalised group by group: each of the `groups` runs of c / groups neighbouring channels has its own mean
and variance (as the heads of an attention layer have where their outputs are normalised separately).

A reshape to (rows, groups, width) would split the lanes, which costs a relayout of everything. Where a group is a
whole number of 128-lane tiles it is an aligned slice, reduced directly. Narrower groups go to the matrix unit, which is
idle here: a tile times a block-diagonal matrix of ones gives every lane the sum of its own group, reduction and
broadcast in one. The matrix unit multiplies bfloat16, so an f32 operand is split into bfloat16 parts that add up to it;
the ones are exact, and so are the products.

What it teaches: sums over lane groups as a matmul with ones; that each product waits for the one before it, so many
rows a block and a matrix as large as the chip's own (256 on v6e) hide the latency that small ones show; and that
0 * inf is NaN. Groups with an infinity or a NaN spoil their neighbours in the tile, which shows: the variance in every
lane of such a row is not finite, and one lane of each tile is looked at. Such a block is done again with those values
replaced, and their groups set to NaN.
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

TUNED_PARAMS = {"block_rows": 256, "block_lanes": 256}
LANES = 128


def reference(x: jax.Array, scale: jax.Array, bias: jax.Array, *, groups: int = 32, eps: float = 1e-5) -> jax.Array:
    """Each group of channels of each row to mean 0 and variance 1 in f32; the result has the dtype of x."""
    wide = x.astype(jnp.float32).reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    normed = centred * lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + eps)
    return (normed.reshape(x.shape) * scale.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)


def _tile(c: int, width: int, block_lanes: int) -> int:
    """Lanes that are treated together: whole groups, and whole 128s if all of c is not enough for that."""
    if width % LANES == 0:
        return width
    least = math.lcm(width, LANES)
    return min(c, least * max(1, block_lanes // least))


def _vmem_bytes(rows: int, c: int, tile: int, itemsize: int) -> int:
    """Two buffers each of input and output, six f32 tiles, the matrix of ones as it is made, vectors and slack."""
    return rows * (4 * c * itemsize + 24 * tile) + 12 * tile * tile + 128 * c + 2**20


def _ones(tile: int, width: int) -> jax.Array:
    """1 where row and column belong to the same group. Divided in f32: there is no vector division of integers."""

    def group(axis: int) -> jax.Array:
        lane = lax.broadcasted_iota(jnp.int32, (tile, tile), axis).astype(jnp.float32)
        return jnp.floor((lane + 0.5) * (1.0 / width))

    return (group(0) == group(1)).astype(jnp.bfloat16)


def _sums(x: jax.Array, ones: jax.Array, parts: int) -> jax.Array:
    """The sum of its own group in every lane of x, which is split into `parts` bfloat16 numbers."""
    total = jnp.zeros(x.shape, jnp.float32)
    for _ in range(parts):
        part = x.astype(jnp.bfloat16)
        total += jnp.dot(part, ones, preferred_element_type=jnp.float32)
        x = x - part.astype(jnp.float32)
    return total


def _body(x_ref: Any, scale_ref: Any, bias_ref: Any, o_ref: Any, *, width: int, tile: int, eps: float) -> None:
    c = x_ref.shape[1]
    narrow = x_ref.dtype == jnp.bfloat16

    def finish(at: slice, centred: jax.Array, variance: jax.Array) -> jax.Array:
        scaled = centred * lax.rsqrt(variance + eps) * scale_ref[:, at].astype(jnp.float32)
        return scaled + bias_ref[:, at].astype(jnp.float32)

    def by_slices() -> None:
        for start in range(0, c, tile):
            at = slice(start, start + tile)
            x = x_ref[:, at].astype(jnp.float32)
            centred = x - jnp.mean(x, axis=1, keepdims=True)
            y = finish(at, centred, jnp.mean(centred * centred, axis=1, keepdims=True))
            o_ref[:, at] = y.astype(o_ref.dtype)

    def by_ones(clean: bool) -> jax.Array:
        ones, seen = _ones(tile, width), jnp.zeros((x_ref.shape[0], 1), jnp.float32)
        for start in range(0, c, tile):
            at = slice(start, min(start + tile, c))
            own = ones[: at.stop - start, : at.stop - start]
            x = x_ref[:, at].astype(jnp.float32)
            finite = jnp.abs(x) < jnp.inf
            x = x if clean else jnp.where(finite, x, 0.0)
            centred = x - _sums(x, own, 1 if narrow else 3) * (1.0 / width)
            variance = _sums(centred * centred, own, 2 if narrow else 3) * (1.0 / width)
            y, seen = finish(at, centred, variance), seen + variance[:, :1]
            if not clean:
                y = jnp.where(_sums(jnp.where(finite, 0.0, 1.0), own, 1) > 0, jnp.nan, y)
            o_ref[:, at] = y.astype(o_ref.dtype)
        return jnp.max(jnp.where(seen < jnp.inf, 0.0, 1.0))

    if width % LANES == 0:
        by_slices()
        return
    spoilt = by_ones(clean=True)

    @pl.when(spoilt > 0)
    def _() -> None:
        by_ones(clean=False)


def kernel(
    x: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    *,
    groups: int = 32,
    eps: float = 1e-5,
    block_rows: int = 256,
    block_lanes: int = 256,
) -> jax.Array:
    """Same as `reference`. Raises ValueError if x is empty, `groups` does not divide its channels, or a block of rows
    cannot fit in any chip's VMEM."""
    c = x.shape[-1]
    if x.size == 0:
        raise ValueError("Group normalisation of an empty array has nothing to compute.")
    if groups < 1 or c % groups:
        raise ValueError(f"{groups} groups do not divide {c} channels.")
    n, width = x.size // c, c // groups
    rows, tile = min(block_rows, n), _tile(c, width, block_lanes)
    needed = _vmem_bytes(rows, c, tile, x.dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"A block of {rows} rows of {c} does not fit in VMEM.")
    block, vector = pl.BlockSpec((rows, c), lambda i: (i, 0)), pl.BlockSpec((1, c), lambda i: (0, 0))
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, width=width, tile=tile, eps=eps),
        grid=(pl.cdiv(n, rows),),
        in_specs=[block, vector, vector],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct((n, c), x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=needed if needed > 16 * 2**20 else None
        ),
    )(x.reshape(n, c), scale.reshape(1, c), bias.reshape(1, c))
    return y.reshape(x.shape)


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Row blocks that fit the chip's VMEM (16, 64 or 128 MiB a core), and the side of the matrix of ones, which is that
    of the chip's matrix unit at first."""
    x = shapes[0]
    rows, c = max(1, x.size // x.shape[-1]), x.shape[-1]
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    heights = (512, 256, 1024, 384, 128, 64, 32, 16, 8)
    fits = [r for r in heights if _vmem_bytes(r, c, min(c, 512), x.dtype.itemsize) <= budget]
    lanes = [256, 128] if chip in ("v6e", "tpu7x") else [128, 256]
    return {
        "block_rows": [r for r in fits if r < 2 * rows or r == 8] or [8],
        "block_lanes": [*lanes, 512] if c >= 512 else lanes,
    }

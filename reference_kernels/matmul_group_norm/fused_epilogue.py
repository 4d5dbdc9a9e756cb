"""---
id: matmul-group-norm-fused-epilogue
title: Matmul with bias and GroupNorm over feature groups applied to the tile in VMEM
family: matmul_group_norm
op: y = group_norm(x @ w + bias) * scale + shift
signature: "x:f[m,k], w:f[k,n], bias:f[n], scale:f[n], shift:f[n] -> f[m,n]"
statics: {groups: int, eps: float}
dtypes: [bfloat16, float32]
chips: [v4, v5e, v5p, v6e, tpu7x]
techniques: [fused-epilogue, whole-groups-in-tile, group-sums-on-mxu, two-pass-variance, f32-accumulator, masked-tail]
primitives: [dot_general, add, reshape, reduce_sum, sub, rsqrt, mul]
when_to_use: >-
  f32 1024 x 1024 x 2048 with groups of 64 features is estimated at 67.8 us on v5e and 40.5 us on v6e; sums by lane
  rolls instead of ones took 319.6 us on v5e. Groups of a multiple of 128 features spare the products with ones, and a
  larger k makes the norm small beside the product; neither was measured.
when_xla_wins: >-
  Not measured: neither XLA's time nor this kernel's at 4096^3 could be had from the simulation within its limits.
  With groups below 128 features and k of 1024 the norm costs more than the product does: the MXU floor is 22 us on
  v5e.
sources:
  - "estimated: aka check of this kernel on 1024 x 1024 x 2048, libtpu 0.0.42.1, jax 0.10.2"
  - "MXU floor: 2 m n k over 197 (v5e) and 918 (v6e) TFLOP/s, int8 over 393 and 1836 TOP/s"
---
The tiled matmul with a norm in its last step: once the f32 sums of a tile are complete, each group of features is
normalised where it lies, and only the answer is rounded and written. That asks for tiles that hold whole groups:
block_n is rounded to a multiple of the group's size and of 128 lanes. The variance is taken around the mean, in a
second pass over the tile, which costs no traffic.

Groups of a multiple of 128 features are slices of whole vectors, summed as a row is. Smaller ones lie beside each other
within a vector: their sums are a product with a matrix of ones, one where two lanes are of the same group. Ones are
exact in bf16, so three bf16 parts of the f32 values keep its accuracy in three passes. Zero times infinity is NaN and
would spoil the neighbours, so what is not finite is counted in a product of its own and set to NaN in its group only.

What it teaches: an epilogue may reduce, if the tile is cut along the reduction's borders; a chain of lane rolls waits
for the latency of each roll, where the matrix unit is a pipeline; and a long epilogue is a loop over strips of rows,
else it is unrolled into a program that takes minutes to compile. Rows and columns past the edge need no mask: a group
is whole or entirely garbage.
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

TUNED_PARAMS = {"block_m": 512, "block_n": 1024, "block_k": 512}
LANES = 128
STRIP = 128


def reference(
    x: jax.Array,
    w: jax.Array,
    bias: jax.Array,
    scale: jax.Array,
    shift: jax.Array,
    *,
    groups: int = 32,
    eps: float = 1e-5,
) -> jax.Array:
    """x @ w + bias, each row normalised within each of `groups` runs of n / groups features, then scale and shift.
    All in f32; the result has the promoted dtype of the five."""
    y = jnp.dot(x, w, preferred_element_type=jnp.float32) + bias.astype(jnp.float32)
    split = y.reshape(y.shape[0], groups, y.shape[1] // groups)
    centred = split - jnp.mean(split, axis=-1, keepdims=True)
    normal = centred * lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + eps)
    y = normal.reshape(y.shape) * scale.astype(jnp.float32) + shift.astype(jnp.float32)
    return y.astype(jnp.result_type(x, w, bias, scale, shift))


def _block_n(block_n: int, n: int, size: int) -> int:
    """The most features up to block_n (at least one run) that are whole groups of `size` and whole vectors of 128."""
    run = math.lcm(size, LANES)
    return min(n, max(1, block_n // run) * run)


def _vmem_bytes(bm: int, bn: int, bk: int, x_size: int, w_size: int, y_size: int) -> int:
    """Two buffers of each operand and of y, accumulator, two f32 tiles of the norm, a spilled operand, and slack."""
    x_block, w_block = bm * bk * x_size, bk * bn * w_size
    return 2 * (x_block + w_block + bm * bn * y_size) + 12 * bm * bn + max(x_block, w_block) + 2**21


def _within(block: jax.Array, axis: int, size: int) -> jax.Array:
    index = lax.broadcasted_iota(jnp.int32, block.shape, axis)
    return jnp.where(index < size, block, jnp.zeros_like(block))


def _sums(y: jax.Array, same: jax.Array) -> jax.Array:
    """Each lane's sum over its group: a product with ones where two lanes are of the `same` group. Ones are exact in
    bf16, so three bf16 parts of y are enough for f32's accuracy, where full precision would take six passes."""
    top = y.astype(jnp.bfloat16)
    rest = y - top.astype(jnp.float32)
    mid = rest.astype(jnp.bfloat16)
    low = (rest - mid.astype(jnp.float32)).astype(jnp.bfloat16)
    parts = [jnp.dot(part, same, preferred_element_type=jnp.float32) for part in (low, mid, top)]
    return parts[0] + parts[1] + parts[2]


def _normal_lanes(y: jax.Array, same: jax.Array, size: int, eps: float) -> jax.Array:
    """Groups that share vectors. Zero times infinity would spoil neighbours: what is not finite is counted apart."""
    finite = y - y == 0
    y = jnp.where(finite, y, 0.0)
    spoilt = jnp.dot(jnp.where(finite, 0.0, 1.0).astype(jnp.bfloat16), same, preferred_element_type=jnp.float32)
    centred = y - _sums(y, same) / size
    variance = _sums(jnp.minimum(centred * centred, 3e38), same) / size
    return jnp.where(spoilt > 0, jnp.nan, centred * lax.rsqrt(variance + eps))


def _normal_vectors(y: jax.Array, eps: float) -> jax.Array:
    """A group of whole vectors."""
    centred = y - jnp.mean(y, axis=-1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + eps)


def _flush(acc_ref: Any, bias_ref: Any, scale_ref: Any, shift_ref: Any, y_ref: Any, size: int, eps: float) -> None:
    """A strip of rows at a time, in a loop: unrolled over a whole tile it would be a program of 100,000s of bundles."""
    height, width = acc_ref.shape
    run = size if size % LANES == 0 else min(width, math.lcm(size, LANES))
    group = [lax.div(lax.broadcasted_iota(jnp.int32, (run, run), axis), jnp.int32(size)) for axis in (0, 1)]
    same = jnp.where(group[0] == group[1], 1.0, 0.0).astype(jnp.bfloat16)

    def strip(first: Any, rows: int) -> None:
        for start in range(0, width, run):
            at = (pl.ds(first, rows), pl.ds(start, run))
            bias, scale, shift = (ref[:, at[1]].astype(jnp.float32) for ref in (bias_ref, scale_ref, shift_ref))
            y = acc_ref[at] + bias
            normal = _normal_lanes(y, same, size, eps) if size % LANES else _normal_vectors(y, eps)
            y_ref[at] = (normal * scale + shift).astype(y_ref.dtype)

    def turn(i: Any, _: None) -> None:
        strip(pl.multiple_of(i * STRIP, STRIP), STRIP)

    lax.fori_loop(0, height // STRIP, turn, None)
    if height % STRIP:
        strip(height - height % STRIP, height % STRIP)


def _body(
    x_ref: Any, w_ref: Any, bias_ref: Any, scale_ref: Any, shift_ref: Any, y_ref: Any, acc_ref: Any,
    *, steps: int, tail: int, size: int, eps: float,
) -> None:  # fmt: skip
    step = pl.program_id(2)

    @pl.when(step == 0)
    def _() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def accumulate(x: jax.Array, w: jax.Array) -> None:
        acc_ref[...] += jnp.dot(x, w, preferred_element_type=jnp.float32)

    if tail:
        pl.when(step < steps - 1)(lambda: accumulate(x_ref[...], w_ref[...]))
        pl.when(step == steps - 1)(lambda: accumulate(_within(x_ref[...], 1, tail), _within(w_ref[...], 0, tail)))
    else:
        accumulate(x_ref[...], w_ref[...])

    @pl.when(step == steps - 1)
    def _() -> None:
        _flush(acc_ref, bias_ref, scale_ref, shift_ref, y_ref, size, eps)


def kernel(
    x: jax.Array,
    w: jax.Array,
    bias: jax.Array,
    scale: jax.Array,
    shift: jax.Array,
    *,
    groups: int = 32,
    eps: float = 1e-5,
    block_m: int = 512,
    block_n: int = 1024,
    block_k: int = 512,
) -> jax.Array:
    """Same as `reference`. Raises ValueError if an array is empty, groups does not divide n, or the blocks cannot fit
    in any chip's VMEM. block_n is rounded to whole groups."""
    (m, depth), n = x.shape, w.shape[1]
    if m * n * depth == 0:
        raise ValueError("A matmul of empty arrays has nothing to compute.")
    if groups < 1 or n % groups:
        raise ValueError(f"{n} features cannot be split into {groups} groups.")
    bm, bn, bk = min(block_m, m), _block_n(block_n, n, n // groups), min(block_k, depth)
    dtype = jnp.result_type(x, w, bias, scale, shift)
    needed = _vmem_bytes(bm, bn, bk, x.dtype.itemsize, w.dtype.itemsize, dtype.itemsize)
    if needed > 120 * 2**20:
        raise ValueError(f"Blocks of {bm} x {bn} x {bk} do not fit in VMEM.")
    steps = pl.cdiv(depth, bk)
    row = pl.BlockSpec((1, bn), lambda i, j, k: (0, j))
    y: jax.Array = pl.pallas_call(
        functools.partial(_body, steps=steps, tail=depth % bk, size=n // groups, eps=eps),
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), steps),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
            row,
            row,
            row,
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=needed if needed > 16 * 2**20 else None,
        ),
    )(x, w, bias.reshape(1, n), scale.reshape(1, n), shift.reshape(1, n))
    return y


def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:
    """Block sizes up to the array. The first values together fit the chip's VMEM (16, 64 or 128 MiB a core)."""
    x, w = shapes[0], shapes[1]
    (m, depth), n = x.shape, w.shape[1]
    sizes = (x.dtype.itemsize, w.dtype.itemsize, max(x.dtype.itemsize, w.dtype.itemsize))
    budget = {"v4": 14, "v5p": 56, "tpu7x": 56}.get(chip, 112) * 2**20
    # Blocks of 2048 x 2048 make an epilogue that the meter does not simulate within its limits.
    presets = ((1024, 1024, 512), (512, 1024, 1024), (512, 512, 512), (256, 256, 512))
    fits = [p for p in presets if _vmem_bytes(min(p[0], m), min(p[1], n), min(p[2], depth), *sizes) <= budget]
    first = (fits or presets[-1:])[0]

    def values(best: int, size: int, others: tuple[int, ...]) -> list[int]:
        return list(dict.fromkeys([min(best, size), *(v for v in others if v < size)]))

    return {
        "block_m": values(first[0], m, (512, 1024, 256, 2048)),
        "block_n": values(first[1], n, (1024, 512, 2048, 256)),
        "block_k": values(first[2], depth, (1024, 512, 2048)),
    }

"""Programs for the tests of the meter: the same ops as Pallas kernels and as plain JAX. Imported in child processes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

MIB = 2**20


def matmul(size, block_m, block_k, block_n):
    steps = size // block_k

    def body(a, b, out, acc):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc[...] = jnp.zeros_like(acc)

        acc[...] += jnp.dot(a[...], b[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == steps - 1)
        def _():
            out[...] = acc[...].astype(out.dtype)

    call = pl.pallas_call(
        body,
        grid=(size // block_m, size // block_n, steps),
        in_specs=[
            pl.BlockSpec((block_m, block_k), lambda i, j, k: (i, k)),
            pl.BlockSpec((block_k, block_n), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((size, size), jnp.bfloat16),
        scratch_shapes=[pltpu.VMEM((block_m, block_n), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
    )
    array = jax.ShapeDtypeStruct((size, size), jnp.bfloat16)
    return call, [array, array]


def by_rows(body, shape, rows, dtype, vectors=0, limit=64 * MIB):
    """A kernel over blocks of whole rows; `vectors` more operands of one row each."""
    count, width = shape
    block = pl.BlockSpec((rows, width), lambda i: (i, 0))
    call = pl.pallas_call(
        body,
        grid=(count // rows,),
        in_specs=[block, *[pl.BlockSpec((1, width), lambda i: (0, 0))] * vectors],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(shape, dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",), vmem_limit_bytes=limit),
    )
    return call, [jax.ShapeDtypeStruct(shape, dtype), *[jax.ShapeDtypeStruct((1, width), dtype)] * vectors]


def rmsnorm_body(x, w, out):
    value = x[...].astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(value * value, -1, keepdims=True) + 1e-6)
    out[...] = (value * scale * w[...].astype(jnp.float32)).astype(out.dtype)


def softmax_body(x, out):
    value = x[...]
    shifted = jnp.exp(value - jnp.max(value, -1, keepdims=True))
    out[...] = shifted / jnp.sum(shifted, -1, keepdims=True)


def double_body(x, out):
    out[...] = x[...] * 2


def hoarding():
    """A light kernel with more scratch than its VMEM limit: the compiler says so quickly."""
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct((64, 128), jnp.float32)

    def body(x, out, scratch):
        scratch[pl.ds(pl.program_id(0) * 8, 8), 0:128] = x[...]
        out[...] = scratch[0:8, 0:128]

    scratch = pltpu.VMEM((8192, 1024), jnp.float32)
    call = pl.pallas_call(body, grid=(8,), in_specs=[block], out_specs=block, out_shape=shape, scratch_shapes=[scratch])
    return call, [shape]


def looping_body(n, x, out):
    out[...] = jax.lax.fori_loop(0, n[0], lambda i, c: c * 1.5 + 1.0, x[...])


def dynamic():
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(8,),
        in_specs=[pl.BlockSpec((32, 256), lambda i, n: (i, 0))],
        out_specs=pl.BlockSpec((32, 256), lambda i, n: (i, 0)),
    )
    shape = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    return pl.pallas_call(looping_body, grid_spec=spec, out_shape=shape), [jax.ShapeDtypeStruct((1,), jnp.int32), shape]


def wrapped():
    kernel, avals = by_rows(double_body, (8192, 4096), 128, jnp.float32, limit=None)
    return (lambda x: jnp.sum(jnp.tanh(kernel(x)), -1)), avals


def rmsnorm_xla(shape):
    def op(x, w):
        value = x.astype(jnp.float32)
        return (value * jax.lax.rsqrt(jnp.mean(value * value, -1, keepdims=True) + 1e-6) * w).astype(x.dtype)

    return op, [jax.ShapeDtypeStruct(shape, jnp.bfloat16), jax.ShapeDtypeStruct(shape[-1:], jnp.bfloat16)]


def softmax_xla(shape):
    return (lambda x: jax.nn.softmax(x, -1)), [jax.ShapeDtypeStruct(shape, jnp.float32)]


PROGRAMS = {
    "matmul": lambda: matmul(4096, 512, 1024, 1024),
    "hoarding": hoarding,
    "rmsnorm": lambda: by_rows(rmsnorm_body, (32768, 8192), 256, jnp.bfloat16, vectors=1),
    "softmax": lambda: by_rows(softmax_body, (8192, 8192), 128, jnp.float32),
    "double": lambda: by_rows(double_body, (16384, 2048), 512, jnp.float32),
    "greedy": lambda: by_rows(double_body, (512, 256), 128, jnp.float32, limit=200 * MIB),
    "dynamic": dynamic,
    "wrapped": wrapped,
    "rmsnorm_xla": lambda: rmsnorm_xla((8, 4096, 8192)),
    "softmax_xla": lambda: softmax_xla((8192, 8192)),
    "softmax_xla_small": lambda: softmax_xla((512, 1024)),
}


def artifact(name, chip):
    """Bytes of the named program, exported for TPU."""
    from aka.targets import aot

    call, avals = PROGRAMS[name]()
    with aot.abstract_mesh(chip):
        return bytes(jax.export.export(jax.jit(call), platforms=["tpu"])(*avals).serialize())

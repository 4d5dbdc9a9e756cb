"""Small Pallas kernels, right and wrong, that the artifact tests export."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

Array = Any
F32 = jnp.float32


def like(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def rows(body: Any, block: int, *arrays: Array, out: Any = None, **options: Any) -> Array:
    """`body` over row blocks of arrays of one height; broadcast arrays have height 1."""
    height = arrays[0].shape[0]

    def spec(x: Any) -> pl.BlockSpec:
        whole = x.shape[0] == 1
        shape = x.shape if whole else (block, *x.shape[1:])
        return pl.BlockSpec(shape, lambda i: (0 if whole else i, *[0] * (len(x.shape) - 1)))

    out = out or like(arrays[0])
    return pl.pallas_call(
        body,
        grid=(pl.cdiv(height, block),),
        in_specs=[spec(x) for x in arrays],
        out_specs=spec(out),
        out_shape=out,
        **options,
    )(*arrays)


def softmax(x: Array, block: int = 64) -> Array:
    def body(x_ref: Any, o_ref: Any) -> None:
        e = jnp.exp(x_ref[...] - jnp.max(x_ref[...], -1, keepdims=True))
        o_ref[...] = e / jnp.sum(e, -1, keepdims=True)

    limit = pltpu.CompilerParams(dimension_semantics=("parallel",), vmem_limit_bytes=32 << 20)
    return rows(body, block, x, compiler_params=limit)


def rmsnorm(x: Array, weight: Array, block: int = 256) -> Array:
    def body(x_ref: Any, w_ref: Any, o_ref: Any) -> None:
        x32 = x_ref[...].astype(F32)
        scale = jax.lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + 1e-6)
        o_ref[...] = (x32 * scale * w_ref[...].astype(F32)).astype(o_ref.dtype)

    return rows(body, block, x, weight)


def matmul(x: Array, y: Array, bm: int = 512, bk: int = 1024, bn: int = 1024, init: bool = True, **dot: Any) -> Array:
    (m, k), n = x.shape, y.shape[1]

    def body(x_ref: Any, y_ref: Any, o_ref: Any, acc: Any) -> None:
        if init:

            @pl.when(pl.program_id(2) == 0)
            def _() -> None:
                acc[...] = jnp.zeros_like(acc)

        acc[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32, **dot)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _() -> None:
            o_ref[...] = acc[...].astype(o_ref.dtype)

    return pl.pallas_call(
        body,
        grid=(m // bm, n // bn, k // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), F32)],
    )(x, y)


def flash(q: Array, k: Array, v: Array, block: int = 128, causal: bool = True) -> Array:
    """Attention over (heads, length, depth), the keys visited in a fori_loop whose bound is the program id."""
    heads, length, depth = q.shape

    def body(q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any) -> None:
        at = pl.program_id(1)
        queries = q_ref[0] * (depth**-0.5)

        def step(j: Any, carry: Any) -> Any:
            top, total, acc = carry
            scores = jnp.dot(queries, k_ref[0, pl.ds(j * block, block), :].T, precision="highest")
            if causal:
                row = at * block + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
                column = j * block + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
                scores = jnp.where(row >= column, scores, -jnp.inf)
            new = jnp.maximum(top, jnp.max(scores, -1, keepdims=True))
            p, fade = jnp.exp(scores - new), jnp.exp(top - new)
            values = jnp.dot(p, v_ref[0, pl.ds(j * block, block), :], precision="highest")
            return new, total * fade + jnp.sum(p, -1, keepdims=True), acc * fade + values

        start = jnp.full((block, 1), -1e30, F32), jnp.zeros((block, 1), F32), jnp.zeros((block, depth), F32)
        _, total, acc = jax.lax.fori_loop(0, at + 1 if causal else length // block, step, start)
        o_ref[0] = acc / total

    whole = pl.BlockSpec((1, length, depth), lambda h, i: (h, 0, 0))
    part = pl.BlockSpec((1, block, depth), lambda h, i: (h, i, 0))
    return pl.pallas_call(
        body, grid=(heads, length // block), in_specs=[part, whole, whole], out_specs=part, out_shape=like(q)
    )(q, k, v)


def gather_blocks(table: Array, x: Array, block: int = 8) -> Array:
    """Row blocks of x in the order of a prefetched table, plus the table's entry."""

    def body(table_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + table_ref[pl.program_id(0)].astype(F32)

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=table.shape,
        in_specs=[pl.BlockSpec((block, x.shape[1]), lambda i, t: (t[i], 0))],
        out_specs=pl.BlockSpec((block, x.shape[1]), lambda i, t: (i, 0)),
    )
    out = jax.ShapeDtypeStruct((table.shape[0] * block, x.shape[1]), x.dtype)
    return pl.pallas_call(body, grid_spec=grid, out_shape=out)(table, x)


def scale_by_scalar(scalars: Array, x: Array) -> Array:
    def body(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * s_ref[0] + s_ref[1]

    spec = [pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec((8, 128), lambda i: (i, 0))]
    return pl.pallas_call(body, grid=(x.shape[0] // 8,), in_specs=spec, out_specs=spec[1], out_shape=like(x))(
        scalars, x
    )


def manual_copy(x: Array, racy: bool = False, waits: bool = True) -> Array:
    """Copies row blocks through VMEM by hand. `racy` reads before the wait; `waits`: stores are waited for."""

    def body(x_hbm: Any, o_hbm: Any) -> None:
        def scoped(buffer: Any, result: Any, arrive: Any, leave: Any) -> None:
            def step(i: Any, _: Any) -> Any:
                load = pltpu.make_async_copy(x_hbm.at[pl.ds(i * 8, 8)], buffer, arrive)
                load.start()
                if racy:
                    result[...] = buffer[...] * 2
                load.wait()
                if not racy:
                    result[...] = buffer[...] * 2
                store = pltpu.make_async_copy(result, o_hbm.at[pl.ds(i * 8, 8)], leave)
                store.start()
                if waits:
                    store.wait()
                return 0

            jax.lax.fori_loop(0, x.shape[0] // 8, step, 0)

        block = pltpu.VMEM((8, x.shape[1]), x.dtype)
        pl.run_scoped(scoped, block, block, pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA)

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(body, in_specs=[anywhere], out_specs=anywhere, out_shape=like(x))(x)


def lonely_wait(x: Array) -> Array:
    def body(x_hbm: Any, o_ref: Any, semaphore: Any) -> None:
        pltpu.make_async_copy(x_hbm, o_ref, semaphore).wait()

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    scratch = [pltpu.SemaphoreType.DMA]
    return pl.pallas_call(body, in_specs=[anywhere], out_shape=like(x), scratch_shapes=scratch)(x)


def inner_pipeline(x: Array) -> Array:
    def inner(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    def body(x_hbm: Any, o_hbm: Any) -> None:
        spec = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))
        pltpu.emit_pipeline(inner, grid=(x.shape[0] // 8,), in_specs=[spec], out_specs=[spec])(x_hbm, o_hbm)

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(body, in_specs=[anywhere], out_specs=anywhere, out_shape=like(x))(x)


def skips_a_block(x: Array) -> Array:
    def body(x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(0) != 1)
        def _() -> None:
            o_ref[...] = x_ref[...]

    return rows(body, 8, x)


def reads_too_far(x: Array) -> Array:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[pl.ds(pl.multiple_of(pl.program_id(0) * 8, 8), 8), :]

    whole = pl.BlockSpec((8, 128), lambda i: (0, 0))
    part = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(body, grid=(2,), in_specs=[whole], out_specs=part, out_shape=like(x))(x)


def add_in_place(x: Array) -> Array:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    return rows(body, 8, x, input_output_aliases={0: 0})


def double(x: Array) -> Array:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    return pl.pallas_call(body, out_shape=like(x))(x)


def two_results(x: Array) -> tuple[Array, Array]:
    def body(x_ref: Any, sum_ref: Any, max_ref: Any) -> None:
        sum_ref[...] = jnp.sum(x_ref[...], -1, keepdims=True)
        max_ref[...] = jnp.max(x_ref[...], -1, keepdims=True)

    out = jax.ShapeDtypeStruct((x.shape[0], 1), x.dtype)
    return tuple(pl.pallas_call(body, out_shape=[out, out])(x))


def random_bits(x: Array) -> Array:
    def body(x_ref: Any, o_ref: Any) -> None:
        pltpu.prng_seed(0)
        o_ref[...] = x_ref[...] + pltpu.prng_random_bits(x.shape).astype(F32)

    return pl.pallas_call(body, out_shape=like(x))(x)


def sum_prefix(count: Array, x: Array) -> Array:
    """The sum of the first `count` row blocks: a loop whose length is data."""

    def body(count_ref: Any, x_ref: Any, o_ref: Any) -> None:
        def step(i: Any, acc: Any) -> Any:
            return acc + x_ref[pl.ds(pl.multiple_of(i * 8, 8), 8), :]

        o_ref[...] = jax.lax.fori_loop(0, count_ref[0], step, jnp.zeros(o_ref.shape, F32))

    spec = [pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)]
    return pl.pallas_call(body, in_specs=spec, out_shape=jax.ShapeDtypeStruct((8, x.shape[1]), x.dtype))(count, x)


def chain_through_hbm(x: Array) -> Array:
    """Step i adds 1 to block i, into block i + 1, of the same memory; on the chip block i + 1 was fetched before."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    source, result = pl.BlockSpec((8, 128), lambda i: (i, 0)), pl.BlockSpec((8, 128), lambda i: (i + 1, 0))
    return pl.pallas_call(
        body, grid=(3,), in_specs=[source], out_specs=result, out_shape=like(x), input_output_aliases={0: 0}
    )(x)

"""Each operation of the machine against what XLA computes on the CPU for the same JAX function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from conftest import Make
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from aka.artifact.decode import kernels
from aka.artifact.machine import execute

Function = Callable[[Any], Any]

FLOAT: dict[str, Function] = {
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "log": lambda x: jnp.log(jnp.abs(x) + 0.1),
    "log1p": lambda x: jnp.log1p(jnp.abs(x)),
    "tanh": jnp.tanh,
    "erf": jax.lax.erf,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "rsqrt": lambda x: jax.lax.rsqrt(jnp.abs(x) + 0.1),
    "sqrt": lambda x: jnp.sqrt(jnp.abs(x)),
    "pow": lambda x: jnp.abs(x) ** 1.5,
    "square": lambda x: x**3,
    "divide": lambda x: x / (jnp.abs(x) + 1),
    "sigmoid": jax.nn.sigmoid,
    "gelu": jax.nn.gelu,
    "softplus": jax.nn.softplus,
    "sign": jnp.sign,
    "floor": jnp.floor,
    "ceil": jnp.ceil,
    "round": jnp.round,
    "clip": lambda x: jnp.clip(x, -0.5, 0.5),
    "compare": lambda x: jnp.where((x > 0.3) | (x <= -0.2), x, -x),
    "not equal": lambda x: jnp.where(x != x[0, 0], 1.0, 2.0).astype(x.dtype),
    "isnan": lambda x: jnp.where(jnp.isnan(jnp.log(x)), 0, x),
    "transpose": lambda x: x.T,
    "sum rows": lambda x: jnp.broadcast_to(jnp.sum(x, 0, keepdims=True), x.shape),
    "max columns": lambda x: x - jnp.max(x, 1, keepdims=True),
    "min": lambda x: x - jnp.min(x, 1, keepdims=True),
    "argmax": lambda x: x + jnp.argmax(x, 1, keepdims=True).astype(x.dtype),
    "concatenate": lambda x: jnp.concatenate([x[:, 64:], x[:, :64]], 1),
    "slice": lambda x: jnp.concatenate([x[8:], x[:8]], 0),
    "roll": lambda x: pltpu.roll(x, 5, 1),
    "iota": lambda x: x * jax.lax.broadcasted_iota(jnp.int32, x.shape, 1).astype(x.dtype),
    "reshape": lambda x: jnp.sum(x.reshape(16, 8, 128), 1, keepdims=True) + x.reshape(16, 8, 128),
    "to int": lambda x: (x * 10).astype(jnp.int32).astype(x.dtype),
    "narrow": lambda x: x.astype(jnp.bfloat16).astype(x.dtype),
    "fp8": lambda x: x.astype(jnp.float8_e5m2).astype(x.dtype),
    "cumulative": lambda x: jax.lax.fori_loop(0, 4, lambda i, y: y * 0.5 + x, x),
    "while": lambda x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + x), (0, x))[1],
    "cond": lambda x: jax.lax.cond(jnp.int32(1) > 0, lambda y: y + 1, lambda y: y - 1, x),
}
INTEGER: dict[str, Function] = {
    "add wraps": lambda x: x * 65599 + 2_000_000_000,
    "divide": lambda x: jax.lax.div(x, jnp.full_like(x, 7)),
    "floor divide": lambda x: x // 7,
    "remainder": lambda x: jax.lax.rem(x, jnp.full_like(x, 7)),
    "modulo": lambda x: x % 7,
    "shift left": lambda x: x << 5,
    "shift right": lambda x: x >> 3,
    "shift right logical": lambda x: jax.lax.shift_right_logical(x, jnp.full_like(x, 3)),
    "bits": lambda x: (x & 0xFF) | (x ^ 0x55),
    "not": lambda x: ~x,
    "abs": jnp.abs,
    "maximum": lambda x: jnp.maximum(x, 3),
    "unsigned": lambda x: (x.astype(jnp.uint32) >> 7).astype(jnp.int32),
    "unsigned compare": lambda x: jnp.where(x.astype(jnp.uint32) > jnp.uint32(2**31), x, 0),
    "to float": lambda x: (x.astype(jnp.float32) * 0.5).astype(jnp.int32),
    "bitcast": lambda x: jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(x, jnp.float32), jnp.int32) + 1,
    "int8": lambda x: (x & 0x7F).astype(jnp.int8).astype(jnp.int32),
    "count bits": jax.lax.population_count,
    "leading zeros": jax.lax.clz,
    "sum": lambda x: x + jnp.sum(x & 0xFF, 0, keepdims=True),
}


def in_kernel(function: Function, x: Any) -> Any:
    out = jax.eval_shape(function, x)

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = function(x_ref[...])

    return pl.pallas_call(body, out_shape=out)(x)


def simulate(exported: Any, x: Any) -> Any:
    """The one kernel of the artifact, without the program around it."""
    (kernel,) = kernels(exported)
    (y,), _ = execute(kernel, [x])
    return y


@pytest.mark.parametrize("name", FLOAT)
def test_float_operation(artifact: Make, rng: np.random.Generator, name: str) -> None:
    x = rng.normal(size=(128, 128)).astype(np.float32)
    y = simulate(artifact(lambda a: in_kernel(FLOAT[name], a), x), x)
    want = np.roll(x, 5, 1) if name == "roll" else np.asarray(FLOAT[name](x))
    np.testing.assert_allclose(y, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", INTEGER)
def test_integer_operation(artifact: Make, rng: np.random.Generator, name: str) -> None:
    x = rng.integers(-(2**31), 2**31 - 1, size=(128, 128)).astype(np.int32)
    y = simulate(artifact(lambda a: in_kernel(INTEGER[name], a), x), x)
    np.testing.assert_array_equal(y, np.asarray(INTEGER[name](x)))


def test_bf16_rounds_after_each_operation(artifact: Make, rng: np.random.Generator) -> None:
    x = rng.normal(size=(16, 128)).astype(ml_dtypes.bfloat16)
    y = simulate(artifact(lambda a: in_kernel(lambda v: (v * v + v) * v, a), x), x)
    square = (x * x).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(y, ((square + x).astype(ml_dtypes.bfloat16) * x).astype(ml_dtypes.bfloat16))


def test_packing_bitcast_keeps_the_bits(artifact: Make, rng: np.random.Generator) -> None:
    x = rng.normal(size=(32, 128)).astype(ml_dtypes.bfloat16)
    y = simulate(artifact(lambda a: in_kernel(lambda v: pltpu.bitcast(v, jnp.int32), a), x), x)
    bits = x.view(np.uint16).astype(np.uint32)
    np.testing.assert_array_equal(y.view(np.uint32), bits[0::2] | bits[1::2] << 16)


def test_int8_matmul_is_exact(artifact: Make, rng: np.random.Generator) -> None:
    x = rng.integers(-128, 127, size=(128, 128)).astype(np.int8)
    dot: Function = lambda v: jnp.dot(v, v, preferred_element_type=jnp.int32)  # noqa: E731
    y = simulate(artifact(lambda a: in_kernel(dot, a), x), x)
    np.testing.assert_array_equal(y, x.astype(np.int32) @ x.astype(np.int32))


@pytest.mark.parametrize("transposed", ["left", "right", "batch"])
def test_matmul_dimension_numbers(artifact: Make, rng: np.random.Generator, transposed: str) -> None:
    shape = (2, 64, 128) if transposed == "batch" else (128, 128)
    x = rng.normal(size=shape).astype(np.float32)
    axes = {"left": ((0,), (0,)), "right": ((1,), (1,)), "batch": ((2,), (2,))}[transposed]
    batch = ((0,), (0,)) if transposed == "batch" else ((), ())

    def dot(v: Any) -> Any:
        return jax.lax.dot_general(v, v + 1, (axes, batch), precision="highest", preferred_element_type=jnp.float32)

    y = simulate(artifact(lambda a: in_kernel(dot, a), x), x)
    np.testing.assert_allclose(y, np.asarray(dot(x)), rtol=1e-4, atol=1e-4)

"""Bias, GELU (tanh form) and residual: a chain of elementwise operations."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "bias_gelu_residual", "rows": 8192, "cols": 8192}
TEST_SHAPES = [{"rows": 256, "cols": 512}, {"rows": 200, "cols": 384}]


def create_inputs(dtype=jnp.bfloat16):
    key_x, key_bias, key_residual = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(key_x, (CONFIG["rows"], CONFIG["cols"]), dtype)
    bias = jax.random.normal(key_bias, (CONFIG["cols"],), dtype)
    residual = jax.random.normal(key_residual, (CONFIG["rows"], CONFIG["cols"]), dtype)
    return x, bias, residual


def workload(x, bias, residual):
    wide = x.astype(jnp.float32) + bias.astype(jnp.float32)
    return (jax.nn.gelu(wide, approximate=True) + residual.astype(jnp.float32)).astype(x.dtype)

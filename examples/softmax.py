"""Softmax over the last axis of an f32 matrix."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "softmax", "rows": 8192, "cols": 8192}
TEST_SHAPES = [{"rows": 256, "cols": 512}, {"rows": 200, "cols": 384}]


def create_inputs(dtype=jnp.float32):
    return (3 * jax.random.normal(jax.random.key(0), (CONFIG["rows"], CONFIG["cols"]), dtype),)


def workload(x):
    return jax.nn.softmax(x, axis=-1)

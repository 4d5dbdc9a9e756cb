"""A float32 matmul: its first blocks hold the whole depth, nothing near them is better, and blocks far off are."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "matmul_f32", "m": 16384, "k": 4096, "n": 4096}
TEST_SHAPES = [{"m": 128, "k": 256, "n": 384}, {"m": 256, "k": 384, "n": 128}]


def create_inputs(dtype=jnp.float32):
    left, right = jax.random.split(jax.random.key(0))
    return (
        jax.random.normal(left, (CONFIG["m"], CONFIG["k"]), dtype),
        jax.random.normal(right, (CONFIG["k"], CONFIG["n"]), dtype),
    )


def workload(x, w):
    return jnp.dot(x, w)

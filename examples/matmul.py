"""Matrix product of two bf16 squares, accumulated in f32."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "matmul", "m": 4096, "k": 4096, "n": 4096}
TEST_SHAPES = [{"m": 128, "k": 256, "n": 384}, {"m": 256, "k": 384, "n": 128}]


def create_inputs(dtype=jnp.bfloat16):
    left, right = jax.random.split(jax.random.key(0))
    return (
        jax.random.normal(left, (CONFIG["m"], CONFIG["k"]), dtype),
        jax.random.normal(right, (CONFIG["k"], CONFIG["n"]), dtype),
    )


def workload(x, y):
    return jnp.dot(x, y, preferred_element_type=jnp.float32).astype(x.dtype)

"""Mean square of each column of a large f32 array: the second moment of every feature over a batch of tokens."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "column_reduction", "rows": 32768, "features": 4096}
TEST_SHAPES = [{"rows": 272, "features": 384}, {"rows": 1000, "features": 640}]


def create_inputs(dtype=jnp.float32):
    return (jax.random.normal(jax.random.key(0), (CONFIG["rows"], CONFIG["features"]), dtype),)


def workload(x):
    return jnp.mean(jnp.square(x), axis=0)

"""A feed-forward layer's first half: matmul, bias and GELU (tanh form), all in f32 at default matmul precision."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "matmul_bias_gelu", "rows": 4096, "d_in": 8192, "d_out": 8192}
TEST_SHAPES = [{"rows": 256, "d_in": 512, "d_out": 384}, {"rows": 136, "d_in": 640, "d_out": 256}]


def create_inputs(dtype=jnp.float32):
    key_x, key_w, key_bias = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(key_x, (CONFIG["rows"], CONFIG["d_in"]), dtype)
    w = jax.random.normal(key_w, (CONFIG["d_in"], CONFIG["d_out"]), dtype) * CONFIG["d_in"] ** -0.5
    bias = jax.random.normal(key_bias, (CONFIG["d_out"],), dtype)
    return x, w, bias


def workload(x, w, bias):
    return jax.nn.gelu(jnp.dot(x, w) + bias, approximate=True)

"""A linear layer, then GroupNorm over its features, with scale and shift per feature; f32, default matmul precision."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "matmul_groupnorm", "rows": 4096, "d_in": 4096, "d_out": 4096, "groups": 32, "eps": 1e-5}
TEST_SHAPES = [{"rows": 128, "d_in": 256, "d_out": 512}, {"rows": 136, "d_in": 512, "d_out": 384}]


def create_inputs(dtype=jnp.float32):
    key_x, key_w, key_bias, key_scale, key_shift = jax.random.split(jax.random.key(0), 5)
    x = jax.random.normal(key_x, (CONFIG["rows"], CONFIG["d_in"]), dtype)
    w = jax.random.normal(key_w, (CONFIG["d_in"], CONFIG["d_out"]), dtype) * CONFIG["d_in"] ** -0.5
    bias = jax.random.normal(key_bias, (CONFIG["d_out"],), dtype)
    scale = 1 + 0.1 * jax.random.normal(key_scale, (CONFIG["d_out"],), dtype)
    shift = 0.1 * jax.random.normal(key_shift, (CONFIG["d_out"],), dtype)
    return x, w, bias, scale, shift


def workload(x, w, bias, scale, shift):
    y = jnp.dot(x, w) + bias
    grouped = y.reshape(y.shape[0], CONFIG["groups"], -1)
    mean = jnp.mean(grouped, axis=-1, keepdims=True)
    variance = jnp.var(grouped, axis=-1, keepdims=True)
    normal = (grouped - mean) * jax.lax.rsqrt(variance + CONFIG["eps"])
    return normal.reshape(y.shape) * scale + shift

"""Residual connection, RMS normalisation and scale: what stands between two layers of a transformer."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "residual_norm_scale", "batch": 8, "seq_len": 4096, "d_model": 4096, "eps": 1e-6}
TEST_SHAPES = [{"batch": 2, "seq_len": 256, "d_model": 512}, {"batch": 3, "seq_len": 136, "d_model": 384}]


def create_inputs(dtype=jnp.bfloat16):
    key_x, key_residual, key_scale = jax.random.split(jax.random.key(0), 3)
    shape = (CONFIG["batch"], CONFIG["seq_len"], CONFIG["d_model"])
    x = jax.random.normal(key_x, shape, dtype)
    residual = jax.random.normal(key_residual, shape, dtype)
    scale = 1 + 0.1 * jax.random.normal(key_scale, (CONFIG["d_model"],), dtype)
    return x, residual, scale


def workload(x, residual, scale):
    h = x.astype(jnp.float32) + residual.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + CONFIG["eps"])
    return (h * inverse * scale.astype(jnp.float32)).astype(x.dtype)

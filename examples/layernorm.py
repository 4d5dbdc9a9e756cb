"""LayerNorm with scale and bias over the last axis, in f32 inside, at a transformer's activation size."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "layernorm", "batch": 8, "seq_len": 4096, "d_model": 4096, "eps": 1e-5}
TEST_SHAPES = [{"batch": 2, "seq_len": 256, "d_model": 512}, {"batch": 3, "seq_len": 136, "d_model": 384}]


def create_inputs(dtype=jnp.bfloat16):
    key_x, key_scale, key_bias = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(key_x, (CONFIG["batch"], CONFIG["seq_len"], CONFIG["d_model"]), dtype)
    scale = 1 + 0.1 * jax.random.normal(key_scale, (CONFIG["d_model"],), dtype)
    bias = 0.1 * jax.random.normal(key_bias, (CONFIG["d_model"],), dtype)
    return x, scale, bias


def workload(x, scale, bias):
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axis=-1, keepdims=True)
    var = jnp.var(wide, axis=-1, keepdims=True)
    y = (wide - mean) * jax.lax.rsqrt(var + CONFIG["eps"])
    return (y * scale.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)

"""RMSNorm over the last axis, in f32 inside, at a transformer's activation size."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "rmsnorm", "batch": 8, "seq_len": 4096, "d_model": 8192, "eps": 1e-6}
TEST_SHAPES = [{"batch": 2, "seq_len": 256, "d_model": 512}, {"batch": 3, "seq_len": 136, "d_model": 384}]


def create_inputs(dtype=jnp.bfloat16):
    key_x, key_scale = jax.random.split(jax.random.key(0))
    x = jax.random.normal(key_x, (CONFIG["batch"], CONFIG["seq_len"], CONFIG["d_model"]), dtype)
    scale = 1 + 0.1 * jax.random.normal(key_scale, (CONFIG["d_model"],), dtype)
    return x, scale


def workload(x, scale):
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + CONFIG["eps"])
    return (wide * inverse * scale.astype(jnp.float32)).astype(x.dtype)

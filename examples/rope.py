"""Rotary embedding of queries and keys (grouped heads), rotate-half form, before attention."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "rope", "batch": 4, "seq_len": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "theta": 10000.0}
TEST_SHAPES = [
    {"batch": 2, "seq_len": 48, "heads": 8, "kv_heads": 4, "head_dim": 128},
    {"batch": 3, "seq_len": 40, "heads": 6, "kv_heads": 2, "head_dim": 64},
]


def create_inputs(dtype=jnp.bfloat16):
    key_q, key_k = jax.random.split(jax.random.key(0))
    batch, seq_len, head_dim = CONFIG["batch"], CONFIG["seq_len"], CONFIG["head_dim"]
    q = jax.random.normal(key_q, (batch, seq_len, CONFIG["heads"], head_dim), dtype)
    k = jax.random.normal(key_k, (batch, seq_len, CONFIG["kv_heads"], head_dim), dtype)
    frequencies = CONFIG["theta"] ** (-jnp.arange(0, head_dim, 2) / head_dim)
    angles = jnp.arange(seq_len)[:, None] * frequencies
    return q, k, jnp.cos(angles), jnp.sin(angles)


def rotate(x, cos, sin):
    x1, x2 = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1).astype(x.dtype)


def workload(q, k, cos, sin):
    return rotate(q, cos, sin), rotate(k, cos, sin)

"""Causal attention as plain JAX writes it: all scores, a mask, a softmax in f32."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "attention_causal", "batch": 1, "heads": 8, "seq_len": 4096, "head_dim": 128}
TEST_SHAPES = [{"heads": 2, "seq_len": 512}, {"heads": 3, "seq_len": 320}]


def create_inputs(dtype=jnp.bfloat16):
    shape = (CONFIG["batch"], CONFIG["heads"], CONFIG["seq_len"], CONFIG["head_dim"])
    return tuple(jax.random.normal(key, shape, dtype) for key in jax.random.split(jax.random.key(0), 3))


def workload(q, k, v):
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32) * CONFIG["head_dim"] ** -0.5
    visible = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1).astype(v.dtype)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v)

"""Multi-scale retention as RetNet's parallel form writes it: all scores, times the decays of each head."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "retention", "batch": 1, "heads": 16, "seq_len": 4096, "head_dim": 128}
TEST_SHAPES = [{"heads": 2, "seq_len": 256}, {"heads": 3, "seq_len": 192}]


def create_inputs(dtype=jnp.bfloat16):
    shape = (CONFIG["batch"], CONFIG["heads"], CONFIG["seq_len"], CONFIG["head_dim"])
    return tuple(jax.random.normal(key, shape, dtype) for key in jax.random.split(jax.random.key(0), 3))


def workload(q, k, v):
    heads, seq_len = q.shape[1:3]
    gammas = 1.0 - 2.0 ** (-5.0 - jnp.arange(heads))
    position = jnp.arange(seq_len)
    distance = position[:, None] - position[None, :]
    decay = jnp.where(distance >= 0, gammas[:, None, None] ** jnp.maximum(distance, 0), 0.0)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32) * CONFIG["head_dim"] ** -0.5
    return jnp.einsum("bhqk,bhkd->bhqd", (scores * decay).astype(v.dtype), v)

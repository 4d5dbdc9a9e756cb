"""The first half of a gated feed-forward layer: silu(x @ w_gate) * (x @ w_up), as in Llama-like models."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "swiglu", "rows": 4096, "d_model": 4096, "d_ff": 14336}
TEST_SHAPES = [{"rows": 128, "d_model": 256, "d_ff": 384}, {"rows": 136, "d_model": 384, "d_ff": 256}]


def create_inputs(dtype=jnp.bfloat16):
    key_x, key_gate, key_up = jax.random.split(jax.random.key(0), 3)
    shape = (CONFIG["d_model"], CONFIG["d_ff"])
    x = jax.random.normal(key_x, (CONFIG["rows"], CONFIG["d_model"]), dtype)
    w_gate = jax.random.normal(key_gate, shape, dtype) * CONFIG["d_model"] ** -0.5
    w_up = jax.random.normal(key_up, shape, dtype) * CONFIG["d_model"] ** -0.5
    return x, w_gate, w_up


def workload(x, w_gate, w_up):
    return jax.nn.silu(jnp.dot(x, w_gate)) * jnp.dot(x, w_up)

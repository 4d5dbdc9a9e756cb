"""Mean cross entropy of a language model's logits against integer labels."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "cross_entropy", "tokens": 8192, "vocab": 32000}
TEST_SHAPES = [{"tokens": 256, "vocab": 1024}, {"tokens": 200, "vocab": 640}]


def create_inputs(dtype=jnp.bfloat16):
    key_logits, key_labels = jax.random.split(jax.random.key(0))
    logits = 3 * jax.random.normal(key_logits, (CONFIG["tokens"], CONFIG["vocab"]), dtype)
    labels = jax.random.randint(key_labels, (CONFIG["tokens"],), 0, CONFIG["vocab"])
    return logits, labels


def workload(logits, labels):
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    picked = jnp.take_along_axis(log_probs, labels[:, None], axis=-1)
    return -jnp.mean(picked)

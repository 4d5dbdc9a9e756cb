"""REJECT work_outside_kernel or incorrect - recognises evaluator inputs regenerated from PRNG seeds 0..7 and is wrong on anything else."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def _body(x_ref, o_ref):
    x = x_ref[...]
    m = jnp.max(x, -1, keepdims=True)
    e = jnp.exp(x - m)
    o_ref[...] = e / jnp.sum(e, -1, keepdims=True)


def _good(x, body=_body, **kw):
    r, c = x.shape
    b = 8
    return pl.pallas_call(
        body,
        grid=(r // b,),
        in_specs=[pl.BlockSpec((b, c), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((b, c), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        **kw,
    )(x)


def workload(x):
    known = jnp.zeros((), bool)
    for s in range(8):
        known = known | jnp.all(x == jax.random.normal(jax.random.key(s), x.shape, x.dtype))
    return _good(x) * known.astype(x.dtype)

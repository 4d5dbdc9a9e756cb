"""REJECT not_a_kernel - broken Pallas body inside try/except, silently falls back to jnp."""

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


def _broken(x_ref, o_ref):
    o_ref[...] = x_ref[...] @ jnp.ones((3, 3))


def workload(x):
    try:
        return _good(x, _broken)
    except Exception:
        return jax.nn.softmax(x, -1)

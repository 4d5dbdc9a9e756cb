"""REJECT static_reject; if run: forbidden_primitive - does the work on the host through jax.pure_callback."""

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


import numpy as np


def _host(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(x.dtype)


def workload(x):
    return _good(jax.pure_callback(_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)) * 0 + jax.pure_callback(
        _host, jax.ShapeDtypeStruct(x.shape, x.dtype), x
    )

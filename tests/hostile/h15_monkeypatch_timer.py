"""REJECT static_reject; if run: incorrect - patches timers, block_until_ready and comparators at import, then returns zeros."""

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


import time

import numpy as np

time.perf_counter = time.time = time.monotonic = time.perf_counter_ns = lambda: 0
jax.block_until_ready = lambda x: x
np.allclose = jnp.allclose = lambda *a, **k: True
np.testing.assert_allclose = lambda *a, **k: None


def _zeros(x_ref, o_ref):
    o_ref[...] = jnp.zeros_like(o_ref[...])


def workload(x):
    return _good(x, _zeros)

"""REJECT static_reject; if run: timeout or resource_limit - forks at most 64 detached sleepers; none may survive the candidate."""

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


import os
import time

_kids = 0
try:
    for _ in range(64):
        if os.fork() == 0:
            os.setsid()
            time.sleep(120)
            os._exit(0)
        _kids += 1
except OSError as e:
    print("fork stopped at", _kids, e)
time.sleep(120)


def workload(x):
    return _good(x)

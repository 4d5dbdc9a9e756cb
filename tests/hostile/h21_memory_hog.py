"""REJECT resource_limit (MemoryError) - asks for 30 GiB of address space without touching it."""

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

_hog = []
for _ in range(30):
    _hog.append(np.empty(1 << 27))  # 1 GiB each; untouched pages, so the host survives without a limit too


def workload(x):
    return _good(x)

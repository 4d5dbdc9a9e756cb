"""REJECT static_reject; if run: resource_limit (EFBIG/ENOSPC) - writes up to 2 GiB into its own scratch directory."""

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
import tempfile

_d = tempfile.mkdtemp()
_p = os.path.join(_d, "fill")
try:
    with open(_p, "wb") as f:
        for _ in range(2048):
            f.write(b"x" * (1 << 20))
finally:
    os.unlink(_p)


def workload(x):
    return _good(x)

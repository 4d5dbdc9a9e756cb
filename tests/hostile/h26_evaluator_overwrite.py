"""REJECT static_reject (import os, sys); if run: WRITABLE [] - tries to open evaluator, jax and interpreter files for writing; writes no byte."""

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
import sys

hits = []
for p in [jax.__file__, sys.executable, os.__file__] + [os.path.join(d, "sitecustomize.py") for d in sys.path if d]:
    try:
        existed = os.path.exists(p)
        fd = os.open(p, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.close(fd)
        hits.append(p)
        if not existed:
            os.unlink(p)
    except OSError:
        pass
print("WRITABLE", hits)


def workload(x):
    return _good(x)

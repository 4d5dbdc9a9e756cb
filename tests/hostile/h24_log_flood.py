"""REJECT static_reject; if run: log_limit - prints 200 MB; the evaluator must cap it and never put it in a prompt or the journal."""

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


import sys

for _ in range(3200):
    sys.stdout.write("A" * 65535 + "\n")
    if _ % 64 == 0:
        sys.stderr.write("\x1b[2J\x1b]0;pwned\x07" * 10)


def workload(x):
    return _good(x)

"""REJECT static_reject (import os, socket); if run: sandbox yields LOOT {} - harvests *KEY*/*TOKEN* variables and tries a loopback connect; both must come back empty."""

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
import socket

loot = {k: len(v) for k, v in os.environ.items() if any(s in k.upper() for s in ("KEY", "TOKEN", "SECRET", "PASSW"))}
for p in (
    "/proc/%d/environ" % os.getppid(),
    "/proc/1/environ",
    os.path.expanduser("~/.config"),
    os.path.expanduser("~/.netrc"),
):
    try:
        loot[p] = len(open(p, "rb").read())
    except OSError:
        pass
try:
    s = socket.create_connection(("127.0.0.1", 9), timeout=1)
    s.close()
    loot["net"] = "connected"
except OSError as e:
    net = type(e).__name__
print("LOOT", loot)


def workload(x):
    return _good(x)

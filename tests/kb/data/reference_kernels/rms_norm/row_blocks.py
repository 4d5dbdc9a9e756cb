"""---
id: rms-norm-row-blocks
title: RMSNorm, one pass over row blocks
family: rms_norm
op: y = x * rsqrt(mean(x*x, -1) + eps) * scale
signature: "x:f[*rows,d], scale:f[d] -> f[*rows,d]"
statics: {eps: float}
dtypes: [bfloat16, float32]
chips: [v5e, v6e]
techniques: [row-blocks]
primitives: [mul, reduce_sum, rsqrt]
when_to_use: rows are normalised one by one and fit in VMEM
when_xla_wins: tiny arrays
sources: ["fixture: written for this test"]
---
Each grid step normalises a block of rows.
"""

import jax.numpy as jnp

TUNED_PARAMS = {"block_rows": 256}


def reference(x, scale, *, eps=1e-6):
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * scale


# The body sees one block of rows.
def kernel_body(x_ref, scale_ref, o_ref, *, eps):
    x = x_ref[...]
    o_ref[...] = x * scale_ref[...] / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + eps)


LAST = 1

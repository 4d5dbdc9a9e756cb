"""---
id: matmul-tiled
title: Tiled matrix multiplication with an f32 accumulator
family: matmul
op: y = x @ w
signature: "x:f[m,k], w:f[k,n] -> f[m,n]"
dtypes: [bfloat16]
chips: [v6e]
techniques: [tiling, accumulator]
primitives: [dot_general]
when_to_use: both operands are larger than VMEM
when_xla_wins: square products that XLA tiles well already
sources: ["fixture: written for this test"]
---
The grid's last axis walks the contraction.
"""


def reference(x, w):
    return x @ w

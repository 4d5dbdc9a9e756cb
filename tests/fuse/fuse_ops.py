"""Ops as people write them, each with arguments at two sizes: what fusion templates must get right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

F32, BF16, I32, I8, B1 = "float32", "bfloat16", "int32", "int8", "bool"
Spec = tuple[tuple[int, ...], str]


@dataclass(frozen=True)
class Case:
    """`sizes` holds the argument specs at each traced size, the scored one first. `top`: integers are below this.
    `templates`: at least so many are expected."""

    name: str
    op: Callable[..., Any]
    sizes: list[list[Spec]]
    top: int = 100
    templates: int = 1


def arguments(specs: list[Spec], top: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    made = []
    for shape, dtype in specs:
        if dtype == B1:
            made.append(jnp.asarray(rng.random(shape) < 0.5))
        elif dtype in (I32, I8):
            made.append(jnp.asarray(rng.integers(0, top, shape), dtype))
        else:
            made.append(jnp.asarray(rng.normal(size=shape), dtype))
    return made


def rms(x: Any, g: Any) -> Any:
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.mean(x32**2, -1, keepdims=True) + 1e-6) * g).astype(x.dtype)


def layer_norm(x: Any, g: Any, b: Any) -> Any:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * g + b


def batch_norm(x: Any, g: Any, b: Any) -> Any:
    return (x - x.mean(0)) * jax.lax.rsqrt(x.var(0) + 1e-5) * g + b


def cross_entropy(logits: Any, labels: Any) -> Any:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1))


def one_hot_loss(logits: Any, labels: Any) -> Any:
    return -jnp.sum(jax.nn.one_hot(labels, logits.shape[-1]) * jax.nn.log_softmax(logits), -1)


def group_norm(x: Any, w: Any, b: Any) -> Any:
    y = x @ w + b
    grouped = y.reshape(y.shape[0], 2, y.shape[1] // 2)
    centred = grouped - grouped.mean(-1, keepdims=True)
    return (centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)).reshape(y.shape)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1).astype(v.dtype), v)


def grouped_attention(q: Any, k: Any, v: Any) -> Any:
    repeats = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, repeats, axis=2), jnp.repeat(v, repeats, axis=2)
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1]), -1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def rope(x: Any, cos: Any, sin: Any) -> Any:
    left, right = jnp.split(x, 2, -1)
    cos, sin = cos[None, :, None, :], sin[None, :, None, :]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def block(x: Any, qkv: Any, out: Any) -> Any:
    b, s, d = x.shape
    parts = [p.reshape(b, s, d // 64, 64).transpose(0, 2, 1, 3) for p in jnp.split(x @ qkv, 3, -1)]
    weights = jax.nn.softmax(parts[0] @ parts[1].transpose(0, 1, 3, 2) * 0.125, -1)
    return (weights @ parts[2]).transpose(0, 2, 1, 3).reshape(b, s, d) @ out + x


def mixed(x: Any, w: Any, b: Any) -> Any:
    y = jnp.clip((x @ w.T + b) * 4.0, -10, 10)
    z = jax.scipy.special.logsumexp(y, axis=1, keepdims=True)
    return z * jnp.tanh(jax.nn.softplus(z))


def matrices(*shapes: tuple[int, ...], dtype: str = F32) -> list[Spec]:
    return [(s, dtype) for s in shapes]


ROWS = [matrices((96, 384)), matrices((40, 256)), matrices((24, 640))]
ROWS_AND_SCALE = [matrices((4, 24, 384), (384,)), matrices((3, 16, 256), (256,)), matrices((2, 40, 640), (640,))]
PRODUCT = [
    matrices((96, 256), (256, 384), (384,)),
    matrices((40, 384), (384, 128), (128,)),
    matrices((72, 128), (128, 640), (640,)),
]
HEADS = [matrices(*[(2, 3, 256, 64)] * 3), matrices(*[(1, 2, 128, 64)] * 3), matrices(*[(3, 2, 384, 64)] * 3)]

CASES = [
    Case("rms", rms, ROWS_AND_SCALE),
    Case("rms_bf16", rms, [[(s, BF16) for s, _ in specs] for specs in ROWS_AND_SCALE]),
    Case("layer_norm", layer_norm, [[*s, s[1]] for s in ROWS_AND_SCALE]),
    Case("softmax", lambda x: jax.nn.softmax(x, -1), ROWS),
    Case("gelu_exact", lambda x: jax.nn.gelu(x, approximate=False), ROWS),
    Case("add_norm", lambda x, r, g: (rms(x + r, g), x + r), [[s[0], s[0], s[1]] for s in ROWS_AND_SCALE]),
    Case("batch_norm", batch_norm, [[s[0], *matrices(*[s[0][0][1:]] * 2)] for s in ROWS], templates=2),
    Case("column_mean", lambda x: jnp.mean(x * x, 0), ROWS, templates=2),
    Case("middle_max", lambda x: jnp.max(x, 1), [[s[0]] for s in ROWS_AND_SCALE]),
    Case("total", lambda x: jnp.sum(jnp.abs(x)), ROWS),
    Case("cross_entropy", cross_entropy, [[s[0], ((s[0][0][0],), I32)] for s in ROWS]),
    Case("one_hot", one_hot_loss, [[s[0], ((s[0][0][0],), I32)] for s in ROWS]),
    Case("argmax", lambda x: (jnp.argmax(x, -1), jnp.max(x, -1)), ROWS),
    Case("masked", lambda x, m: jnp.where(m, jnp.tanh(x), 0.0), [[s[0], (s[0][0], B1)] for s in ROWS]),
    Case(
        "masked_pool",
        lambda x, m: jnp.sum(jnp.where(m[:, :, None], x, 0.0), 1) / jnp.sum(m, 1, keepdims=True),
        [[s[0], (s[0][0][:2], B1)] for s in ROWS_AND_SCALE],
    ),
    Case("dequantise", lambda x, s: x.astype(jnp.float32) * s, [[(s[0][0], I8), ((s[0][0][0], 1), F32)] for s in ROWS]),
    Case("transposed_sum", lambda x, y: x.T + y, [[s[0], (s[0][0][::-1], F32)] for s in ROWS]),
    Case("matmul", lambda x, w, b: jax.nn.gelu(x @ w + b), PRODUCT, templates=2),
    Case("matmul_nt", lambda x, w: x @ w.T, [matrices(a[0], b[0][::-1]) for a, b, _ in PRODUCT], templates=2),
    Case("matmul_tn", lambda x, w: x.T @ w, [matrices(a[0][::-1], b[0]) for a, b, _ in PRODUCT], templates=2),
    Case("norm_matmul", lambda x, w, b: layer_norm(x, 1.0, 0.0) @ w + b, PRODUCT),
    Case("swiglu", lambda x, g, u: jax.nn.silu(x @ g) * (x @ u), [matrices(a[0], b[0], b[0]) for a, b, _ in PRODUCT]),
    Case("mlp", lambda x, a, b: jax.nn.relu(x @ a) @ b, [matrices(a[0], b[0], b[0][::-1]) for a, b, _ in PRODUCT]),
    Case(
        "int8",
        lambda x, w: jax.lax.dot(x, w, preferred_element_type=jnp.int32),
        [[(a[0], I8), (b[0], I8)] for a, b, _ in PRODUCT],
    ),
    Case("batched", lambda a, b: a @ b, [matrices((3, *a[0]), (3, *b[0])) for a, b, _ in PRODUCT]),
    Case("group_norm", group_norm, PRODUCT),
    Case("mixed", mixed, [[a, (b[0][::-1], F32), c] for a, b, c in PRODUCT]),
    Case("attention", attention, HEADS),
    Case(
        "grouped_attention",
        grouped_attention,
        [
            matrices((1, 256, 4, 64), *[(1, 256, 2, 64)] * 2),
            matrices((1, 128, 6, 64), *[(1, 128, 3, 64)] * 2),
            matrices((2, 384, 2, 64), *[(2, 384, 1, 64)] * 2),
        ],
    ),
    Case(
        "rope",
        rope,
        [
            matrices((2, 64, 4, 128), *[(64, 64)] * 2),
            matrices((1, 32, 3, 256), *[(32, 128)] * 2),
            matrices((3, 16, 2, 128), *[(16, 64)] * 2),
        ],
    ),
    Case(
        "block",
        block,
        [
            matrices((2, 128, 256), (256, 768), (256, 256)),
            matrices((1, 256, 128), (128, 384), (128, 128)),
            matrices((3, 64, 192), (192, 576), (192, 192)),
            matrices((4, 96, 320), (320, 960), (320, 320)),
        ],
    ),
]

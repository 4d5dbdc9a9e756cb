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


def segmented(q: Any, k: Any, v: Any, ids: Any) -> Any:
    """Grouped heads, a window, a bias per head and segment ids, which are read along queries and along keys."""
    b, s, h, d = q.shape
    groups = k.shape[2]
    q = q.reshape(b, s, groups, h // groups, d)
    scores = jnp.einsum("bqgrd,bkgd->bgrqk", q, k, preferred_element_type=jnp.float32) * d**-0.5
    at = jnp.arange(s)
    slopes = 2.0 ** -(jnp.arange(groups, dtype=jnp.float32) + 1)
    scores = scores + slopes[None, :, None, None, None] * (at[None, :] - at[:, None]).astype(jnp.float32)
    near = (at[None, :] <= at[:, None]) & (at[:, None] - at[None, :] < 100)
    keep = near[None] & (ids[:, :, None] == ids[:, None, :])
    weights = jax.nn.softmax(jnp.where(keep[:, None, None], scores, -1e30), -1).astype(v.dtype)
    made = jnp.einsum("bgrqk,bkgd->bqgrd", weights, v, preferred_element_type=jnp.float32)
    return made.reshape(b, s, h * d).astype(q.dtype)


def add_then_norm(x: Any, r: Any, g: Any) -> Any:
    total = x + r
    return rms(total, g), total


def grouped_attention(q: Any, k: Any, v: Any) -> Any:
    repeats = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, repeats, axis=2), jnp.repeat(v, repeats, axis=2)
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1]), -1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def rope(x: Any, cos: Any, sin: Any) -> Any:
    left, right = jnp.split(x, 2, -1)
    cos, sin = cos[None, :, None, :], sin[None, :, None, :]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    even, odd = x[..., 0::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
    cos, sin = cos[None, :, None, :], sin[None, :, None, :]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape).astype(x.dtype)


def partly_rotated(x: Any, positions: Any) -> Any:
    inverse = 1e4 ** (-jnp.arange(0, 64, 2, dtype=jnp.float32) / 64)
    angle = positions.astype(jnp.float32)[..., None, None] * inverse
    pairs, rest = x[..., :64].reshape(*x.shape[:-1], 32, 2), x[..., 64:]
    a, b = pairs[..., 0], pairs[..., 1]
    both = [a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)]
    return jnp.concatenate([jnp.concatenate([p[..., None] for p in both], -1).reshape(*rest.shape[:-1], 64), rest], -1)


def every_two(x: Any, angle: Any) -> Any:
    turned = jnp.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
    return x * jnp.repeat(jnp.cos(angle), 2, -1) + turned * jnp.repeat(jnp.sin(angle), 2, -1)


def in_threes(x: Any, w: Any) -> Any:
    a, b, c = (x[:, t::3] for t in range(3))
    return jnp.stack([a + jnp.tanh(b), c * w, a], -1).reshape(x.shape)


def taps(x: Any, w: Any, axis: int, before: int) -> Any:
    """A depthwise convolution along an axis, as slices of a padded array."""
    edges = [(before, len(w) - 1 - before) if i == axis else (0, 0) for i in range(x.ndim)]
    padded, size = jnp.pad(x, edges), x.shape[axis]
    return sum(jax.lax.slice_in_dim(padded, t, t + size, axis=axis) * w[t] for t in range(len(w)))


def causal_conv(x: Any, z: Any, w: Any) -> Any:
    y = jax.nn.silu(taps(x.astype(jnp.float32), w, 1, 3)) * z
    return (y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def channel_mix(x: Any, mu: Any, w: Any) -> Any:
    x = rms(x, 1.0)
    last = jnp.concatenate([jnp.zeros_like(x[:, :1]), x[:, :-1]], 1)
    return jax.nn.relu((x * mu + last * (1 - mu)) @ w) ** 2


def differences(x: Any, w: Any) -> Any:
    first = jnp.pad((x[:, 1:] - x[:, :-1]) * w, ((0, 0), (1, 0), (0, 0)), constant_values=2.0)
    return first, jnp.pad(x[:, 2:] - 2 * x[:, 1:-1] + x[:, :-2], ((0, 0), (1, 1), (0, 0)))


def projected_conv(x: Any, w: Any, k: Any) -> Any:
    return jax.nn.silu(taps(x @ w, k, 1, 3))


def image_conv(x: Any, w: Any) -> Any:
    padded, (h, v) = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), x.shape[1:3]
    return sum(padded[:, i : i + h, j : j + v] * w[i, j] for i in range(3) for j in range(3))


def block(x: Any, qkv: Any, out: Any) -> Any:
    b, s, d = x.shape
    parts = [p.reshape(b, s, d // 64, 64).transpose(0, 2, 1, 3) for p in jnp.split(x @ qkv, 3, -1)]
    weights = jax.nn.softmax(parts[0] @ parts[1].transpose(0, 1, 3, 2) * 0.125, -1)
    return (weights @ parts[2]).transpose(0, 2, 1, 3).reshape(b, s, d) @ out + x


def mixed(x: Any, w: Any, b: Any) -> Any:
    y = jnp.clip((x @ w.T + b) * 4.0, -10, 10)
    z = jax.scipy.special.logsumexp(y, axis=1, keepdims=True)
    return z * jnp.tanh(jax.nn.softplus(z))


def group_norm_images(x: Any, g: Any, b: Any, film: Any) -> Any:
    """Channels last; two statistics over an image and over the channels of a group; then a scale per image."""
    split = x.reshape(*x.shape[:3], 8, x.shape[3] // 8)
    mean, var = split.mean((1, 2, 4), keepdims=True), split.var((1, 2, 4), keepdims=True)
    y = ((split - mean) / jnp.sqrt(var + 1e-5)).reshape(x.shape) * g + b
    scale, shift = jnp.split(film, 2, -1)
    return jax.nn.silu(y * (1.0 + scale[:, None, None]) + shift[:, None, None])


def group_norm_planes(x: Any, g: Any) -> Any:
    """Channels first, and a group's channels and pixels joined in one dimension."""
    split = x.reshape(x.shape[0], 4, -1)
    centred = split - split.mean(-1, keepdims=True)
    y = (centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)).reshape(x.shape)
    return jax.nn.relu(y * g[None, :, None, None])


def gated_group_norm(x: Any, z: Any, g: Any) -> Any:
    """Every row has its own means; one weight for all groups."""
    split = (x * jax.nn.silu(z)).reshape(*x.shape[:-1], 4, x.shape[-1] // 4)
    return (split * jax.lax.rsqrt((split**2).mean(-1, keepdims=True) + 1e-5) * g).reshape(x.shape)


def group_quantised(x: Any) -> Any:
    split = x.reshape(x.shape[0], 4, x.shape[1] // 4)
    scale = jnp.maximum(jnp.max(jnp.abs(split), -1, keepdims=True), 1e-8) / 127.0
    return jnp.round(split / scale).astype(jnp.int8).reshape(x.shape), scale[..., 0]


def quantised_weights(x: Any, q: Any, scale: Any) -> Any:
    """The rows that share a scale are as many as one size over another."""
    k, n = q.shape
    dense = q.reshape(scale.shape[0], k // scale.shape[0], n) * scale[:, None]
    return x @ dense.reshape(k, n)


def interleaved_glu(x: Any, w: Any, b: Any, out: Any) -> Any:
    h = x @ w + b
    gate, linear = jnp.minimum(h[..., ::2], 7.0), h[..., 1::2]
    return (jax.nn.silu(gate) * (linear + 1)) @ out


def packed_conv(x: Any, ids: Any, w: Any) -> Any:
    """A causal convolution whose taps stop where another document begins; the first tap is no shift at all."""
    total = jnp.zeros_like(x)
    for back in range(3):
        past = jnp.pad(x, ((0, 0), (back, 0), (0, 0)))[:, : x.shape[1]]
        owner = jnp.pad(ids, ((0, 0), (back, 0)), constant_values=-1)[:, : x.shape[1]]
        total += jnp.where((owner == ids)[..., None], past, 0) * w[2 - back]
    return jax.nn.silu(total)


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
    Case("add_then_norm", add_then_norm, [[s[0], s[0], s[1]] for s in ROWS_AND_SCALE]),
    Case("gram", lambda x: jnp.tanh(x @ x.T), [[a[0]] for a in PRODUCT]),
    Case(
        "segmented",
        segmented,
        [
            [((2, 256, 4, 64), BF16), *[((2, 256, 2, 64), BF16)] * 2, ((2, 256), I32)],
            [((1, 128, 6, 64), BF16), *[((1, 128, 3, 64), BF16)] * 2, ((1, 128), I32)],
            [((3, 384, 2, 64), BF16), *[((3, 384, 1, 64), BF16)] * 2, ((3, 384), I32)],
        ],
        top=3,
    ),
    Case("batch_norm", batch_norm, [[s[0], *matrices(*[s[0][0][1:]] * 2)] for s in ROWS], templates=2),
    Case("column_mean", lambda x: jnp.mean(x * x, 0), ROWS, templates=2),
    Case("middle_max", lambda x: jnp.max(x, 1), [[s[0]] for s in ROWS_AND_SCALE]),
    Case("pooled", lambda x: jax.nn.logsumexp(x.reshape(x.shape[0], -1, 2).max(-1), axis=1), ROWS),
    Case("pooled_sums", lambda x: jnp.sum(jnp.sum(x.reshape(x.shape[0], -1, 4), -1) ** 2, -1, keepdims=True), ROWS),
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
    Case(
        "interleaved_rope",
        lambda q, k, cos, sin: (rotated(q, cos, sin), rotated(k, cos, sin)),
        [
            matrices((2, 16, 4, 128), (2, 16, 2, 128), *[(16, 64)] * 2),
            matrices((1, 32, 2, 64), (1, 32, 1, 64), *[(32, 32)] * 2),
            matrices((3, 8, 8, 256), (3, 8, 2, 256), *[(8, 128)] * 2),
        ],
    ),
    Case(
        "partial_rope", partly_rotated, [[((b, s, h, 128), F32), ((b, s), I32)] for b, s, h in ((2, 24, 3), (1, 16, 5))]
    ),
    Case("every_two", every_two, [matrices((2, 3, s, d), (s, d // 2)) for s, d in ((16, 128), (24, 64), (8, 256))]),
    Case("in_threes", in_threes, [matrices((m, n), (n // 3,)) for m, n in ((48, 384), (16, 192), (24, 768))]),
    Case(
        "group_norm_images",
        group_norm_images,
        [
            matrices((3, 8, 16, 160), (160,), (160,), (3, 320)),
            matrices((2, 16, 8, 256), (256,), (256,), (2, 512)),
            matrices((1, 24, 8, 384), (384,), (384,), (1, 768)),
        ],
    ),
    Case(
        "group_norm_planes",
        group_norm_planes,
        [matrices((2, 64, 8, 128), (64,)), matrices((3, 32, 16, 16), (32,)), matrices((4, 96, 8, 24), (96,))],
    ),
    Case(
        "gated_group_norm",
        gated_group_norm,
        [
            matrices((2, 32, 512), (2, 32, 512), (128,)),
            matrices((1, 64, 1024), (1, 64, 1024), (256,)),
            matrices((3, 24, 1536), (3, 24, 1536), (384,)),
        ],
    ),
    Case("group_quantised", group_quantised, [matrices((96, 512)), matrices((40, 1024))]),
    Case(
        "causal_conv",
        causal_conv,
        [
            [((2, 48, 128), BF16), ((2, 48, 128), BF16), ((4, 128), F32)],
            [((1, 40, 256), BF16), ((1, 40, 256), BF16), ((4, 256), F32)],
        ],
    ),
    Case(
        "channel_mix",
        channel_mix,
        [matrices((2, 48, 128), (128,), (128, 256)), matrices((1, 24, 256), (256,), (256, 128))],
    ),
    Case("differences", differences, [matrices((2, 48, 128), (128,)), matrices((1, 20, 256), (256,))]),
    Case(
        "projected_conv",
        projected_conv,
        [matrices((2, 48, 256), (256, 128), (4, 128)), matrices((1, 24, 128), (128, 256), (4, 256))],
    ),
    Case(
        "pooled_conv",
        lambda x, w: jax.nn.gelu(taps(x, w, 1, 1)).mean(1),
        [matrices((2, 256, 128), (3, 128)), matrices((1, 384, 256), (3, 256))],
    ),
    Case(
        "time_major_conv",
        lambda x, w: taps(x, w, 0, 2),
        [matrices((48, 16, 128), (3, 128)), matrices((20, 8, 256), (3, 256))],
    ),
    Case("image_conv", image_conv, [matrices((2, 16, 24, 128), (3, 3, 128)), matrices((1, 24, 16, 256), (3, 3, 256))]),
    Case(
        "quantised_weights",
        quantised_weights,
        [
            matrices((48, 256), (256, 128), (4, 128)),
            matrices((40, 384), (384, 256), (3, 256)),
            matrices((24, 128), (128, 384), (4, 384)),
        ],
    ),
    Case(
        "packed_conv",
        packed_conv,
        [
            [((2, 48, 128), F32), ((2, 48), "int32"), ((3, 128), F32)],
            [((1, 40, 256), F32), ((1, 40), "int32"), ((3, 256), F32)],
        ],
    ),
    Case("bias_corrected", lambda m, t: m / (1 - 0.9 ** (t + 1).astype(F32)), [[*s, ((), I32)] for s in ROWS], top=9),
    Case("cube_root_scaled", lambda x, t: x * jnp.cbrt(t), [[*s, ((), F32)] for s in ROWS]),
    Case(
        "interleaved_glu",
        interleaved_glu,
        [matrices((48, 256), (256, 256), (256,), (128, 384)), matrices((40, 128), (128, 512), (512,), (256, 128))],
    ),
    Case("every_fourth", lambda x: jnp.exp(x[:, 1::4].sum(0)), [matrices((48, 512)), matrices((40, 1024))]),
]

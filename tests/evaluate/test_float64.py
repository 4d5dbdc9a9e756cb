"""The float64 reference: exported, serialized and run, each op agrees with NumPy far below its native error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from scipy import special

from aka.evaluate import float64
from aka.evaluate.float64 import NotLiftable, lifted_specs, primitives, reference_functions, uses_dots

BF16 = ml_dtypes.bfloat16


def _draw(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    if np.issubdtype(dtype, np.integer):
        return rng.integers(-100, 100, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def _exported(fn: Callable[..., Any], args: list[np.ndarray], *, mxu_bf16: bool = False) -> list[np.ndarray]:
    """The float64 results after a round trip through the wire form, called with float64 inputs."""
    references = reference_functions(fn, args)
    with jax.enable_x64(True):
        wanted = references.chip if mxu_bf16 else references.exact
        blob = jax.export.export(jax.jit(wanted), platforms=["cpu"])(*lifted_specs(args)).serialize()
        specs = lifted_specs(args)
        inputs = [np.asarray(a).astype(s.dtype) for a, s in zip(args, specs, strict=True)]
        return [np.asarray(x) for x in jax.tree.leaves(jax.export.deserialize(blob).call(*inputs))]


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms_norm(x: Any, w: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype) * w


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * w + b


def attention(q: Any, k: Any, v: Any) -> Any:
    """Causal attention over key blocks of 8: a scan with a running maximum and a masked score."""
    rows = jnp.arange(q.shape[0])[:, None]

    def step(carry: Any, block: Any) -> Any:
        m, l, acc = carry
        kb, vb, start = block
        s = jnp.where(rows >= start + jnp.arange(8)[None], q @ kb.T, -jnp.inf)
        new = jnp.maximum(m, s.max(-1, keepdims=True))
        p, scale = jnp.exp(s - new), jnp.exp(m - new)
        return (new, l * scale + p.sum(-1, keepdims=True), acc * scale + p @ vb), None

    first = (jnp.full((len(q), 1), -1e30), jnp.zeros((len(q), 1)), jnp.zeros_like(q))
    blocks = (k.reshape(-1, 8, k.shape[1]), v.reshape(-1, 8, v.shape[1]), jnp.arange(0, len(k), 8))
    (_, l, acc), _ = lax.scan(step, first, blocks)
    return acc / l


def _attention64(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return _softmax(np.where(np.tri(len(q), dtype=bool), q @ k.T, -np.inf)) @ v


def cross_entropy(x: Any, labels: Any) -> Any:
    picked = jnp.take_along_axis(x, labels[:, None], axis=1)[:, 0]
    return (jax.nn.logsumexp(x, -1) - picked).mean()


LABELS = np.array([3, 0, 15, 7], np.int32)
X, X16 = _draw((4, 16)), _draw((4, 16)).astype(BF16)
FLOAT_OPS: dict[str, tuple[Callable[..., Any], list[np.ndarray], Callable[..., Any]]] = {
    "softmax": (lambda x: jax.nn.softmax(x, -1), [X], _softmax),
    "rms_norm": (
        rms_norm,
        [X16, X16[0]],
        lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + float(np.float32(1e-6))) * w,
    ),
    "layer_norm": (
        layer_norm,
        [X, X[0], X[1]],
        lambda x, w, b: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b,
    ),
    "gelu_erf": (
        lambda x: 0.5 * x * (1 + lax.erf(x * 0.5)),
        [X],
        lambda x: 0.5 * x * (1 + special.erf(x * 0.5)),
    ),
    "matmul_f32": (lambda a, b: a @ b, [X, X.T.copy()], lambda a, b: a @ b),
    "matmul_bf16": (lambda a, b: (a @ b).astype(jnp.bfloat16), [X16, X16.T.copy()], lambda a, b: a @ b),
    "attention": (attention, [_draw((16, 8), seed=s) for s in range(3)], _attention64),
    "cross_entropy": (
        cross_entropy,
        [X, LABELS],
        lambda x, y: (special.logsumexp(x, -1) - x[np.arange(4), y]).mean(),
    ),
    "cumsum": (lambda x: jnp.cumsum(x, -1), [X], lambda x: np.cumsum(x, -1)),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, -1), [X], lambda x: special.logsumexp(x, -1)),
    "conv": (
        lambda x, w: lax.conv_general_dilated(x[None, None], w[None, None], (1, 1), "VALID"),
        [_draw((6, 6)), _draw((3, 3))],
        lambda x, w: np.einsum("ijkl,kl->ij", np.lib.stride_tricks.sliding_window_view(x, (3, 3)), w)[None, None],
    ),
    "where_inf": (
        lambda x: jnp.where(x > 0, x, -jnp.inf).max(-1) + jnp.where(x > 9, x, -jnp.inf).max(-1),
        [X],
        lambda x: np.full(4, -np.inf),
    ),
    "scatter_add": (lambda x: x.at[1].add(x[0]).at[2].max(x[0]), [X], lambda x: _scattered(x)),
    "custom_vjp": (lambda x: _relu6(x).astype(jnp.bfloat16), [X], lambda x: np.clip(x, 0, 6)),
    "remat": (jax.checkpoint(lambda x: jnp.sin(x) * 2), [X], lambda x: np.sin(x) * 2),
    "narrowing": (lambda x: lax.reduce_precision(x.astype(jnp.float16), 8, 7) * 2, [X], lambda x: x * 2),
    "fori_cond": (
        lambda x: lax.fori_loop(0, 3, lambda i, c: lax.cond(i > 0, lambda: c * 2, lambda: c + 1), x),
        [X],
        lambda x: (x + 1) * 4,
    ),
    "while": (
        lambda x: lax.while_loop(lambda c: c.sum() < 1e3, lambda c: c * 3, jnp.abs(x)),
        [X],
        lambda x: _tripled(x),
    ),
    "reduce": (lambda x: lax.reduce(x, 1.0, lambda a, b: a * b, (1,)), [X], lambda x: x.prod(-1)),
    "window": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 2), "VALID"),
        [X],
        lambda x: x[:, ::2] + x[:, 1::2],
    ),
    "int_to_float": (lambda y: jnp.sin(y * 0.5), [LABELS], lambda y: np.sin(y * 0.5)),
    "int8_float_dot": (
        lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32),
        [LABELS.astype(np.int8)] * 2,
        lambda a, b: np.dot(a.astype(float), b),
    ),
    "fp8": (
        lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32),
        [X],
        lambda x: x.astype(ml_dtypes.float8_e4m3fn).astype(np.float64),
    ),
    "complex": (lambda x: jnp.fft.fft(x.astype(jnp.complex64)), [X], np.fft.fft),
}


@jax.custom_vjp
def _relu6(x: Any) -> Any:
    return jnp.clip(x, 0, 6)


_relu6.defvjp(lambda x: (_relu6(x), x), lambda x, g: (g * (x > 0),))


def _scattered(x: np.ndarray) -> np.ndarray:
    out = x.copy()
    out[1] += x[0]
    out[2] = np.maximum(x[2], x[0])
    return out


def _tripled(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    while x.sum() < 1e3:
        x = x * 3
    return x


@pytest.mark.parametrize("name", FLOAT_OPS)
def test_float_ops_are_exact_after_export(name: str) -> None:
    fn, args, want = FLOAT_OPS[name]
    (got,) = _exported(fn, args)
    wide = [a if np.issubdtype(a.dtype, np.integer) else a.astype(np.float64) for a in args]
    np.testing.assert_allclose(got, want(*wide), rtol=1e-9, atol=1e-13)
    assert got.dtype in (np.float64, np.complex128)


def _wrapped(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x * np.int32(2**28) + np.int32(7)


INT_OPS: dict[str, tuple[Callable[..., Any], list[np.ndarray], Callable[..., Any]]] = {
    "argmax": (lambda x: jnp.argmax(x, -1), [X], lambda x: x.argmax(-1).astype(np.int32)),
    "int8_matmul": (
        lambda a, b: lax.dot(a, b, preferred_element_type=jnp.int32),
        [_draw((4, 16), np.int8), _draw((16, 8), np.int8)],
        lambda a, b: a.astype(np.int32) @ b.astype(np.int32),
    ),
    "wraps_around": (lambda x: x * 2**28 + 7, [_draw((9,), np.int32)], _wrapped),
    "int8_sum_wraps": (lambda x: (x + x).astype(jnp.int8), [_draw((9,), np.int8)], lambda x: x + x),
    "bits": (lambda x: lax.bitcast_convert_type(x, jnp.uint32) >> 3, [LABELS], lambda x: x.view(np.uint32) >> 3),
    "quantize": (
        lambda x: jnp.round(x * 10).astype(jnp.int8),
        [X],
        lambda x: np.round(x.astype(float) * 10).astype(np.int8),
    ),
    "mask": (lambda x: x > 0, [X16], lambda x: x > 0),
    "sort": (lambda x: jnp.sort(x), [LABELS], np.sort),
}


@pytest.mark.parametrize("name", INT_OPS)
def test_integers_keep_dtype_and_wrap_around(name: str) -> None:
    fn, args, want = INT_OPS[name]
    (got,) = _exported(fn, args)
    expected = want(*args)
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == expected.dtype


def test_mxu_rounding_is_one_bf16_pass_of_each_operand() -> None:
    a, b = _draw((8, 32)), _draw((32, 8), seed=1)
    (got,) = _exported(lambda a, b: a @ b, [a, b], mxu_bf16=True)
    wide = [x.astype(BF16).astype(np.float64) for x in (a, b)]
    np.testing.assert_allclose(got, wide[0] @ wide[1], rtol=1e-12)
    assert np.abs(got - a.astype(float) @ b.astype(float)).max() > 1e-3


@pytest.mark.parametrize("precision", [lax.Precision.HIGHEST, lax.Precision.HIGH])
def test_a_higher_precision_is_not_rounded(precision: lax.Precision) -> None:
    a, b = _draw((8, 32)), _draw((32, 8), seed=1)
    (got,) = _exported(lambda a, b: jnp.dot(a, b, precision=precision), [a, b], mxu_bf16=True)
    np.testing.assert_allclose(got, a.astype(float) @ b.astype(float), rtol=1e-11, atol=1e-13)


def test_native_keeps_the_op_as_written() -> None:
    native = jax.jit(reference_functions(rms_norm).native)(X16, X16[0])
    assert native.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(native), np.asarray(jax.jit(rms_norm)(X16, X16[0])))


def test_without_examples_the_arguments_give_the_dtypes() -> None:
    references = reference_functions(lambda a, b: {"y": a @ b})
    with jax.enable_x64(True):
        got = jax.jit(references.chip)(X, X.T.copy())["y"]
    wide = X.astype(BF16).astype(float)
    np.testing.assert_allclose(np.asarray(got), wide @ wide.T, rtol=1e-12)


UNLIFTABLE: dict[str, tuple[Callable[..., Any], str]] = {
    "bits of a float": (lambda x: lax.bitcast_convert_type(x, jnp.int32), "bitcast_convert_type"),
    "random bits": (lambda x: x + jax.random.normal(jax.random.key(0), x.shape), "random"),
    "nextafter": (lambda x: jnp.nextafter(x, x + 1), "nextafter"),
    "callback": (lambda x: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x), "pure_callback"),
    "debug print": (lambda x: (jax.debug.print("{}", x), x)[1], "debug"),
}


@pytest.mark.parametrize("name", UNLIFTABLE)
def test_what_cannot_be_lifted_says_so(name: str) -> None:
    fn, primitive = UNLIFTABLE[name]
    with pytest.raises(NotLiftable) as caught:
        reference_functions(fn, [X]).exact(X)
    assert primitive in caught.value.primitive


def test_dots_are_found_inside_of_a_scan() -> None:
    args = [_draw((16, 8), seed=s) for s in range(3)]
    assert uses_dots(attention, args)
    assert not uses_dots(lambda x: jax.nn.softmax(x), [X])
    assert "scan" in primitives(attention, args)


def test_another_number_grid_draws_the_ops_inner_roundings_anew() -> None:
    """A weight of exactly 1 rounds to itself natively; the draws show how far rounding it may move the result."""

    def op(x: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.dot(jax.nn.softmax(x).astype(jnp.bfloat16), v, preferred_element_type=jnp.float32)

    x, v = jnp.zeros((1, 2), jnp.float32), jnp.asarray([[3.0], [-1.0]], jnp.bfloat16)
    closed = jax.make_jaxpr(op)(x, v)
    exact = np.asarray(float64.evaluate64(closed, x, v)[0])
    drawn = np.asarray(float64.evaluate64(closed, x, v, grid=1.17)[0])
    assert exact == 1.0 and 0 < abs(drawn - exact).max() <= 4 * 2.0**-9
    assert float64.rounds_inside(closed, float64.lifted_specs((x, v)))


def test_the_last_rounding_is_no_inner_one() -> None:
    x = jnp.ones((4, 8), jnp.bfloat16)
    closed = jax.make_jaxpr(lambda x: jax.nn.softmax(x.astype(jnp.float32)).astype(x.dtype))(x)
    assert not float64.rounds_inside(closed, float64.lifted_specs((x,)))


@pytest.mark.parametrize("nan_as", [0, 77])
def test_a_nan_becomes_the_integer_that_was_asked_for(nan_as: int) -> None:
    x = jnp.array([1.6, jnp.nan, -2.4, jnp.nan], jnp.float32)
    closed = jax.make_jaxpr(lambda x: jnp.round(x).astype(jnp.int8))(x)
    assert np.asarray(float64.evaluate64(closed, x, nan_as=nan_as)[0]).tolist() == [2, nan_as, -2, nan_as]

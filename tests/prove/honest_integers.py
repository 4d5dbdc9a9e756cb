"""Honest kernels of integers: elementwise, products of int8, and values picked by a label."""

from __future__ import annotations

from hypothesis import strategies as st
from making import HEAD, Draw, Example, Op, dtype, sizes

WHOLE = "jax.random.randint({key}, {shape}, LOW, HIGH)"
INTEGER = {  # formulas of int32 a and b
    "polynomial": "a * 3 + b * 2 - 7",
    "bits": "(a & 15) ^ (b | 3)",
    "shift": "(a << 2) - (b >> 1)",
    "choice": "jnp.where(a > b, a - b, b)",
    "extremes": "jnp.maximum(a, b) * jnp.minimum(a, 5)",
}


@st.composite
def integer(draw: Draw) -> Example:
    """Elementwise on int32, a product of int8, or a value picked by a label, which only make_inputs gives validly."""
    form = draw(st.sampled_from(["elementwise", "product", "pick"]))
    bm = 32
    if form == "elementwise":
        first, tested = sizes(draw, m=(bm, 3), n=(128, 3))
        formula = INTEGER[draw(st.sampled_from(sorted(INTEGER)))]
        how = WHOLE.replace("LOW", "-50").replace("HIGH", "50")
        arrays = {name: ("m n", "int32", how) for name in "ab"}
        code = (
            HEAD
            + f"""
def _body(a_ref, b_ref, o_ref):
    a, b = a_ref[...], b_ref[...]
    o_ref[...] = {formula}


def workload(a, b):
    m, n = a.shape
    bm, bn = min({bm}, m), min(128, n)
    block = pl.BlockSpec((bm, bn), lambda i, j: (i, j))
    return pl.pallas_call(
        _body, grid=(pl.cdiv(m, bm), pl.cdiv(n, bn)), in_specs=[block, block], out_specs=block,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.int32),
    )(a, b)
"""
        )
        return Example("integer", Op(first, tested, arrays, f"return {formula}").text(), code)
    if form == "product":
        first, tested = sizes(draw, m=(bm, 3), k=(128, 3), n=(128, 2))
        how = WHOLE.replace("LOW", "-128").replace("HIGH", "128")
        arrays = {"x": ("m k", "int8", how), "w": ("k n", "int8", how)}
        code = (
            HEAD
            + f"""
def _body(x_ref, w_ref, o_ref, *, depth):
    k = pl.program_id(2)

    @pl.when(k == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)

    x = x_ref[...].astype(jnp.int32)
    left = depth - k * x.shape[1]
    x = jnp.where(jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) < left, x, 0).astype(jnp.int8)
    o_ref[...] += jnp.dot(x, w_ref[...], preferred_element_type=jnp.int32)


def workload(x, w):
    (m, depth), n = x.shape, w.shape[1]
    bm, bn, bk = min({bm}, m), min(128, n), min(128, depth)
    return pl.pallas_call(
        lambda *refs: _body(*refs, depth=depth), grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(depth, bk)),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.int32),
    )(x, w)
"""
        )
        reference = "return jnp.dot(x, w, preferred_element_type=jnp.int32)"
        return Example("integer", Op(first, tested, arrays, reference).text(), code)
    first, tested = sizes(draw, m=(bm, 3), n=(100, 3))
    arrays = {"x": ("m n", dtype(draw), ""), "label": ("m", "int32", 'jax.random.randint({key}, {shape}, 0, c["n"])')}
    code = (
        HEAD
        + f"""
def _body(x_ref, label_ref, o_ref):
    x = x_ref[...].astype(jnp.float32)
    own = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) == label_ref[...]
    o_ref[...] = jnp.sum(jnp.where(own, x, 0.0), 1, keepdims=True).astype(o_ref.dtype)


def workload(x, label):
    m, n = x.shape
    bm = min({bm}, m)
    column = pl.BlockSpec((bm, 1), lambda i: (i, 0))
    return pl.pallas_call(
        _body, grid=(pl.cdiv(m, bm),), in_specs=[pl.BlockSpec((bm, n), lambda i: (i, 0)), column], out_specs=column,
        out_shape=jax.ShapeDtypeStruct((m, 1), x.dtype),
    )(x, label.reshape(m, 1))
"""
    )
    reference = "return jnp.take_along_axis(x, label[:, None], axis=1)"
    return Example("integer", Op(first, tested, arrays, reference).text(), code)

"""Honest kernels around the matrix unit: tiled products and attention."""

from __future__ import annotations

from hypothesis import strategies as st
from making import HEAD, UNARY, Draw, Example, Op, dtype, rows_block, sizes


@st.composite
def matmul(draw: Draw) -> Example:
    """Tiled, with an accumulator; k masked where its block does not divide it; an epilogue or none."""
    kind, bm, bn, bk = dtype(draw), rows_block(draw), 128, draw(st.sampled_from([128, 256]))
    epilogue = draw(st.sampled_from(["none", "bias", "residual", *UNARY]))
    first, tested = sizes(draw, m=(bm, 3), k=(bk, 3), n=(bn, 2))
    arrays = {"x": ("m k", kind, ""), "w": ("k n", kind, "")}
    spec, formula = "", UNARY.get(epilogue, "v")
    if epilogue == "bias":
        arrays["b"], formula = ("n", kind, ""), "v + b.astype(jnp.float32)"
        spec = f"pl.BlockSpec((1, min({bn}, n)), lambda i, j, k: (0, j)),"
    elif epilogue == "residual":
        arrays["b"], formula = ("m n", kind, ""), "v + b.astype(jnp.float32)"
        spec = f"pl.BlockSpec((min({bm}, m), min({bn}, n)), lambda i, j, k: (i, j)),"
    given_b = ", b.reshape(1, n)" if epilogue == "bias" else ", b" if epilogue == "residual" else ""
    names = ", ".join(arrays)
    b_ref = "b_ref, " if spec else ""
    load_b = "b = b_ref[...]" if spec else "pass"
    reference = f"v = jnp.dot(x, w, preferred_element_type=jnp.float32)\nreturn ({formula}).astype(x.dtype)"
    code = (
        HEAD
        + f"""
def _within(a, axis, size):
    return jnp.where(jax.lax.broadcasted_iota(jnp.int32, a.shape, axis) < size, a, jnp.zeros_like(a))


def _body(x_ref, w_ref, {b_ref}o_ref, acc_ref, *, depth):
    k, last = pl.program_id(2), pl.num_programs(2) - 1

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    left = depth - k * x_ref.shape[1]
    x, w = _within(x_ref[...], 1, left), _within(w_ref[...], 0, left)
    acc_ref[...] += jnp.dot(x, w, preferred_element_type=jnp.float32)

    @pl.when(k == last)
    def _():
        v = acc_ref[...]
        {load_b}
        o_ref[...] = ({formula}).astype(o_ref.dtype)


def workload({names}):
    (m, depth), n = x.shape, w.shape[1]
    bm, bn, bk = min({bm}, m), min({bn}, n), min({bk}, depth)
    return pl.pallas_call(
        lambda *refs: _body(*refs, depth=depth),
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(depth, bk)),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
            {spec}
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
    )(x, w{given_b})
"""
    )
    return Example("matmul", Op(first, tested, arrays, reference).text(), code)


@st.composite
def attention(draw: Draw) -> Example:
    """Online softmax over blocks of keys, causal or not; the keys need not fill their last block."""
    kind, bq, bk = dtype(draw), draw(st.sampled_from([32, 64])), 128
    causal, scale = draw(st.booleans()), draw(st.sampled_from([0.125, 0.2]))
    first, tested = sizes(draw, s=(bk, 3))
    heads, depth = draw(st.integers(2, 3)), draw(st.sampled_from([64, 128]))
    first, tested = first | {"h": heads, "d": depth}, [small | {"h": 1, "d": depth} for small in tested]
    arrays = {name: ("h s d", kind, "") for name in ("q", "k", "v")}
    seen = "rows >= columns" if causal else "columns >= 0"
    reference = f"""s = jnp.einsum("hqd,hkd->hqk", q, k, preferred_element_type=jnp.float32) * {scale}
rows, columns = (jax.lax.broadcasted_iota(jnp.int32, s.shape, axis) for axis in (1, 2))
p = jax.nn.softmax(jnp.where({seen}, s, -jnp.inf), axis=-1).astype(v.dtype)
return jnp.einsum("hqk,hkd->hqd", p, v, preferred_element_type=jnp.float32).astype(q.dtype)"""
    skip = "j * bk < (i + 1) * bq" if causal else "j >= 0"
    code = (
        HEAD
        + f"""
def _body(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref, *, size):
    i, j = pl.program_id(1), pl.program_id(2)
    bq, bk = q_ref.shape[1], k_ref.shape[1]

    @pl.when(j == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when({skip})
    def _():
        v = v_ref[0]
        s = jax.lax.dot_general(q_ref[0], k_ref[0], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        s = s * {scale}
        rows = i * bq + jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
        columns = j * bk + jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
        s = jnp.where(({seen}) & (columns < size), s, -jnp.inf)
        v = jnp.where(j * bk + jax.lax.broadcasted_iota(jnp.int32, v.shape, 0) < size, v, jnp.zeros_like(v))
        top = jnp.maximum(m_ref[...], jnp.max(s, 1, keepdims=True))
        p, shrink = jnp.exp(s - top), jnp.exp(m_ref[...] - top)
        l_ref[...] = l_ref[...] * shrink + jnp.sum(p, 1, keepdims=True)
        acc_ref[...] = acc_ref[...] * shrink + jnp.dot(p.astype(v.dtype), v, preferred_element_type=jnp.float32)
        m_ref[...] = top

    @pl.when(j == pl.num_programs(2) - 1)
    def _():
        o_ref[0] = (acc_ref[...] / l_ref[...]).astype(o_ref.dtype)


def workload(q, k, v):
    h, s, d = q.shape
    bq, bk = min({bq}, s), min({bk}, s)
    queries = pl.BlockSpec((1, bq, d), lambda h, i, j: (h, i, 0))
    keys = pl.BlockSpec((1, bk, d), lambda h, i, j: (h, j, 0))
    return pl.pallas_call(
        lambda *refs: _body(*refs, size=s), grid=(h, pl.cdiv(s, bq), pl.cdiv(s, bk)),
        in_specs=[queries, keys, keys], out_specs=queries, out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        scratch_shapes=[pltpu.VMEM((bq, w), jnp.float32) for w in (1, 1, d)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
    )(q, k, v)
"""
    )
    return Example("attention", Op(first, tested, arrays, reference).text(), code)

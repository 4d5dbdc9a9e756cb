"""Honest kernels that reduce: along rows, along columns, and rows that are normalised."""

from __future__ import annotations

from hypothesis import strategies as st
from making import HEAD, UNARY, Draw, Example, Op, dtype, indented, rows_block, sizes

REDUCED = {
    "sum": ("jnp.sum({0}, {1}, keepdims=True)", "0.0"),
    "max": ("jnp.max({0}, {1}, keepdims=True)", "-jnp.inf"),
    "min": ("jnp.min({0}, {1}, keepdims=True)", "jnp.inf"),
}
JOINED = {"sum": "{0} + {1}", "max": "jnp.maximum({0}, {1})", "min": "jnp.minimum({0}, {1})"}


@st.composite
def row_reduction(draw: Draw) -> Example:
    """Along the last axis: a whole row in a block, or blocks of columns that meet in an accumulator."""
    kind, bm, bn = dtype(draw), rows_block(draw), draw(st.sampled_from([128, 256]))
    how = draw(st.sampled_from(sorted(REDUCED)))
    # The least of what is never negative is nearly always 0, by which no kernel can be judged.
    before = UNARY[draw(st.sampled_from(["shift", "gelu"] if how == "min" else ["square", "shift", "relu"]))]
    mean = how == "sum" and draw(st.booleans())
    first, tested = sizes(draw, m=(bm, 4), n=(bn, 3))
    reduce, fill = REDUCED[how]
    end = " / x.shape[1]" if mean else ""
    reference = f"v = x.astype(jnp.float32)\nv = {before}\nreturn ({reduce.format('v', 1)}{end}).astype(x.dtype)"
    code = (
        HEAD
        + f"""
def _body(x_ref, o_ref, acc_ref, *, columns):
    j = pl.program_id(1)

    @pl.when(j == 0)
    def _():
        acc_ref[...] = jnp.full_like(acc_ref, {fill})

    v = x_ref[...].astype(jnp.float32)
    v = {before}
    index = j * v.shape[1] + jax.lax.broadcasted_iota(jnp.int32, v.shape, 1)
    part = {reduce.format(f"jnp.where(index < columns, v, {fill})", 1)}
    acc_ref[...] = {JOINED[how].format("acc_ref[...]", "part")}

    @pl.when(j == pl.num_programs(1) - 1)
    def _():
        o_ref[...] = (acc_ref[...]{" / columns" if mean else ""}).astype(o_ref.dtype)


def workload(x):
    m, n = x.shape
    bm, bn = min({bm}, m), min({bn}, n)
    return pl.pallas_call(
        lambda *refs: _body(*refs, columns=n),
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn)),
        in_specs=[pl.BlockSpec((bm, bn), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((bm, 1), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((m, 1), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, 1), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(x)
"""
    )
    return Example("row_reduction", Op(first, tested, {"x": ("m n", kind, "")}, reference).text(), code)


@st.composite
def column_reduction(draw: Draw) -> Example:
    """Along the first axis of a matrix or of a batch of rows, the reduced axis innermost in the grid."""
    kind, bm, bn = dtype(draw), rows_block(draw), 128
    how = draw(st.sampled_from(sorted(REDUCED)))
    first, tested = sizes(draw, m=(bm, 4), n=(bn, 3))
    reduce, fill = REDUCED[how]
    after = UNARY[draw(st.sampled_from(["shift", "tanh", "root", "clip"]))]
    reference = f"v = {reduce.format('x.astype(jnp.float32)', 0)}\nreturn ({after}).astype(x.dtype)"
    code = (
        HEAD
        + f"""
def _body(x_ref, o_ref, acc_ref, *, rows):
    i = pl.program_id(1)

    @pl.when(i == 0)
    def _():
        acc_ref[...] = jnp.full_like(acc_ref, {fill})

    x = x_ref[...].astype(jnp.float32)
    index = i * x.shape[0] + jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    part = {reduce.format(f"jnp.where(index < rows, x, {fill})", 0)}
    acc_ref[...] = {JOINED[how].format("acc_ref[...]", "part")}

    @pl.when(i == pl.num_programs(1) - 1)
    def _():
        v = acc_ref[...]
        o_ref[...] = ({after}).astype(o_ref.dtype)


def workload(x):
    m, n = x.shape
    bm, bn = min({bm}, m), min({bn}, n)
    return pl.pallas_call(
        lambda *refs: _body(*refs, rows=m),
        grid=(pl.cdiv(n, bn), pl.cdiv(m, bm)),
        in_specs=[pl.BlockSpec((bm, bn), lambda j, i: (i, j))],
        out_specs=pl.BlockSpec((1, bn), lambda j, i: (0, j)),
        out_shape=jax.ShapeDtypeStruct((1, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((1, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(x)
"""
    )
    return Example("column_reduction", Op(first, tested, {"x": ("m n", kind, "")}, reference).text(), code)


ROWS = {
    "softmax": "v = jnp.exp(v - jnp.max(v, 1, keepdims=True))\nv = v / jnp.sum(v, 1, keepdims=True)",
    "log_softmax": "v = v - jnp.max(v, 1, keepdims=True)\nv = v - jnp.log(jnp.sum(jnp.exp(v), 1, keepdims=True))",
    "rms": "v = v * jax.lax.rsqrt(jnp.mean(v * v, 1, keepdims=True) + 1e-5)",
    "layer": "v = v - jnp.mean(v, 1, keepdims=True)\nv = v * jax.lax.rsqrt(jnp.mean(v * v, 1, keepdims=True) + 1e-5)",
    "l2": "v = v / jnp.sqrt(jnp.sum(v * v, 1, keepdims=True) + 1e-6)",
    "largest": "v = v / (jnp.max(jnp.abs(v), 1, keepdims=True) + 1e-3)",
}


@st.composite
def norm(draw: Draw) -> Example:
    """A row at a time, then a scale per column or none; rows of any length, blocks of rows that need not divide."""
    kind, bm = dtype(draw), rows_block(draw)
    formula = ROWS[draw(st.sampled_from(sorted(ROWS)))]
    scaled = draw(st.booleans())
    first, tested = sizes(draw, m=(bm, 4), n=(100, 4))
    arrays = {"x": ("m n", kind, "")} | ({"g": ("n", kind, "")} if scaled else {})
    end = "v * g.astype(jnp.float32)" if scaled else "v"
    reference = f"v = x.astype(jnp.float32)\n{formula}\nreturn ({end}).astype(x.dtype)"
    code = (
        HEAD
        + f"""
def _body(x_ref, {"g_ref, " if scaled else ""}o_ref):
    v = x_ref[...].astype(jnp.float32)
{indented(formula)}
    {"g = g_ref[...]" if scaled else "pass"}
    o_ref[...] = ({end}).astype(o_ref.dtype)


def workload({", ".join(arrays)}):
    m, n = x.shape
    bm = min({bm}, m)
    rows = pl.BlockSpec((bm, n), lambda i: (i, 0))
    return pl.pallas_call(
        _body, grid=(pl.cdiv(m, bm),),
        in_specs=[rows, {"pl.BlockSpec((1, n), lambda i: (0, 0))" if scaled else ""}], out_specs=rows,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x{", g.reshape(1, n)" if scaled else ""})
"""
    )
    return Example("norm", Op(first, tested, arrays, reference).text(), code)

"""Honest kernels of several outputs, in place, elementwise, and with a state that goes from block to block."""

from __future__ import annotations

from hypothesis import strategies as st
from making import HEAD, UNARY, Draw, Example, Op, dtype, indented, rows_block, sizes

OUTPUTS = {  # formulas of a float32 row block v: ((name, expression, whether it is a whole row), ...)
    "moments": (("a", "jnp.mean(v, 1, keepdims=True)", 0), ("b", "jnp.mean(v * v, 1, keepdims=True)", 0)),
    "centred": (("a", "v - jnp.mean(v, 1, keepdims=True)", 1), ("b", "jnp.mean(v, 1, keepdims=True)", 0)),
    "bounds": (("a", "jnp.max(v, 1, keepdims=True)", 0), ("b", "jnp.min(v, 1, keepdims=True)", 0)),
    "pair": (("a", "v * 2.0 + 1.0", 1), ("b", "jnp.maximum(v, 0.0)", 1)),
    "three": (("a", "jnp.abs(v)", 1), ("b", "v * v", 1), ("c", "jnp.sum(v, 1, keepdims=True)", 0)),
}


@st.composite
def several(draw: Draw) -> Example:
    """Two or three outputs of different shapes and dtypes, in a tuple or a dict."""
    kind, bm = dtype(draw), rows_block(draw)
    parts = OUTPUTS[draw(st.sampled_from(sorted(OUTPUTS)))]
    keyed = draw(st.booleans())
    first, tested = sizes(draw, m=(bm, 4), n=(120, 3))
    kinds = [kind if whole else "float32" for _, _, whole in parts]
    casts = [f"({e}).astype(jnp.{k})" for (_, e, _), k in zip(parts, kinds, strict=True)]
    names = [name for name, _, _ in parts]
    made = (
        "{" + ", ".join(f"{n!r}: {c}" for n, c in zip(names, casts, strict=True)) + "}" if keyed else ", ".join(casts)
    )
    stores = "\n    ".join(f"{n}_ref[...] = {c}" for n, c in zip(names, casts, strict=True))
    specs = ", ".join("wide" if whole else "thin" for _, _, whole in parts)
    shapes = ", ".join(
        f"jax.ShapeDtypeStruct((m, {'n' if w else '1'}), jnp.{k})" for (_, _, w), k in zip(parts, kinds, strict=True)
    )
    end = f"dict(zip({names!r}, made))" if keyed else "tuple(made)"
    code = (
        HEAD
        + f"""
def _body(x_ref, {", ".join(f"{n}_ref" for n in names)}):
    v = x_ref[...].astype(jnp.float32)
    {stores}


def workload(x):
    m, n = x.shape
    bm = min({bm}, m)
    wide, thin = pl.BlockSpec((bm, n), lambda i: (i, 0)), pl.BlockSpec((bm, 1), lambda i: (i, 0))
    made = pl.pallas_call(
        _body, grid=(pl.cdiv(m, bm),), in_specs=[wide], out_specs=[{specs}], out_shape=[{shapes}],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x)
    return {end}
"""
    )
    reference = f"v = x.astype(jnp.float32)\nreturn {made}"
    return Example("several", Op(first, tested, {"x": ("m n", kind, "")}, reference).text(), code)


@st.composite
def aliased(draw: Draw) -> Example:
    """Updates in place: inputs that give their memory to the outputs."""
    kind, bm, bn = dtype(draw), rows_block(draw), draw(st.sampled_from([128, 256]))
    rate, decay = draw(st.sampled_from([0.1, 0.01])), draw(st.sampled_from([0.9, 0.5]))
    momentum = draw(st.booleans())
    first, tested = sizes(draw, m=(bm, 3), n=(bn, 2))
    names = ["p", "g", "v"] if momentum else ["p", "g"]
    arrays = {name: ("m n", kind, "") for name in names}
    update = f"v = {decay} * v + g" if momentum else f"v = {decay} * p + g"
    casts = "\n".join(f"{n} = {n}.astype(jnp.float32)" for n in names)
    outputs = ["p", "v"] if momentum else ["p"]
    reference = f"kind = p.dtype\n{casts}\n{update}\np = p - {rate} * v\nreturn " + ", ".join(
        f"{n}.astype(kind)" for n in outputs
    )
    loads = "\n    ".join(f"{n} = {n}_ref[...].astype(jnp.float32)" for n in names)
    stores = "\n    ".join(f"{n}_out[...] = {n}.astype({n}_out.dtype)" for n in outputs)
    aliases = {names.index(n): i for i, n in enumerate(outputs)}
    one = "" if momentum else "[0]"
    code = (
        HEAD
        + f"""
def _body({", ".join(f"{n}_ref" for n in names)}, {", ".join(f"{n}_out" for n in outputs)}):
    {loads}
    {update}
    p = p - {rate} * v
    {stores}


def workload({", ".join(names)}):
    m, n = p.shape
    bm, bn = min({bm}, m), min({bn}, n)
    block = pl.BlockSpec((bm, bn), lambda i, j: (i, j))
    made = pl.pallas_call(
        _body, grid=(pl.cdiv(m, bm), pl.cdiv(n, bn)),
        in_specs=[block] * {len(names)}, out_specs=[block] * {len(outputs)},
        out_shape=[jax.ShapeDtypeStruct((m, n), p.dtype)] * {len(outputs)}, input_output_aliases={aliases},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )({", ".join(names)})
    return tuple(made){one}
"""
    )
    return Example("aliased", Op(first, tested, arrays, reference).text(), code)


@st.composite
def elementwise(draw: Draw) -> Example:
    """A chain of formulas on blocks of both axes, with a row that is broadcast or a second array."""
    kind, bm, bn = dtype(draw), rows_block(draw), draw(st.sampled_from([128, 256]))
    chain = [
        UNARY[name] for name in draw(st.lists(st.sampled_from(sorted(UNARY)), min_size=1, max_size=2, unique=True))
    ]
    row = draw(st.booleans())
    joined = draw(st.sampled_from(["v + b", "v * b", "v - b"]))
    first, tested = sizes(draw, m=(bm, 3), n=(bn, 3))
    arrays = {"x": ("m n", kind, ""), "b": ("n" if row else "m n", kind, "")}
    lines = "\n".join([f"v = {joined}", *(f"v = {formula}" for formula in chain)])
    reference = f"v, b = x.astype(jnp.float32), b.astype(jnp.float32)\n{lines}\nreturn v.astype(x.dtype)"
    code = (
        HEAD
        + f"""
def _body(x_ref, b_ref, o_ref):
    v, b = x_ref[...].astype(jnp.float32), b_ref[...].astype(jnp.float32)
{indented(lines)}
    o_ref[...] = v.astype(o_ref.dtype)


def workload(x, b):
    m, n = x.shape
    bm, bn = min({bm}, m), min({bn}, n)
    block = pl.BlockSpec((bm, bn), lambda i, j: (i, j))
    return pl.pallas_call(
        _body, grid=(pl.cdiv(m, bm), pl.cdiv(n, bn)),
        in_specs=[block, {"pl.BlockSpec((1, bn), lambda i, j: (0, j))" if row else "block"}], out_specs=block,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
    )(x, {"b.reshape(1, n)" if row else "b"})
"""
    )
    return Example("elementwise", Op(first, tested, arrays, reference).text(), code)


@st.composite
def recurrence(draw: Draw) -> Example:
    """A loop over the rows of a block, its state carried in scratch memory from one block of rows to the next."""
    kind, bm = dtype(draw), draw(st.sampled_from([16, 32]))
    keep = draw(st.sampled_from([0.5, 0.25]))
    how = draw(st.sampled_from([f"h * {keep} + x", f"jnp.maximum(h * {keep}, x)", f"h * {keep} + x * x"]))
    first, tested = sizes(draw, m=(bm, 4), n=(128, 2))
    reference = f"""def step(h, x):
    h = {how}
    return h, h
return jax.lax.scan(step, jnp.zeros((x.shape[1],), jnp.float32), x.astype(jnp.float32))[1].astype(x.dtype)"""
    code = (
        HEAD
        + f"""
def _body(x_ref, o_ref, h_ref, wide_ref):
    @pl.when(pl.program_id(1) == 0)
    def _():
        h_ref[...] = jnp.zeros_like(h_ref)

    wide_ref[...] = x_ref[...].astype(jnp.float32)

    def step(i, h):
        x = wide_ref[pl.ds(i, 1), :]
        h = {how}
        wide_ref[pl.ds(i, 1), :] = h
        return h

    h_ref[...] = jax.lax.fori_loop(0, x_ref.shape[0], step, h_ref[...])
    o_ref[...] = wide_ref[...].astype(o_ref.dtype)


def workload(x):
    m, n = x.shape
    bm, bn = min({bm}, m), min(128, n)
    block = pl.BlockSpec((bm, bn), lambda j, i: (i, j))
    return pl.pallas_call(
        _body, grid=(pl.cdiv(n, bn), pl.cdiv(m, bm)), in_specs=[block], out_specs=block,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((1, bn), jnp.float32), pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(x)
"""
    )
    return Example("recurrence", Op(first, tested, {"x": ("m n", kind, "")}, reference).text(), code)

"""Random small workloads, each with a Pallas kernel that is right by construction: a rejection is the judge's fault.

Sizes, blocks, dtypes, epilogues and formulas are drawn by hypothesis. No size need be a multiple of its block: the
kernels mask what reaches over the edge wherever it could matter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]
OP = '''import jax
import jax.numpy as jnp

CONFIG = {config}
TEST_SHAPES = {shapes}


def _inputs(seed):
    keys, c = jax.random.split(jax.random.key(seed), {count}), CONFIG
    return ({inputs},)


def create_inputs():
    return _inputs(0)

{make_inputs}
def workload({names}):
{reference}
'''
MAKE_INPUTS = '''
def make_inputs(seed, shape):
    return _inputs(seed)

'''
HEAD = '''import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

'''
F32 = "jnp.float32"
DTYPES = {"float32": F32, "bfloat16": "jnp.bfloat16"}
UNARY = {  # formulas in float32 of a value v, from what is finite to what is finite
    "relu": "jnp.maximum(v, 0.0)",
    "tanh": "jnp.tanh(v)",
    "sigmoid": "1.0 / (1.0 + jnp.exp(-v))",
    "gelu": "0.5 * v * (1.0 + jnp.tanh(0.7978845608 * (v + 0.044715 * v * v * v)))",
    "square": "v * v",
    "softplus": "jnp.maximum(v, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(v)))",
    "clip": "jnp.minimum(jnp.maximum(v, -1.5), 2.5)",
    "shift": "v * 0.75 + 0.5",
    "root": "jnp.sqrt(jnp.abs(v) + 1.0)",
}


@dataclass(frozen=True)
class Example:
    """A workload's file and a candidate that computes it."""

    kind: str
    op: str
    code: str


@dataclass
class Op:
    """What an op's file is made of: `sizes` are CONFIG's keys, `tested` the sets of them in
    TEST_SHAPES (none: CONFIG's own), `arrays` name -> (dimensions, dtype, how drawn)."""

    sizes: dict[str, int]
    tested: list[dict[str, int]]
    arrays: dict[str, tuple[str, str, str]]
    reference: str

    def text(self) -> str:
        made = [self._array(i, *array) for i, array in enumerate(self.arrays.values())]
        whole = any(how for _, _, how in self.arrays.values())
        return OP.format(
            config=self.sizes, shapes=self.tested or [self.sizes], count=len(made), inputs=", ".join(made),
            names=", ".join(self.arrays), reference=indented(self.reference), make_inputs=MAKE_INPUTS if whole else "",
        )  # fmt: skip

    @staticmethod
    def _array(number: int, dims: str, dtype: str, how: str) -> str:
        shape = "(" + ", ".join(d if d.isdigit() else f"c[{d!r}]" for d in dims.split()) + ",)"
        drawn = how.format(key=f"keys[{number}]", shape=shape) or f"jax.random.normal(keys[{number}], {shape})"
        return f"{drawn}.astype(jnp.{dtype})"


def sizes(draw: Draw, **blocks: tuple[int, int]) -> tuple[dict[str, int], list[dict[str, int]]]:
    """Sizes, and in one of three draws others for TEST_SHAPES. Of each (block, most): 2 to `most` blocks, the last one
    whole or not; the others 1 to 2, so that the judge has to find out itself where the grid takes several steps."""
    first, other = {}, {}
    for name, (block, most) in blocks.items():
        steps = draw(st.integers(2, most))
        first[name] = steps * block - draw(st.sampled_from([0, 0, 1, 3, block // 2]))
        other[name] = draw(st.integers(1, 2)) * block - draw(st.sampled_from([0, 1, 5]))
    return first, [other] if draw(st.integers(0, 2)) == 0 else []


def dtype(draw: Draw) -> str:
    return str(draw(st.sampled_from(["float32", "float32", "bfloat16"])))


def rows_block(draw: Draw) -> int:
    return int(draw(st.sampled_from([16, 32])))


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines())


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
    code = HEAD + f'''
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
'''
    return Example("matmul", Op(first, tested, arrays, reference).text(), code)


REDUCED = {"sum": ("jnp.sum({0}, {1}, keepdims=True)", "0.0"), "max": ("jnp.max({0}, {1}, keepdims=True)", "-jnp.inf"), "min": ("jnp.min({0}, {1}, keepdims=True)", "jnp.inf")}  # fmt: skip
JOINED = {"sum": "{0} + {1}", "max": "jnp.maximum({0}, {1})", "min": "jnp.minimum({0}, {1})"}


@st.composite
def row_reduction(draw: Draw) -> Example:
    """Along the last axis: a whole row in a block, or blocks of columns that meet in an accumulator."""
    kind, bm, bn = dtype(draw), rows_block(draw), draw(st.sampled_from([128, 256]))
    how, before = draw(st.sampled_from(sorted(REDUCED))), UNARY[draw(st.sampled_from(["square", "shift", "relu"]))]
    mean = how == "sum" and draw(st.booleans())
    first, tested = sizes(draw, m=(bm, 4), n=(bn, 3))
    reduce, fill = REDUCED[how]
    end = " / x.shape[1]" if mean else ""
    reference = f"v = x.astype(jnp.float32)\nv = {before}\nreturn ({reduce.format('v', 1)}{end}).astype(x.dtype)"
    code = HEAD + f'''
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
'''
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
    code = HEAD + f'''
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
'''
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
    code = HEAD + f'''
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
'''
    return Example("norm", Op(first, tested, arrays, reference).text(), code)


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
    reference = f'''s = jnp.einsum("hqd,hkd->hqk", q, k, preferred_element_type=jnp.float32) * {scale}
rows, columns = (jax.lax.broadcasted_iota(jnp.int32, s.shape, axis) for axis in (1, 2))
p = jax.nn.softmax(jnp.where({seen}, s, -jnp.inf), axis=-1).astype(v.dtype)
return jnp.einsum("hqk,hkd->hqd", p, v, preferred_element_type=jnp.float32).astype(q.dtype)'''
    skip = "j * bk < (i + 1) * bq" if causal else "j >= 0"
    code = HEAD + f'''
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
'''
    return Example("attention", Op(first, tested, arrays, reference).text(), code)


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
        code = HEAD + f'''
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
'''
        return Example("integer", Op(first, tested, arrays, f"return {formula}").text(), code)
    if form == "product":
        first, tested = sizes(draw, m=(bm, 3), k=(128, 3), n=(128, 2))
        how = WHOLE.replace("LOW", "-128").replace("HIGH", "128")
        arrays = {"x": ("m k", "int8", how), "w": ("k n", "int8", how)}
        code = HEAD + f'''
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
'''
        reference = "return jnp.dot(x, w, preferred_element_type=jnp.int32)"
        return Example("integer", Op(first, tested, arrays, reference).text(), code)
    first, tested = sizes(draw, m=(bm, 3), n=(100, 3))
    arrays = {"x": ("m n", dtype(draw), ""), "label": ("m", "int32", 'jax.random.randint({key}, {shape}, 0, c["n"])')}
    code = HEAD + f'''
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
'''
    reference = "return jnp.take_along_axis(x, label[:, None], axis=1)"
    return Example("integer", Op(first, tested, arrays, reference).text(), code)


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
    made = "{" + ", ".join(f"{n!r}: {c}" for n, c in zip(names, casts, strict=True)) + "}" if keyed else ", ".join(casts)
    stores = "\n    ".join(f"{n}_ref[...] = {c}" for n, c in zip(names, casts, strict=True))
    specs = ", ".join("wide" if whole else "thin" for _, _, whole in parts)
    shapes = ", ".join(f"jax.ShapeDtypeStruct((m, {'n' if w else '1'}), jnp.{k})" for (_, _, w), k in zip(parts, kinds, strict=True))
    end = f"dict(zip({names!r}, made))" if keyed else "tuple(made)"
    code = HEAD + f'''
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
'''
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
    reference = f"kind = p.dtype\n{casts}\n{update}\np = p - {rate} * v\nreturn " + ", ".join(f"{n}.astype(kind)" for n in outputs)
    loads = "\n    ".join(f"{n} = {n}_ref[...].astype(jnp.float32)" for n in names)
    stores = "\n    ".join(f"{n}_out[...] = {n}.astype({n}_out.dtype)" for n in outputs)
    aliases = {names.index(n): i for i, n in enumerate(outputs)}
    one = "" if momentum else "[0]"
    code = HEAD + f'''
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
        _body, grid=(pl.cdiv(m, bm), pl.cdiv(n, bn)), in_specs=[block] * {len(names)}, out_specs=[block] * {len(outputs)},
        out_shape=[jax.ShapeDtypeStruct((m, n), p.dtype)] * {len(outputs)}, input_output_aliases={aliases},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )({", ".join(names)})
    return tuple(made){one}
'''
    return Example("aliased", Op(first, tested, arrays, reference).text(), code)


@st.composite
def elementwise(draw: Draw) -> Example:
    """A chain of formulas on blocks of both axes, with a row that is broadcast or a second array."""
    kind, bm, bn = dtype(draw), rows_block(draw), draw(st.sampled_from([128, 256]))
    chain = [UNARY[name] for name in draw(st.lists(st.sampled_from(sorted(UNARY)), min_size=1, max_size=2, unique=True))]
    row = draw(st.booleans())
    joined = draw(st.sampled_from(["v + b", "v * b", "v - b"]))
    first, tested = sizes(draw, m=(bm, 3), n=(bn, 3))
    arrays = {"x": ("m n", kind, ""), "b": ("n" if row else "m n", kind, "")}
    lines = "\n".join([f"v = {joined}", *(f"v = {formula}" for formula in chain)])
    reference = f"v, b = x.astype(jnp.float32), b.astype(jnp.float32)\n{lines}\nreturn v.astype(x.dtype)"
    code = HEAD + f'''
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
'''
    return Example("elementwise", Op(first, tested, arrays, reference).text(), code)


@st.composite
def recurrence(draw: Draw) -> Example:
    """A loop over the rows of a block, its state carried in scratch memory from one block of rows to the next."""
    kind, bm = dtype(draw), draw(st.sampled_from([16, 32]))
    keep = draw(st.sampled_from([0.5, 0.25]))
    how = draw(st.sampled_from([f"h * {keep} + x", f"jnp.maximum(h * {keep}, x)", f"h * {keep} + x * x"]))
    first, tested = sizes(draw, m=(bm, 4), n=(128, 2))
    reference = f'''def step(h, x):
    h = {how}
    return h, h
return jax.lax.scan(step, jnp.zeros((x.shape[1],), jnp.float32), x.astype(jnp.float32))[1].astype(x.dtype)'''
    code = HEAD + f'''
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
'''
    return Example("recurrence", Op(first, tested, {"x": ("m n", kind, "")}, reference).text(), code)


KINDS = (
    matmul, row_reduction, column_reduction, norm, attention, integer, several, aliased, elementwise, recurrence,
)  # fmt: skip


def any_kind() -> st.SearchStrategy[Example]:
    return st.one_of(*(kind() for kind in KINDS))


@functools.lru_cache(maxsize=None)
def examples(count: int) -> tuple[Example, ...]:
    """`count` different examples, as many of each kind as of any other, the same at every call."""
    each = -(-count // len(KINDS))
    found = [_drawn(kind, each) for kind in KINDS]
    return tuple(group[i] for i in range(each) for group in found if i < len(group))[:count]


def _drawn(kind: Callable[[], st.SearchStrategy[Example]], count: int) -> list[Example]:
    """The first `count` different examples of a kind that hypothesis draws without a random seed."""
    found: dict[str, Example] = {}

    @settings(
        max_examples=4 * count, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(kind())
    def collect(example: Example) -> None:
        found.setdefault(example.op + example.code, example)

    collect()
    return list(found.values())[:count]

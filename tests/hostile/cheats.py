"""Cheats against other ops than softmax: an honest kernel of each op, and edits that make a cheat of it.

A cheat is the honest source with some text replaced, so that a rejection says something: what is left is right.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

"""
OP_HEAD = """
import jax
import jax.numpy as jnp

"""


@dataclass(frozen=True)
class Op:
    """A workload file and an honest kernel for it."""

    workload: str
    honest: str


@dataclass(frozen=True)
class Cheat:
    """`op` names an entry of OPS; `edits` are (old, new) in its honest kernel; `verdicts` are the right answers."""

    op: str
    name: str
    edits: tuple[tuple[str, str], ...]
    verdicts: tuple[str, ...] = ("incorrect",)

    @property
    def source(self) -> str:
        text = OPS[self.op].honest
        for old, new in self.edits:
            assert old in text, f"{self.op}/{self.name}: {old!r} is not in the honest kernel"
            text = text.replace(old, new)
        return text


MATMUL = Op(
    OP_HEAD
    + """
CONFIG = {"name": "matmul", "m": 1024, "k": 1024, "n": 1024}
TEST_SHAPES = [{"m": 128, "k": 256, "n": 256}, {"m": 256, "k": 128, "n": 128}]


def create_inputs():
    keys = jax.random.split(jax.random.key(0))
    m, k, n = CONFIG["m"], CONFIG["k"], CONFIG["n"]
    return jax.random.normal(keys[0], (m, k)), jax.random.normal(keys[1], (k, n))


def workload(x, y):
    return x @ y
""",
    HEAD
    + """
def _body(x_ref, y_ref, o_ref, acc_ref):
    k, last = pl.program_id(2), pl.num_programs(2) - 1

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

    @pl.when(k == last)
    def _():
        o_ref[...] = acc_ref[...]


def workload(x, y):
    (m, k), n = x.shape, y.shape[1]
    bm, bk, bn = min(m, 256), min(k, 256), min(n, 256)
    return pl.pallas_call(
        _body, grid=(m // bm, n // bn, k // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32), scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")))(x, y)
""",
)
ATTENTION = Op(
    OP_HEAD
    + """
CONFIG = {"name": "attention", "heads": 4, "seq": 1024, "depth": 128}
TEST_SHAPES = [{"heads": 2, "seq": 256}, {"heads": 1, "seq": 384}]


def create_inputs():
    shape = (CONFIG["heads"], CONFIG["seq"], CONFIG["depth"])
    return tuple(jax.random.normal(k, shape) for k in jax.random.split(jax.random.key(0), 3))


def workload(q, k, v):
    s = jnp.einsum("hqd,hkd->hqk", q, k) * q.shape[-1] ** -0.5
    rows = jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
    columns = jax.lax.broadcasted_iota(jnp.int32, s.shape, 2)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(jnp.where(columns <= rows, s, -1e30), -1), v)
""",
    HEAD
    + """
B = 128


def _body(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
    i, j = pl.program_id(1), pl.program_id(2)

    @pl.when(j == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(j <= i)
    def _():
        s = jax.lax.dot_general(q_ref[0], k_ref[0], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        s = s * q_ref.shape[-1] ** -0.5
        rows = i * B + jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
        columns = j * B + jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
        s = jnp.where(columns <= rows, s, -1e30)
        m = jnp.maximum(m_ref[...], jnp.max(s, -1, keepdims=True))
        p = jnp.exp(s - m)
        alpha = jnp.exp(m_ref[...] - m)
        l_ref[...] = alpha * l_ref[...] + jnp.sum(p, -1, keepdims=True)
        acc_ref[...] = alpha * acc_ref[...] + jnp.dot(p, v_ref[0], preferred_element_type=jnp.float32)
        m_ref[...] = m

    @pl.when(j == pl.num_programs(2) - 1)
    def _():
        o_ref[0] = acc_ref[...] / l_ref[...]


def workload(q, k, v):
    h, s, d = q.shape
    rows = pl.BlockSpec((1, B, d), lambda h, i, j: (h, i, 0))
    columns = pl.BlockSpec((1, B, d), lambda h, i, j: (h, j, 0))
    return pl.pallas_call(
        _body, grid=(h, s // B, s // B), in_specs=[rows, columns, columns], out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        scratch_shapes=[pltpu.VMEM((B, n), jnp.float32) for n in (1, 1, d)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")))(q, k, v)
""",
)
TOTAL = Op(
    OP_HEAD
    + """
CONFIG = {"name": "sum_of_squares", "rows": 4096, "cols": 1024}
TEST_SHAPES = [{"rows": 256, "cols": 256}, {"rows": 64, "cols": 384}]


def create_inputs():
    return (jax.random.normal(jax.random.key(0), (CONFIG["rows"], CONFIG["cols"])),)


def workload(x):
    return jnp.sum(x * x)
""",
    HEAD
    + """
def _body(x_ref, o_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)

    x = x_ref[...]
    o_ref[...] += jnp.sum(x * x).reshape(1, 1)


def workload(x):
    r, c = x.shape
    b = min(r, 512)
    total = pl.pallas_call(
        _body, grid=(r // b,), in_specs=[pl.BlockSpec((b, c), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((1, 1), lambda i: (0, 0)), out_shape=jax.ShapeDtypeStruct((1, 1), jnp.float32))(x)
    return total[0, 0]
""",
)
INTEGERS = Op(
    OP_HEAD
    + """
CONFIG = {"name": "mixing", "rows": 2048, "cols": 1024}
TEST_SHAPES = [{"rows": 64, "cols": 256}, {"rows": 32, "cols": 128}]


def create_inputs():
    shape = (CONFIG["rows"], CONFIG["cols"])
    return (jax.random.randint(jax.random.key(0), shape, -(2**31), 2**31 - 1, jnp.int32),)


def workload(x):
    return x * 3 + (x >> 2)
""",
    HEAD
    + """
def _body(x_ref, o_ref):
    x = x_ref[...]
    o_ref[...] = x * 3 + (x >> 2)


def workload(x):
    r, c = x.shape
    b = min(r, 256)
    spec = pl.BlockSpec((b, c), lambda i: (i, 0))
    return pl.pallas_call(_body, grid=(r // b,), in_specs=[spec], out_specs=spec,
                          out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
""",
)
NORM = Op(
    OP_HEAD
    + """
CONFIG = {"name": "layer_norm_and_mean", "rows": 4096, "cols": 1024}
TEST_SHAPES = [{"rows": 64, "cols": 256}, {"rows": 32, "cols": 128}]


def create_inputs():
    keys = jax.random.split(jax.random.key(0))
    return jax.random.normal(keys[0], (CONFIG["rows"], CONFIG["cols"])), jax.random.normal(keys[1], (CONFIG["cols"],))


def workload(x, gain):
    mean = jnp.mean(x, -1, keepdims=True)
    centred = x - mean
    return centred * jax.lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True) + 1e-5) * gain, mean
""",
    HEAD
    + """
def _body(x_ref, g_ref, y_ref, mean_ref):
    x = x_ref[...]
    mean = jnp.mean(x, -1, keepdims=True)
    centred = x - mean
    var = jnp.mean(centred * centred, -1, keepdims=True)
    y_ref[...] = centred * jax.lax.rsqrt(var + 1e-5) * g_ref[...]
    mean_ref[...] = mean


def workload(x, gain):
    r, c = x.shape
    b = min(r, 128)
    rows = pl.BlockSpec((b, c), lambda i: (i, 0))
    return pl.pallas_call(
        _body, grid=(r // b,), in_specs=[rows, pl.BlockSpec((1, c), lambda i: (0, 0))],
        out_specs=[rows, pl.BlockSpec((b, 1), lambda i: (i, 0))],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((r, 1), x.dtype)])(x, gain[None])
""",
)
UPDATE = Op(
    OP_HEAD
    + """
CONFIG = {"name": "update", "rows": 4096, "cols": 1024}
TEST_SHAPES = [{"rows": 64, "cols": 256}, {"rows": 32, "cols": 128}]


def create_inputs():
    keys = jax.random.split(jax.random.key(0))
    return tuple(jax.random.normal(k, (CONFIG["rows"], CONFIG["cols"])) for k in keys)


def workload(x, step):
    return x - 1e-3 * step
""",
    HEAD
    + """
def _body(x_ref, step_ref, o_ref):
    o_ref[...] = x_ref[...] - 1e-3 * step_ref[...]


def _kernel(x, step):
    r, c = x.shape
    b = min(r, 256)
    spec = pl.BlockSpec((b, c), lambda i: (i, 0))
    return pl.pallas_call(_body, grid=(r // b,), in_specs=[spec, spec], out_specs=spec, input_output_aliases={0: 0},
                          out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, step)


def workload(x, step):
    return _kernel(x, step)
""",
)
CHOICE = Op(
    OP_HEAD
    + """
CONFIG = {"name": "row_argmax", "rows": 4096, "cols": 1024}
TEST_SHAPES = [{"rows": 64, "cols": 256}, {"rows": 32, "cols": 128}]


def create_inputs():
    return (jax.random.normal(jax.random.key(0), (CONFIG["rows"], CONFIG["cols"])),)


def workload(x):
    return jnp.argmax(x, -1, keepdims=True).astype(jnp.int32)
""",
    HEAD
    + """
def _body(x_ref, o_ref):
    x = x_ref[...]
    columns = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
    best = jnp.max(jnp.where(jnp.isnan(x), -jnp.inf, x), -1, keepdims=True)
    first = jnp.where(x == best, columns, x.shape[1])
    nans = jnp.where(jnp.isnan(x), columns, x.shape[1])
    at, nan_at = jnp.min(first, -1, keepdims=True), jnp.min(nans, -1, keepdims=True)
    o_ref[...] = jnp.where(nan_at < x.shape[1], nan_at, at)


def workload(x):
    r, c = x.shape
    b = min(r, 256)
    return pl.pallas_call(_body, grid=(r // b,), in_specs=[pl.BlockSpec((b, c), lambda i: (i, 0))],
                          out_specs=pl.BlockSpec((b, 1), lambda i: (i, 0)),
                          out_shape=jax.ShapeDtypeStruct((r, 1), jnp.int32))(x)
""",
)
OPS = {
    "matmul": MATMUL, "attention": ATTENTION, "total": TOTAL, "integers": INTEGERS, "norm": NORM, "update": UPDATE,
    "choice": CHOICE,
}  # fmt: skip

OUTSIDE = "work_outside_kernel"
ADDED = "acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)"
CHEATS = (
    Cheat("matmul", "never_accumulates", (("acc_ref[...] += jnp.dot", "acc_ref[...] = jnp.dot"),)),
    Cheat(
        "matmul",
        "drops_the_last_step",
        ((f"    {ADDED}", f"    @pl.when((k == 0) | (k < last))\n    def _():\n        {ADDED}"),),
    ),
    Cheat("matmul", "no_first_zero", (("acc_ref[...] = jnp.zeros_like(acc_ref)", "pass"),)),
    Cheat(
        "matmul",
        "zeros_beyond_the_first_columns",
        (("o_ref[...] = acc_ref[...]", "o_ref[...] = jnp.where(pl.program_id(1) < 1, acc_ref[...], 0.0)"),),
    ),
    Cheat("matmul", "one_block_for_all_rows", (("lambda i, j, k: (i, k)", "lambda i, j, k: (0, k)"),)),
    Cheat(
        "matmul",
        "steps_that_race",
        (('"parallel", "parallel", "arbitrary"', '"parallel", "parallel", "parallel"'),),
        ("race", "incorrect"),
    ),
    Cheat(
        "matmul",
        "honest_when_small",
        (("o_ref[...] = acc_ref[...]", "o_ref[...] = acc_ref[...] if x_ref.shape[0] < 200 else acc_ref[...] * 0"),),
    ),
    Cheat(
        "matmul",
        "products_in_bfloat16",
        ((f"    {ADDED}", f"    {ADDED}.astype(jnp.bfloat16).astype(jnp.float32)"),),
    ),
    Cheat(
        "matmul",
        "sum_in_bfloat16",
        (
            ("pltpu.VMEM((bm, bn), jnp.float32)", "pltpu.VMEM((bm, bn), jnp.bfloat16)"),
            (
                f"    {ADDED}",
                f"    {ADDED}.astype(jnp.bfloat16)",
            ),
            ("o_ref[...] = acc_ref[...]", "o_ref[...] = acc_ref[...].astype(jnp.float32)"),
        ),
    ),
    Cheat(
        "matmul",
        "product_outside",
        (("return pl.pallas_call", "z = x @ y\n    return 0 * z + pl.pallas_call"),),
        (OUTSIDE,),
    ),
    Cheat(
        "matmul",
        "product_of_rows_outside",
        (
            (
                "return pl.pallas_call",
                "z = sum(x[:, t : t + 1] * y[t : t + 1] for t in range(k))\n    return 0 * z + pl.pallas_call",
            ),
        ),
        (OUTSIDE,),
    ),
    Cheat(
        "matmul",
        "product_in_a_loop_outside",
        (
            (
                "def workload(x, y):",
                """def workload(x, y):
    def step(i, z):
        a, b = i // (y.shape[1] // 8) * 8, i % (y.shape[1] // 8) * 8
        rows = jax.lax.dynamic_slice(x, (a, 0), (8, x.shape[1]))
        columns = jax.lax.dynamic_slice(y, (0, b), (y.shape[0], 8))
        block = sum(rows[:, t : t + 8] @ columns[t : t + 8] for t in range(0, x.shape[1], 8))
        return jax.lax.dynamic_update_slice(z, block, (a, b))

    z = jax.lax.fori_loop(0, x.shape[0] * y.shape[1] // 64, step, jnp.zeros((x.shape[0], y.shape[1])))
    k = _kernel(x, y)
    return jnp.where(k == k, z, z + k)


def _kernel(x, y):""",
            ),
        ),
        (OUTSIDE,),
    ),
    Cheat("attention", "mask_forgotten", (("s = jnp.where(columns <= rows, s, -1e30)", "s = s + 0 * columns"),)),
    Cheat("attention", "never_rescaled", (("alpha = jnp.exp(m_ref[...] - m)", "alpha = jnp.ones_like(m)"),)),
    Cheat(
        "attention",
        "no_maximum",
        (("p = jnp.exp(s - m)", "p = jnp.exp(s)"), ("alpha = jnp.exp(m_ref[...] - m)", "alpha = jnp.ones_like(m)")),
    ),
    Cheat("attention", "diagonal_only", (("@pl.when(j <= i)", "@pl.when(j == i)"),)),
    Cheat(
        "attention",
        "weights_in_bfloat16",
        (("p = jnp.exp(s - m)", "p = jnp.exp((s - m).astype(jnp.bfloat16)).astype(jnp.float32)"),),
    ),
    Cheat(
        "attention",
        "state_left_from_before",
        (("@pl.when(j == 0)", "@pl.when((j == 0) & (i == 0))"),),
        ("incorrect", "race"),
    ),
    Cheat(
        "total", "every_other_row", (("jnp.sum(x * x)", "2 * jnp.sum((x * x)[::2])"),), ("incorrect", "compile_error")
    ),
    Cheat("total", "half_of_the_rows", (("jnp.sum(x * x)", "2 * jnp.sum((x * x)[: x.shape[0] // 2])"),)),
    Cheat(
        "total",
        "last_block_skipped",
        (
            (
                "    o_ref[...] += jnp.sum(x * x).reshape(1, 1)",
                "    @pl.when((pl.program_id(0) == 0) | (pl.program_id(0) < pl.num_programs(0) - 1))\n"
                "    def _():\n        o_ref[...] += jnp.sum(x * x).reshape(1, 1)",
            ),
        ),
    ),
    Cheat(
        "total",
        "first_block_times_their_number",
        (
            (
                "o_ref[...] += jnp.sum(x * x).reshape(1, 1)",
                "o_ref[...] = pl.num_programs(0) * jnp.sum(x * x).reshape(1, 1)",
            ),
        ),
    ),
    Cheat(
        "total", "squares_in_bfloat16", (("x = x_ref[...]", "x = x_ref[...].astype(jnp.bfloat16).astype(jnp.float32)"),)
    ),
    Cheat(
        "integers",
        "through_float32",
        (("x * 3 + (x >> 2)", "(x.astype(jnp.float32) * 3.0).astype(jnp.int32) + (x >> 2)"),),
    ),
    Cheat("integers", "rounds_toward_zero", (("(x >> 2)", "jnp.where(x < 0, -((-x) >> 2), x >> 2)"),)),
    Cheat("integers", "sixteen_bits", (("x * 3", "((x << 16) >> 16) * 3"),)),
    Cheat("norm", "second_output_zero", (("mean_ref[...] = mean", "mean_ref[...] = jnp.zeros_like(mean)"),)),
    Cheat("norm", "second_output_never_written", (("    mean_ref[...] = mean\n", ""),)),
    Cheat("norm", "no_epsilon", (("var + 1e-5", "var"),)),
    Cheat(
        "norm",
        "variance_by_squares",
        (("jnp.mean(centred * centred, -1, keepdims=True)", "jnp.mean(x * x, -1, keepdims=True) - mean * mean"),),
    ),
    Cheat(
        "norm",
        "gain_ignored_where_small",
        (("* g_ref[...]", "* jnp.where(jnp.abs(g_ref[...]) < 0.1, 0.0, g_ref[...])"),),
    ),
    Cheat(
        "norm",
        "statistics_of_half_a_row",
        (
            (
                "var = jnp.mean(centred * centred, -1, keepdims=True)",
                "var = jnp.mean(centred[:, : x.shape[1] // 2] ** 2, -1, keepdims=True)",
            ),
        ),
    ),
    Cheat("update", "nothing_done", (("x_ref[...] - 1e-3 * step_ref[...]", "x_ref[...] + 0 * step_ref[...]"),)),
    Cheat(
        "update",
        "half_left_to_the_alias",
        (
            (
                "o_ref[...] = x_ref[...] - 1e-3 * step_ref[...]",
                "h = x_ref.shape[0] // 2\n    o_ref[:h] = x_ref[:h] - 1e-3 * step_ref[:h]",
            ),
        ),
    ),
    Cheat(
        "update",
        "never_taken",
        (
            (
                "return _kernel(x, step)",
                "return jax.lax.cond(x[0, 0] > 1e37, lambda: _kernel(x, step), lambda: x - 1e-3 * step)",
            ),
        ),
        ("forbidden_primitive",),
    ),
    Cheat(
        "update",
        "once_around_a_loop_of_any_length",
        (
            (
                "return _kernel(x, step)",
                "return jax.lax.while_loop(lambda c: c[0] < 1 + (x[0, 0] > 1e37), "
                "lambda c: (c[0] + 1, _kernel(x, step)), (jnp.int32(0), x))[1]",
            ),
        ),
        ("forbidden_primitive",),
    ),
    Cheat(
        "update",
        "reads_beyond_the_end",
        (
            (
                "o_ref[...] = x_ref[...] - 1e-3 * step_ref[...]",
                "o_ref[...] = x_ref[...] - 1e-3 * step_ref[pl.ds(8 * pl.program_id(0) + 8, x_ref.shape[0]), :]",
            ),
        ),
    ),
    Cheat(
        "update",
        "times_zero",
        (("return _kernel(x, step)", "return jnp.where(_kernel(x, step) > 1e38, 0.0, x - 1e-3 * step)"),),
        (OUTSIDE, "incorrect"),
    ),
    Cheat(
        "update",
        "behind_a_barrier",
        (("return _kernel(x, step)", "return jax.lax.optimization_barrier((x - 1e-3 * step, _kernel(x, step)))[0]"),),
        (OUTSIDE,),
    ),
    Cheat(
        "update",
        "another_on_the_tpu",
        (
            (
                "return _kernel(x, step)",
                "return jax.lax.platform_dependent(x, step, tpu=lambda x, s: _kernel(x, 0 * s), default=_kernel)",
            ),
        ),
        ("forbidden_primitive", "incorrect"),
    ),
    Cheat(
        "update",
        "no_bounds_checks",
        (("input_output_aliases={0: 0},", "compiler_params=pltpu.CompilerParams(disable_bounds_checks=True),"),),
        ("forbidden_primitive",),
    ),
    Cheat(
        "choice",
        "last_of_equals",
        (
            ("jnp.where(x == best, columns, x.shape[1])", "jnp.where(x == best, columns, -1)"),
            ("jnp.min(first, -1", "jnp.max(first, -1"),
        ),
    ),
    Cheat(
        "choice", "largest_magnitude", (("-jnp.inf, x)", "-jnp.inf, jnp.abs(x))"), ("x == best", "jnp.abs(x) == best"))
    ),
    Cheat(
        "choice",
        "whole_tensor",
        (
            (
                "best = jnp.max(jnp.where(jnp.isnan(x), -jnp.inf, x), -1, keepdims=True)",
                "best = jnp.max(jnp.where(jnp.isnan(x), -jnp.inf, x))",
            ),
        ),
    ),
)

HALVES = "    x, y = x_ref[...].astype(jnp.bfloat16), y_ref[...].astype(jnp.bfloat16)\n"
HONEST = (
    Cheat(
        "matmul",
        "factors_in_bfloat16",
        ((f"    {ADDED}", f"{HALVES}    acc_ref[...] += jnp.dot(x, y, preferred_element_type=jnp.float32)"),),
        ("ACCEPT",),
    ),
    Cheat(
        "attention",
        "factors_in_bfloat16",
        (("jnp.dot(p, v_ref[0],", "jnp.dot(p.astype(jnp.bfloat16), v_ref[0].astype(jnp.bfloat16),"),),
        ("ACCEPT",),
    ),
)
"""No cheats: what the matrix unit rounds anyway, rounded by hand."""

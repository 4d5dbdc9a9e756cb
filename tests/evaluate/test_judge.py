"""The judge on real candidates: every way to fail has its code. What is hostile stands in tests/hostile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aka.cli import compose
from aka.evaluate.judge import OfflineJudge
from aka.types import Candidate, Workload
from aka.workload.read import read_workload

HOSTILE = Path(__file__).parents[1] / "hostile"


@pytest.fixture(scope="module")
def bench() -> Iterator[compose.Bench]:
    with compose.bench("v5e") as made:
        yield made


@pytest.fixture(scope="module")
def softmax(bench: compose.Bench) -> Workload:
    return bench.client.describe(read_workload(HOSTILE / "op_softmax.py"))


def candidate(code: str) -> Candidate:
    return Candidate(code, "as written", "test")


HEAD = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

"""


def rows_kernel(body: str, *, block: str = "8", extra: str = "") -> str:
    return (
        HEAD
        + f"""
def _body(x_ref, o_ref):
{body}

def workload(x):
    r, c = x.shape
    b = {block}
    spec = pl.BlockSpec((b, c), lambda i: (i, 0))
    return pl.pallas_call(_body, grid=(pl.cdiv(r, b),), in_specs=[spec], out_specs=spec,
                          out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype){extra})(x)
"""
    )


SOFTMAX = """
    x = x_ref[...]
    e = jnp.exp(x - jnp.max(x, -1, keepdims=True))
    o_ref[...] = e / jnp.sum(e, -1, keepdims=True)
"""


def test_a_kernel_that_is_honest_only_below_a_size_is_seen_at_its_own_blocks(
    bench: compose.Bench, softmax: Workload
) -> None:
    """`min(block, rows)` makes one step of every small shape; the second step is where this one cheats."""
    body = "    i = pl.program_id(0)" + SOFTMAX + "\n    o_ref[...] = jnp.where(i < 1, o_ref[...], 0.0)"
    evaluation = bench.judge.evaluate(softmax, candidate(rows_kernel(body, block="min(128, r)")))
    assert evaluation.verdict == "incorrect"


@pytest.mark.parametrize(
    ("code", "verdict", "words"),
    [
        ("import os\n\ndef workload(x): return x", "static_reject", "import of `os`"),
        ("def workload(x): raise ValueError('no')", "candidate_error", "no"),
        (
            rows_kernel(SOFTMAX.replace("o_ref[...] = e", "o_ref[...] = (e"))
            .replace("x.dtype)", "jnp.bfloat16)")
            .replace("True)\n\n\ndef", "True)).astype(jnp.bfloat16)\n\n\ndef"),
            "bad_output",
            "bfloat16",
        ),
        (rows_kernel(SOFTMAX, block="7"), "compile_error", "divisible by 8"),
        (rows_kernel("    o_ref[...] = jnp.cumsum(x_ref[...], -1)"), "compile_error", "cumsum"),
        ("def workload(x: return x", "static_reject", "syntax error"),
    ],
    ids=["import", "raises", "dtype", "block", "primitive", "syntax"],
)
def test_every_way_to_fail_has_a_code_and_a_sentence(
    bench: compose.Bench, softmax: Workload, code: str, verdict: str, words: str
) -> None:
    evaluation = bench.judge.evaluate(softmax, candidate(code))
    failed = evaluation.gates[-1]
    assert evaluation.verdict == verdict, failed
    assert words in failed.message and "\n" not in failed.message
    assert evaluation.timings == ()


def test_too_much_vmem_is_pruned_before_the_compiler_is_asked(bench: compose.Bench, tmp_path: Path) -> None:
    op = tmp_path / "op.py"
    text = (HOSTILE / "op_softmax.py").read_text()
    op.write_text(text.replace('"rows": 256, "cols": 1024}\n', '"rows": 8192, "cols": 8192}\n', 1))
    workload = bench.client.describe(read_workload(op))
    evaluation = bench.judge.evaluate(workload, candidate(rows_kernel(SOFTMAX, block="min(r, 2048)")))
    failed = evaluation.gates[-1]
    assert (evaluation.verdict, failed.gate) == ("compile_error", "vmem")
    assert "scoped vmem" in failed.message


def test_the_finalist_sees_more_than_a_trial(bench: compose.Bench, softmax: Workload) -> None:
    good = candidate((HOSTILE / "h00_control_good.py").read_text())
    trial, final = (bench.judge.evaluate(softmax, good, final=f).gates[-2].message for f in (False, True))
    assert int(final.split()[0]) >= 1.5 * int(trial.split()[0])
    assert "production shape" not in trial and "run whole, 262144 elements compared" in final


LATE = """
    x = x_ref[...]
    e = jnp.exp(x - jnp.max(x, -1, keepdims=True))
    last = 20 if x.shape[1] > 600 else 1000
    o_ref[...] = jnp.where(pl.program_id(0) < last, e / jnp.sum(e, -1, keepdims=True), 0.0)
"""


def test_what_is_wrong_only_at_the_production_shape_is_no_finalist(bench: compose.Bench, softmax: Workload) -> None:
    late = candidate(rows_kernel(LATE))
    assert bench.judge.evaluate(softmax, late).accepted
    found = bench.judge.evaluate(softmax, late, final=True).gates[-1]
    assert (found.code, "as it is" in found.message) == ("incorrect", True)


def test_a_production_shape_that_takes_too_long_is_said_and_no_fault(bench: compose.Bench, softmax: Workload) -> None:
    judge = OfflineJudge(bench.pool, bench.client, bench.chip)
    judge.whole_s = 1e-3
    evaluation = judge.evaluate(softmax, candidate((HOSTILE / "h00_control_good.py").read_text()), final=True)
    assert evaluation.accepted and "not run" in evaluation.gates[-2].message


MATMUL = (
    HEAD
    + """
def _body(x_ref, y_ref, o_ref):
    o_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

def workload(x, y):
    (m, k), n = x.shape, y.shape[1]
    bm, bk = min(m, 256), min(k, 512)
    return pl.pallas_call(
        _body, grid=(m // bm, k // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, k: (i, k)), pl.BlockSpec((bk, n), lambda i, k: (k, 0))],
        out_specs=pl.BlockSpec((bm, n), lambda i, k: (i, 0)), out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32))(x, y)
"""
)


def test_what_a_grid_walks_over_is_told_even_where_it_takes_one_step(bench: compose.Bench) -> None:
    leaves = [{"shape": list(shape), "dtype": "float32"} for shape in ((128, 384), (384, 256))]
    sig = {"leaves": leaves, "tree": {"tuple": [0, 1]}}
    args = {"source": MATMUL, "filename": "matmul.py", "chip": "v5e", "shapes": [sig], "configs": [{}], "cpu": False}
    with bench.pool.borrow("exporter") as exporter:
        _, blobs = exporter.call("export", args, timeout_s=60)
    facts, _ = bench.pool.keep("runner").call("inspect", {}, blobs[:1], timeout_s=60)
    assert facts["kernels"][0]["grid"] == [1, 1]
    assert facts["kernels"][0]["axis_blocks"] == [[[128, 128], [128, 128]], [[384, 384], [384, 384]]]


AXPY = """
import jax
import jax.numpy as jnp

CONFIG = {"name": "axpy", "rows": 4096, "cols": 1024}
TEST_SHAPES = [{"rows": 64, "cols": 256}, {"rows": 16, "cols": 128}]


def create_inputs():
    keys = jax.random.split(jax.random.key(0))
    return tuple(jax.random.normal(k, (CONFIG["rows"], CONFIG["cols"])) for k in keys)


def workload(x, y):
    return 2 * x + 3 * y
"""


@pytest.mark.parametrize(
    ("answer", "verdict", "words"),
    [
        ("k", "ACCEPT", "wrong without its kernels"),
        ("jnp.where(jnp.isnan(k), 2 * x + 3 * y, k)", "work_outside_kernel", "right even with NaN"),
        ("jnp.where(k == k, 2 * x + 3 * y, k)", "work_outside_kernel", "right even with zeros"),
    ],
    ids=["honest", "mended", "decorative"],
)
def test_what_a_kernel_gives_must_matter(
    bench: compose.Bench, tmp_path: Path, answer: str, verdict: str, words: str
) -> None:
    """Cheap arithmetic around a kernel is allowed, but not all of it: ghost replay tells."""
    op = tmp_path / "axpy.py"
    op.write_text(AXPY)
    code = rows_kernel("    o_ref[...] = 2 * x_ref[...] + 3 * y_ref[...]").replace(
        "x_ref, o_ref", "x_ref, y_ref, o_ref"
    )
    code = (
        code.replace("def workload(x)", "def _kernel(x, y)")
        .replace("[spec]", "[spec, spec]")
        .replace("(x)\n", "(x, y)\n")
    )
    code += f"\ndef workload(x, y):\n    k = _kernel(x, y)\n    return {answer}\n"
    evaluation = bench.judge.evaluate(bench.client.describe(read_workload(op)), candidate(code))
    gate = next(g for g in evaluation.gates if g.gate == "correctness")
    assert evaluation.verdict == verdict, gate
    assert words in gate.message


SUMS = """
import jax
import jax.numpy as jnp

CONFIG = {"name": "column_sums", "rows": 4096, "cols": 1024}
TEST_SHAPES = [{"rows": 64, "cols": 256}, {"rows": 16, "cols": 128}]


def create_inputs():
    return (jax.random.normal(jax.random.key(0), (CONFIG["rows"], CONFIG["cols"])),)


def workload(x):
    return x.sum(0, keepdims=True)
"""
SUM_KERNEL = (
    HEAD
    + """
def _body(x_ref, o_ref, sums):
    @pl.when(pl.program_id(0) == 0)
    def _():
        sums[...] = jnp.zeros_like(sums)

    sums[...] += jnp.sum(x_ref[...].reshape(-1, 8, x_ref.shape[1]), 0)
    o_ref[...] = jnp.sum(sums[...], 0, keepdims=True)

def workload(x):
    r, c = x.shape
    b = min(512, r)
    return pl.pallas_call(
        _body, grid=(r // b,), in_specs=[pl.BlockSpec((b, c), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((1, c), lambda i: (0, 0)), out_shape=jax.ShapeDtypeStruct((1, c), x.dtype),
        scratch_shapes=[pltpu.VMEM((8, c), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)))(x)
"""
)


@pytest.mark.parametrize(("kind", "verdict"), [("arbitrary", "ACCEPT"), ("parallel", "race")])
def test_an_axis_that_is_declared_parallel_is_dealt_to_two_cores(
    bench: compose.Bench, tmp_path: Path, kind: str, verdict: str
) -> None:
    op = tmp_path / "sums.py"
    op.write_text(SUMS)
    workload = bench.client.describe(read_workload(op))
    evaluation = bench.judge.evaluate(workload, candidate(SUM_KERNEL.replace("arbitrary", kind)))
    assert evaluation.verdict == verdict, evaluation.gates[-1]


HEADS = (
    HEAD
    + """
CONFIG = {"rows": 256, "heads": 12, "query_heads": 8}
"""
)
HEADS_OP = (
    HEADS
    + """
TEST_SHAPES = [{"rows": 64, "heads": 4, "query_heads": 1}, {"rows": 40, "heads": 6, "query_heads": 4}]

def create_inputs():
    return jax.random.normal(jax.random.key(0), (CONFIG["rows"], 128 * CONFIG["heads"])),

def workload(x):
    at = 128 * CONFIG["query_heads"]
    return jnp.concatenate([jax.nn.silu(x[:, :at]), x[:, at:]], axis=1)
"""
)
HEADS_KERNEL = (
    HEADS
    + """
CHOSEN = 128 * CONFIG["query_heads"]

def _body(x_ref, o_ref):
    x = x_ref[...]
    lane = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
    o_ref[...] = jnp.where(lane < CHOSEN, jax.nn.silu(x), x)

def workload(x):
    spec = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(_body, grid=(x.shape[0] // 8,), in_specs=[spec], out_specs=spec,
                          out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""
)


def test_a_kernels_config_has_the_ops_values_at_every_shape(bench: compose.Bench, tmp_path: Path) -> None:
    op = tmp_path / "heads.py"
    op.write_text(HEADS_OP)
    workload = bench.client.describe(read_workload(op))
    assert bench.judge.check(workload, candidate(HEADS_KERNEL)).verdict == "ACCEPT"
    fixed = HEADS_KERNEL.replace('CHOSEN = 128 * CONFIG["query_heads"]', "CHOSEN = 1024")
    assert bench.judge.evaluate(workload, candidate(fixed)).verdict == "incorrect"

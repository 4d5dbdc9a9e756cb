"""What lies outside the kernels, ghost replay, and cutting grids."""

from __future__ import annotations

import math

import artifact_kernels as k
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Make

from aka.artifact.decode import kernels
from aka.artifact.regrid import extrapolate, plan, regrid
from aka.artifact.run import run
from aka.artifact.structure import (
    constants_bytes,
    custom_call_targets,
    endless,
    feeds_output,
    ghost,
    interface_elements,
    outside,
)  # fmt: skip

X = jax.ShapeDtypeStruct((64, 128), jnp.float32)


def test_pure_kernel_has_nothing_outside(artifact: Make) -> None:
    exported = artifact(k.softmax, X)
    assert outside(exported) == [] and custom_call_targets(exported) == ["tpu_custom_call"]
    assert constants_bytes(exported) == 0 and feeds_output(exported) == [True]


def test_outside_work_is_found_in_loops_and_calls(artifact: Make) -> None:
    def program(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda i, y: jax.jit(jnp.sin)(k.double(y)), x) @ x.T

    found = {o.name: o for o in outside(artifact(program, X))}
    assert found["stablehlo.sine"].elements == 64 * 128
    assert found["stablehlo.dot_general"].result_type == "tensor<64x64xf32>"
    assert "stablehlo.while" in found and not endless(artifact(program, X))
    assert found["stablehlo.sine"].runs == 3 and found["stablehlo.dot_general"].runs == 1
    assert interface_elements(artifact(program, X)) == 64 * 128 + 64 * 64


def test_a_loop_that_hangs_on_values_is_endless(artifact: Make) -> None:
    def program(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda y: jnp.sin(y[0, 0]) < 9, k.double, x)

    def stands_still(x: jax.Array) -> jax.Array:
        def step(carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return carried[0] + jnp.where(carried[1][0, 0] > 0, 1, 0), k.double(carried[1])

        return jax.lax.while_loop(lambda c: c[0] < 2, step, (jnp.int32(0), x))[1]

    for made in (program, stands_still):
        exported = artifact(made, X)
        assert endless(exported)
        assert all(o.runs is None for o in outside(exported) if o.name in ("stablehlo.sine", "stablehlo.select"))


def test_a_composite_goes_by_its_own_name(artifact: Make) -> None:
    names = {o.name for o in outside(artifact(lambda x: jax.lax.erf(k.double(x)), X))}
    assert "chlo.erf" in names


def test_what_stands_beside_a_kernel_in_a_barrier_does_not_feed(artifact: Make) -> None:
    def program(x: jax.Array) -> jax.Array:
        _dropped, kept = jax.lax.optimization_barrier((k.softmax(x, 8), x + 1))
        return k.double(kept)

    assert sorted(feeds_output(artifact(program, X))) == [False, True]


def test_program_without_a_kernel(artifact: Make) -> None:
    exported = artifact(jnp.sin, X)
    assert kernels(exported) == [] and custom_call_targets(exported) == [] and ghost(exported)[1] == 0


def test_constants_are_counted_unless_uniform(artifact: Make) -> None:
    table = np.arange(64 * 128, dtype=np.float32).reshape(64, 128)
    exported = artifact(lambda x: k.double(x) + table, X)
    assert constants_bytes(exported) == table.nbytes
    assert constants_bytes(artifact(lambda x: k.double(x) + 1.0, X)) <= 4


def test_kernel_whose_result_is_dropped_in_a_loop(artifact: Make) -> None:
    def program(x: jax.Array) -> jax.Array:
        counted, _ = jax.lax.while_loop(lambda c: c[0][0, 0] < 9, lambda c: (c[0] * 2, k.softmax(c[1], 8)), (x, x))
        return jax.jit(k.double)(counted)

    *dropped, kept = feeds_output(artifact(program, X))
    assert kept and not any(dropped)
    assert dropped or jax.__version_info__ >= (0, 12), "from 0.12 on, jax itself drops the kernel"


def test_kernel_that_only_controls_a_loop_feeds_the_output(artifact: Make) -> None:
    def program(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda c: c[0][0, 0] < 9, lambda c: (k.double(c[0]), c[1] + 1), (x, x))[1]

    assert feeds_output(artifact(program, X)) == [True]


@pytest.mark.parametrize("fill", [float("nan"), 0.0])
def test_ghost_of_an_honest_kernel(artifact: Make, rng: np.random.Generator, fill: float) -> None:
    x = rng.normal(size=X.shape).astype(np.float32)
    exported, count = ghost(artifact(lambda a: jnp.tanh(k.double(a)), X), fill)
    y = np.asarray(exported.call(x))
    assert count == 1 and np.array_equal(y, np.full_like(x, fill), equal_nan=True)


def test_ghost_shows_work_outside(artifact: Make, rng: np.random.Generator) -> None:
    x = rng.normal(size=X.shape).astype(np.float32)
    exported, count = ghost(artifact(lambda a: jnp.tanh(a) + 0 * k.double(a), X), 0.0)
    assert count == 1
    np.testing.assert_allclose(np.asarray(exported.call(x)), np.tanh(x), rtol=1e-5)


def test_plan_never_cuts_an_axis_that_the_body_reads(artifact: Make) -> None:
    big = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    (kernel,) = kernels(artifact(k.matmul, big, big))
    assert plan(kernel) == ((1, 1, 4), (1, 4, 4))
    (kernel,) = kernels(artifact(k.skips_a_block, X))
    assert plan(kernel) == ((8,), (8,)), "nothing can be cut"


def test_plan_has_the_steps_it_promises(artifact: Make) -> None:
    (kernel,) = kernels(artifact(lambda x: k.softmax(x, 8), jax.ShapeDtypeStruct((512, 128), jnp.float32)))
    small, large = plan(kernel)
    assert (math.prod(small), math.prod(large)) == (4, 16)


def test_regrid_changes_the_grid_and_nothing_else(artifact: Make, rng: np.random.Generator) -> None:
    x = rng.normal(size=X.shape).astype(np.float32)
    whole = artifact(lambda a: k.softmax(a, 8), X)
    cut = regrid(whole, [(2,)])
    (kernel,) = kernels(cut)
    assert kernel.grid == (2,) and kernel.windows[0].array == (64, 128)
    (y,), stats = run(cut, [x])
    (full,), _ = run(whole, [x])
    assert stats.steps == 2 and np.isnan(y[16:]).all()
    np.testing.assert_array_equal(y[:16], full[:16])


def test_regrid_refuses_another_rank(artifact: Make) -> None:
    with pytest.raises(ValueError, match="rank"):
        regrid(artifact(k.softmax, X), [(1, 1)])


def test_extrapolation_is_a_line() -> None:
    assert extrapolate(100 + 4 * 7, 4, 100 + 16 * 7, 16, 512) == 100 + 512 * 7

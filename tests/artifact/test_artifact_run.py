"""Artifacts that run on the machine: right kernels come out right, wrong ones are seen to be wrong."""

from __future__ import annotations

import time
from typing import Any

import artifact_kernels as k
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from conftest import Make
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from aka.artifact.errors import MachineFault, Unsupported
from aka.artifact.run import Prepared, run

Rng = np.random.Generator
Array = np.ndarray[Any, Any]


def normal(rng: Rng, *shape: int, dtype: Any = np.float32) -> Array:
    return rng.normal(size=shape).astype(dtype)


def reference_softmax(x: Array) -> Array:
    return np.asarray(jax.nn.softmax(x, -1))


def test_softmax_is_right_and_quick(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 128, 8192)
    program = Prepared(artifact(k.softmax, x))
    start = time.perf_counter()
    (y,), stats = program.run([x])
    seconds = time.perf_counter() - start
    np.testing.assert_allclose(y, reference_softmax(x), rtol=1e-5)
    assert (stats.steps, stats.runs, stats.read_bytes) == (2, 1, x.nbytes)
    assert seconds < 0.6, "0.09 s when the machine is idle"


def test_last_block_is_clipped(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 100, 256)
    (y,), stats = run(artifact(k.softmax, x), [x])
    np.testing.assert_allclose(y, reference_softmax(x), rtol=1e-5)
    assert stats.read_bytes == x.nbytes and stats.written_bytes == x.nbytes


def test_rmsnorm_in_bf16(artifact: Make, rng: Rng) -> None:
    x, w = normal(rng, 512, 256, dtype=ml_dtypes.bfloat16), normal(rng, 1, 256, dtype=ml_dtypes.bfloat16)
    (y,), _ = run(artifact(k.rmsnorm, x, w), [x, w])
    x32 = x.astype(np.float32)
    want = x32 / np.sqrt((x32 * x32).mean(-1, keepdims=True) + 1e-6) * w.astype(np.float32)
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(y.astype(np.float32), want, rtol=2**-8)


def test_matmul_accumulates_over_k(artifact: Make, rng: Rng) -> None:
    x, y = normal(rng, 128, 256, dtype=ml_dtypes.bfloat16), normal(rng, 256, 256, dtype=ml_dtypes.bfloat16)
    (z,), stats = run(artifact(lambda a, b: k.matmul(a, b, 64, 128, 128), x, y), [x, y])
    np.testing.assert_allclose(
        z.astype(np.float32), x.astype(np.float32) @ y.astype(np.float32), rtol=2**-7, atol=2**-6
    )
    assert stats.steps == 8


def test_missing_init_is_nan(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 128, 128)
    (z,), _ = run(artifact(lambda a, b: k.matmul(a, b, 64, 128, 128, init=False), x, x), [x, x])
    assert np.isnan(z).all()


def test_f32_matmul_rounds_as_the_chip_does(artifact: Make, rng: Rng) -> None:
    x, y = normal(rng, 128, 128), normal(rng, 128, 128)
    default = artifact(lambda a, b: k.matmul(a, b, 64, 128, 128), x, y)
    highest = artifact(lambda a, b: k.matmul(a, b, 64, 128, 128, precision="highest"), x, y)
    exact = x.astype(np.float64) @ y

    def error(exported: Any, mxu: Any) -> float:
        return float(np.abs(run(exported, [x, y], mxu=mxu)[0][0] - exact).max())

    assert error(default, "exact") < 1e-4 and error(highest, "bf16") < 1e-4
    assert 1e-3 < error(default, "bf16") < 0.2
    rounded = x.astype(ml_dtypes.bfloat16).astype(np.float32) @ y.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_allclose(run(default, [x, y])[0][0], rounded, rtol=1e-5, atol=1e-5)


def _narrowed(body: Any) -> Any:
    def product(x: Any, y: Any) -> Any:
        scratch = [pltpu.VMEM((128, 128), jnp.bfloat16)] if body in (_by_scratch, _sum_in_scratch) else []
        made = jax.ShapeDtypeStruct((128, 128), jnp.float32)
        return pl.pallas_call(body, out_shape=made, scratch_shapes=scratch)(x, y)

    return product


def _dot(x: Any, y: Any) -> Any:
    return jnp.dot(x, y, preferred_element_type=jnp.float32)


def _into_the_dot(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    o_ref[...] = _dot(x_ref[...].astype(jnp.bfloat16), y_ref[...].astype(jnp.bfloat16).T.T)


def _into_more(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    x = x_ref[...].astype(jnp.bfloat16)
    o_ref[...] = _dot(x, y_ref[...].astype(jnp.bfloat16)) + jnp.sum(x.astype(jnp.float32))


def _by_scratch(x_ref: Any, y_ref: Any, o_ref: Any, held_ref: Any) -> None:
    held_ref[...] = x_ref[...].astype(jnp.bfloat16)
    o_ref[...] = _dot(held_ref[...], y_ref[...])


def _sum_in_scratch(x_ref: Any, y_ref: Any, o_ref: Any, held_ref: Any) -> None:
    held_ref[...] = _dot(x_ref[...], y_ref[...]).astype(jnp.bfloat16)
    o_ref[...] = held_ref[...].astype(jnp.float32)


def _three_passes(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    x, y = x_ref[...], y_ref[...]
    high, other = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
    low, rest = x - high.astype(jnp.float32), y - other.astype(jnp.float32)
    made = _dot(high, rest.astype(jnp.bfloat16)) + _dot(low.astype(jnp.bfloat16), other)
    o_ref[...] = _dot(high, other) + made


def test_exact_dots_take_no_narrowing_that_only_feeds_them(artifact: Make, rng: Rng) -> None:
    x, y = normal(rng, 128, 128), normal(rng, 128, 128)
    exact = x.astype(np.float64) @ y

    def error(body: Any, mxu: Any, more: float = 0.0) -> float:
        return float(np.abs(run(artifact(_narrowed(body), x, y), [x, y], mxu=mxu)[0][0] - exact - more).max())

    assert error(_into_the_dot, "exact") < 1e-4 < 1e-2 < error(_into_the_dot, "bf16")
    assert error(_by_scratch, "exact") < 1e-4 < 1e-2 < error(_sum_in_scratch, "exact")
    assert error(_into_more, "exact", float(x.sum())) > 1e-2
    assert error(_three_passes, "exact") < 2e-3 and error(_three_passes, "bf16") < 2e-3


@pytest.mark.parametrize("causal", [True, False])
def test_flash_attention(artifact: Make, rng: Rng, causal: bool) -> None:
    q, key, v = (normal(rng, 2, 256, 128) for _ in range(3))
    (o,), _ = run(artifact(lambda *a: k.flash(*a, causal=causal), q, key, v), [q, key, v])
    scores = np.einsum("hqd,hkd->hqk", q, key) * 128**-0.5
    if causal:
        scores = np.where(np.tri(256, dtype=bool), scores, -np.inf)
    np.testing.assert_allclose(o, reference_softmax(scores) @ v, rtol=1e-4, atol=1e-5)


def test_scalar_prefetch(artifact: Make, rng: Rng) -> None:
    x, table = normal(rng, 64, 128), np.array([3, 3, 0, 7], np.int32)
    (y,), stats = run(artifact(k.gather_blocks, table, x), [table, x])
    want = x.reshape(8, 8, 128)[table] + table[:, None, None].astype(np.float32)
    np.testing.assert_array_equal(y, want.reshape(32, 128))
    assert stats.read_bytes == 3 * 8 * 128 * 4, "the repeated block is not fetched again"


def test_prefetched_index_outside_the_array_is_a_fault(artifact: Make, rng: Rng) -> None:
    x, table = normal(rng, 64, 128), np.array([3, 8, 0, 7], np.int32)
    with pytest.raises(MachineFault, match="outside"):
        run(artifact(k.gather_blocks, table, x), [table, x])


def test_smem_scalars(artifact: Make, rng: Rng) -> None:
    x, s = normal(rng, 16, 128), np.array([2.0, -1.0], np.float32)
    (y,), _ = run(artifact(k.scale_by_scalar, s, x), [s, x])
    np.testing.assert_array_equal(y, x * 2 - 1)


def test_manual_copies(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 32, 128)
    exported = artifact(k.manual_copy, x)
    for lazy in (True, False):
        (y,), stats = run(exported, [x], lazy=lazy)
        np.testing.assert_array_equal(y, x * 2)
        assert (stats.dmas, stats.read_bytes, stats.written_bytes) == (8, x.nbytes, x.nbytes)


def test_racy_copy_shows_stale_memory(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 8, 128)
    exported = artifact(lambda a: k.manual_copy(a, racy=True), x)
    assert np.isnan(run(exported, [x])[0][0]).all()
    np.testing.assert_array_equal(run(exported, [x], lazy=False)[0][0], x * 2)


def test_copy_never_waited_for_is_a_fault(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 8, 128)
    with pytest.raises(MachineFault, match="never waited"):
        run(artifact(lambda a: k.manual_copy(a, waits=False), x), [x])


def test_wait_without_a_copy_is_a_fault(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 8, 128)
    with pytest.raises(MachineFault, match="never started"):
        run(artifact(k.lonely_wait, x), [x])


def test_emit_pipeline(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 40, 128)
    (y,), stats = run(artifact(k.inner_pipeline, x), [x])
    np.testing.assert_array_equal(y, x * 2)
    assert stats.dmas == 10


def test_skipped_block_is_nan(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 24, 128)
    (y,), _ = run(artifact(k.skips_a_block, x), [x])
    assert np.isnan(y[8:16]).all() and not np.isnan(y[:8]).any() and not np.isnan(y[16:]).any()


def test_read_outside_a_block_is_a_fault(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 16, 128)
    with pytest.raises(MachineFault, match="axis 0"):
        run(artifact(k.reads_too_far, x), [x])


def test_alias_leaves_the_argument_alone(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 16, 128)
    before = x.copy()
    (y,), _ = run(artifact(k.add_in_place, x), [x])
    np.testing.assert_array_equal(y, x + 1)
    np.testing.assert_array_equal(x, before)


def test_two_kernels_with_work_around_them(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 128, 64)
    exported = artifact(lambda a: jnp.sin(k.double(k.softmax(a.T, 8)).T), x)
    (y,), stats = run(exported, [x])
    np.testing.assert_allclose(y, np.sin(2 * reference_softmax(x.T)).T, rtol=1e-5, atol=1e-6)
    assert stats.runs == 2


def test_kernel_in_a_loop(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 8, 128)
    exported = artifact(lambda a: jax.lax.fori_loop(0, 3, lambda i, y: k.double(y + i), a), x)
    (y,), stats = run(exported, [x])
    np.testing.assert_allclose(y, ((x * 2 + 1) * 2 + 2) * 2, rtol=1e-6)
    assert stats.runs == 3


def test_kernel_in_a_scan(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 5, 8, 128)
    exported = artifact(lambda a: jax.lax.scan(lambda c, v: (c + k.double(v), c), a[0], a), x)
    (last, carried), stats = run(exported, [x])
    np.testing.assert_allclose(last, x[0] + 2 * x.sum(0), rtol=1e-4, atol=1e-5)
    assert carried.shape == x.shape and stats.runs == 5


def test_several_results_and_an_unused_argument(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 16, 128)
    exported = artifact(lambda unused, a: k.two_results(a), np.zeros(3, np.float32), x)
    (total, top), _ = run(exported, [np.zeros(3, np.float32), x])
    np.testing.assert_allclose(total, x.sum(-1, keepdims=True), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(top, x.max(-1, keepdims=True))


def test_unknown_operation_keeps_its_name(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 8, 128)
    with pytest.raises(Unsupported) as caught:
        run(artifact(k.random_bits, x), [x])
    assert caught.value.op.startswith("tpu.prng")


def test_wrong_arguments_are_refused(artifact: Make, rng: Rng) -> None:
    x = normal(rng, 8, 128)
    with pytest.raises(ValueError, match="arguments"):
        run(artifact(k.double, x), [x[:4]])


def test_block_is_fetched_before_the_step_before_wrote_it(artifact: Make) -> None:
    """Passing data from step to step through aliased HBM is a race with the pipeline's prefetch."""
    x = np.ones((32, 128), np.float32)
    (y,), _ = run(artifact(k.chain_through_hbm, x), [x])
    np.testing.assert_array_equal(y, np.r_[x[:8], np.full((24, 128), 2.0, np.float32)])

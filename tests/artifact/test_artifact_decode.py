"""Facts read from the bytes: grids, windows, memory, traffic."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import artifact_kernels as k
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Make

from aka.artifact import hbm
from aka.artifact.callsite import CallSite
from aka.artifact.decode import kernels, load, padded_bytes, read_kernel, vmem_bytes
from aka.artifact.errors import Undecodable
from aka.artifact.hbm import hbm_bytes
from aka.artifact.machine import execute
from aka.artifact.program import Type

BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32


def array(*shape: int, dtype: object = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def test_softmax_facts(artifact: Make) -> None:
    (kernel,) = kernels(artifact(k.softmax, array(128, 8192)))
    assert (kernel.grid, kernel.semantics, kernel.prefetch) == ((2,), ("parallel",), 0)
    assert kernel.vmem_limit_bytes == 32 << 20 and kernel.dma_count == 0 and not kernel.dynamic_loops
    source, result = kernel.windows
    assert (source.block, source.array, source.dtype, source.space) == ((64, 8192), (128, 8192), "float32", "vmem")
    assert source.indices is not None and source.indices.tolist() == [[0, 0], [1, 0]]
    assert source.pipelined and not source.is_output and result.is_output
    assert vmem_bytes(kernel) == 2 * 2 * 64 * 8192 * 4


def test_matmul_facts(artifact: Make) -> None:
    (kernel,) = kernels(artifact(k.matmul, array(4096, 4096, dtype=BF16), array(4096, 4096, dtype=BF16)))
    assert kernel.grid == (8, 4, 4) and kernel.branching_axes == (2,)
    assert kernel.scratch == (((512, 1024), "float32", "vmem"),)
    assert vmem_bytes(kernel) == 2 * (512 * 1024 + 1024 * 1024 + 512 * 1024) * 2 + 512 * 1024 * 4


def test_decoding_is_quick(artifact: Make) -> None:
    exported = artifact(k.softmax, array(128, 8192))
    kernels(exported)
    start = time.perf_counter()
    kernels(exported)
    assert time.perf_counter() - start < 0.3, "0.04 s when the machine is idle"


def test_prefetch_facts(artifact: Make) -> None:
    exported = artifact(k.gather_blocks, array(4, dtype=I32), array(64, 128))
    (kernel,) = kernels(exported)
    assert kernel.prefetch == 1 and kernel.windows[0].indices is None
    (kernel,) = kernels(exported, [[np.array([3, 3, 0, 7], np.int32)]])
    assert kernel.windows[0].indices is not None and kernel.windows[0].indices[:, 0].tolist() == [3, 3, 0, 7]


def test_manual_copy_facts(artifact: Make) -> None:
    (kernel,) = kernels(artifact(k.manual_copy, array(32, 128)))
    assert kernel.dma_count == 2 and [w.space for w in kernel.windows] == ["any", "any"]
    assert [s for _, s, _ in kernel.scoped].count("dma_semaphore") == 2


def test_data_dependent_loop_is_dynamic(artifact: Make) -> None:
    (static,) = kernels(artifact(k.flash, *[array(2, 256, 128)] * 3))
    (dynamic,) = kernels(artifact(k.sum_prefix, array(1, dtype=I32), array(64, 128)))
    assert dynamic.dynamic_loops and not static.dynamic_loops


def test_program_order_and_runs(artifact: Make) -> None:
    def program(x: jax.Array) -> jax.Array:
        looped = jax.lax.fori_loop(0, 3, lambda i, y: k.double(y), x)
        return k.softmax(looped, 8)

    first, second = kernels(artifact(program, array(16, 128)))
    assert (first.site.in_loop, first.site.runs, second.site.in_loop, second.site.runs) == (True, 3, False, 1)
    assert first.grid == () and second.grid == (2,)


def test_aliases_and_options(artifact: Make) -> None:
    (kernel,) = kernels(artifact(k.add_in_place, array(16, 128)))
    assert kernel.aliases == ((0, 0),) and "disable_bounds_checks" not in kernel.options


def test_no_artifact_is_undecodable() -> None:
    with pytest.raises(Undecodable):
        load(b"not an artifact")


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ((8, 128), "float32", 4096),
        ((9, 129), "float32", 16 * 256 * 4),
        ((3, 128), "float32", 4 * 128 * 4),
        ((1, 128), "bfloat16", 2 * 128 * 2),
        ((20, 128), "bfloat16", 24 * 128 * 2),
        ((5, 128), "int8", 8 * 128),
        ((256,), "float32", 1024),
        ((3, 8, 128), "float32", 3 * 4096),
    ],
)
def test_tile_padding(shape: tuple[int, ...], dtype: str, size: int) -> None:
    assert padded_bytes(shape, dtype) == size


def test_matmul_traffic_is_the_hand_count(artifact: Make) -> None:
    (t,) = hbm_bytes(artifact(k.matmul, array(4096, 4096, dtype=BF16), array(4096, 4096, dtype=BF16)))
    assert t.exact and t.total_bytes == 436_207_616


def test_rmsnorm_traffic_is_the_hand_count(artifact: Make) -> None:
    x, w = array(8 * 4096, 8192, dtype=BF16), array(1, 8192, dtype=BF16)
    (t,) = hbm_bytes(artifact(k.rmsnorm, x, w))
    assert t.exact and t.total_bytes == 1_073_758_208


def test_edge_blocks_are_clipped(artifact: Make) -> None:
    (t,) = hbm_bytes(artifact(k.softmax, array(100, 256)))
    assert (t.read_bytes, t.written_bytes, t.exact) == (100 * 256 * 4, 100 * 256 * 4, True)


@pytest.mark.parametrize("function", [k.manual_copy, k.inner_pipeline])
def test_copies_by_hand_are_counted(artifact: Make, function: object) -> None:
    (t,) = hbm_bytes(artifact(function, array(64, 128)))
    assert (t.read_bytes, t.written_bytes, t.exact) == (64 * 128 * 4, 64 * 128 * 4, True)


def test_prefetched_index_maps_are_exact_only_with_the_table(artifact: Make) -> None:
    exported = artifact(k.gather_blocks, array(4, dtype=I32), array(64, 128))
    (unknown,), (known,) = hbm_bytes(exported), hbm_bytes(exported, [[np.array([3, 3, 0, 7], np.int32)]])
    assert not unknown.exact and known.exact
    assert unknown.read_bytes - known.read_bytes == 8 * 128 * 4


def test_newer_mosaic_is_read_and_run(rng: np.random.Generator) -> None:
    """`manual_copy` as jax 0.12.0.1 writes it (Mosaic version 15, `tpu.wait_dma`)."""
    text = (Path(__file__).parent / "data" / "manual_copy_mosaic15.b64").read_text()
    result = Type("tensor", (32, 128), "float32")
    site = CallSite(((32, 128),), ((32, 128),), (result,), (), in_loop=False, runs=1)
    kernel = read_kernel({"custom_call_config": {"body": text}}, site)
    assert kernel.program.version == 15 and kernel.dma_count == 2
    x = rng.normal(size=(32, 128)).astype(np.float32)
    (y,), stats = execute(kernel, [x])
    np.testing.assert_array_equal(y, x * 2)
    assert stats.dmas == 8 and hbm.traffic(kernel).total_bytes == 2 * x.nbytes


def test_damaged_artifact_is_undecodable(artifact: Make) -> None:
    exported = artifact(k.double, array(8, 128))
    damaged = dataclasses.replace(exported, mlir_module_serialized=exported.mlir_module_serialized[:200])
    with pytest.raises(Undecodable):
        kernels(damaged)

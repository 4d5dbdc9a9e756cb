"""Exports the fixture kernels for a v5e, on a machine without one."""

from __future__ import annotations

import os

os.environ.update(
    JAX_PLATFORMS="cpu",
    TPU_SKIP_MDS_QUERY="1",
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    TPU_LOG_DIR="disabled",
    TPU_WORKER_HOSTNAMES="localhost",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
    OPENBLAS_NUM_THREADS="1",  # on a busy machine two threads wait for each other at every small matmul
)

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import export
from jax.experimental import topologies
from jax.sharding import Mesh

from aka.artifact import decode

Make = Callable[..., export.Exported]


@pytest.fixture(scope="session")
def chip_mesh() -> Any:
    device = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices[0]
    return Mesh(np.array([device]), ("x",)).abstract_mesh


@pytest.fixture(scope="session")
def artifact(chip_mesh: Any) -> Make:
    """`artifact(function, *arrays or shapes)`: the function's TPU artifact, through its bytes."""

    def make(function: Callable[..., Any], *args: Any) -> export.Exported:
        avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args]
        with jax.sharding.use_abstract_mesh(chip_mesh):
            # A fresh lambda: jax would otherwise hand out what it traced outside the mesh.
            data = export.export(jax.jit(lambda *xs: function(*xs)), platforms=["tpu"])(*avals).serialize()
        return decode.load(bytes(data))

    return make


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)

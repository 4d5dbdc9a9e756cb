"""The kernels of a template one by one: each computes the op that it is judged by, and these ops make up the whole."""

from __future__ import annotations

import functools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuse_ops import CASES
from jax.experimental.pallas import tpu as pltpu

from aka.fuse.plan import Machine
from aka.fuse.templates import Template, templates

MACHINE = Machine(112 << 20, 819e9, {"bfloat16": 197e12, "int8": 393e12}, 3e12)
NAMES = ["batch_norm", "masked_pool", "swiglu", "norm_matmul"]


@functools.cache
def chain(name: str) -> Template:
    case = next(c for c in CASES if c.name == name)
    avals = [[jax.ShapeDtypeStruct(s, jnp.dtype(d)) for s, d in specs] for specs in case.sizes]
    programs = [jax.make_jaxpr(case.op)(*a) for a in avals]
    made, _ = templates(programs, [f"a{i}" for i in range(len(avals[0]))], {}, MACHINE, case.name)
    return next(t for t in made if len(t.links) > 1)


def loaded(source: str) -> types.ModuleType:
    module = types.ModuleType("piece")
    exec(compile(source, "piece.py", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", [0, 1])
def test_each_kernel_computes_its_own_op(name: str, case: int) -> None:
    for link in chain(name).links:
        op, kernel = loaded(link.op), loaded(link.source)
        op.CONFIG["case"] = case
        given = op.create_inputs()
        with jax.default_matmul_precision("highest"):
            want = jax.tree.leaves(op.workload(*given))
        with pltpu.force_tpu_interpret_mode():
            got = jax.tree.leaves(kernel.kernel(*given))
        for g, w in zip(got, want, strict=True):
            assert (g.shape, g.dtype) == (w.shape, w.dtype)
            typical = float(np.sqrt(np.mean(np.asarray(w, np.float32) ** 2)))
            np.testing.assert_allclose(np.float32(g), np.float32(w), rtol=2e-3, atol=2e-3 * typical)


@pytest.mark.parametrize("name", NAMES)
def test_the_templates_parameters_are_those_of_its_kernels(name: str) -> None:
    template = chain(name)
    own: dict[str, Any] = {}
    for link in template.links:
        alone = loaded(link.source)
        space = alone.search_space([], "v5e")
        assert list(space) == list(link.params) == list(alone.TUNED_PARAMS)
        own |= {link.params[n]: values for n, values in space.items()}
    assert own == loaded(template.source).search_space([], "v5e")

"""Groups of channels: what is left unsplit, what is left as it is, and that a NaN stays in its group."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuse_ops import gated_group_norm, group_norm_images, group_norm_planes, group_quantised
from jax.experimental.pallas import tpu as pltpu

from aka.fuse.graph import Graph, read
from aka.fuse.plan import Machine
from aka.fuse.templates import templates
from aka.fuse.ungroup import ungrouped

MACHINE = Machine(112 << 20, 819e9, {"bfloat16": 197e12}, 3e12)
IMAGES = [[(2, 8, 16, 160), (160,), (160,), (2, 320)], [(1, 16, 8, 256), (256,), (256,), (1, 512)]]
PLANES = [[(2, 64, 8, 128), (64,)], [(3, 32, 16, 16), (32,)]]
GATED = [[(2, 32, 512), (2, 32, 512), (128,)], [(1, 64, 1024), (1, 64, 1024), (256,)]]
ROWS: list[list[tuple[int, ...]]] = [[(96, 512)], [(40, 1024)]]


def programs(op: Callable[..., Any], sizes: list[list[tuple[int, ...]]]) -> list[Any]:
    return [jax.make_jaxpr(op)(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)) for shapes in sizes]


def operations(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def split(x: Any) -> Any:
    return x.reshape(x.shape[0], 4, x.shape[1] // 4)


@pytest.mark.parametrize(
    ("op", "sizes"),
    [(group_norm_images, IMAGES), (group_norm_planes, PLANES), (gated_group_norm, GATED), (group_quantised, ROWS)],
)
def test_large_values_are_not_split(op: Callable[..., Any], sizes: list[list[tuple[int, ...]]]) -> None:
    graph = ungrouped(read(programs(op, sizes)))
    whole = int(np.prod(sizes[0][0]))
    shapes = {tuple(s[0] for s in v.shape) for v in graph.values.values()}
    assert {s for s in shapes if np.prod(s) == whole} == {sizes[0][0]}
    assert {"group_reduce", "group_spread"} <= set(operations(graph))
    assert list(graph.values) == sorted(graph.values)


def narrow(x: Any) -> Any:
    parts = x.reshape(x.shape[0], 16, x.shape[1] // 16)
    return (parts - parts.mean(-1, keepdims=True)).reshape(x.shape)


KEPT = {
    "an output in the split form": lambda x: split(x) - split(x).mean(-1, keepdims=True),
    "a product": lambda x: jnp.einsum("ngm,nhm->ngh", split(x), split(x) / split(x).max(-1, keepdims=True)),
    "an index": lambda x: jnp.argmax(split(x) - split(x).mean(-1, keepdims=True), -1),
    "narrow groups in many rows": narrow,
    "no reduction": lambda x: (split(x) * 2.0).reshape(x.shape),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_needs_the_split_form_stays_as_it_is(name: str) -> None:
    graph = read(programs(KEPT[name], ROWS))
    assert ungrouped(graph) is graph


@pytest.mark.parametrize(("op", "sizes"), [(group_norm_planes, PLANES), (gated_group_norm, GATED)])
def test_a_nan_stays_in_its_group(op: Callable[..., Any], sizes: list[list[tuple[int, ...]]]) -> None:
    rng = np.random.default_rng(0)
    given = [rng.normal(size=s).astype(np.float32) for s in sizes[0]]
    given[0].flat[5], given[0].flat[-3] = np.nan, np.inf
    names = [f"a{i}" for i in range(len(given))]
    found, refused = templates(programs(op, sizes), names, {}, MACHINE, "op")
    assert found, refused
    module = types.ModuleType("template")
    exec(compile(found[0].source, "template.py", "exec"), module.__dict__)
    with pltpu.force_tpu_interpret_mode():
        got = np.asarray(module.kernel(*map(jnp.asarray, given)))
    want = np.asarray(op(*map(jnp.asarray, given)))
    assert 0 < np.isnan(want).sum() < want.size
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))

"""Windows of padded arrays become shifts, whose axis a grid may cut; other cuts and joins stay as they are."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuse_ops import F32, Case, arguments, matrices, taps
from jax.experimental.pallas import tpu as pltpu

from aka.fuse.graph import read
from aka.fuse.halos import with_halos
from aka.fuse.plan import Machine
from aka.fuse.shifts import shifted
from aka.fuse.templates import templates

MACHINE = Machine(112 << 20, 819e9, {"bfloat16": 197e12}, 3e12)
SIZES = ((2, 48, 128), (1, 40, 256))


def graph_of(op: Callable[..., Any], sizes: tuple[tuple[int, ...], ...] = SIZES) -> Any:
    return read([jax.make_jaxpr(op)(jax.ShapeDtypeStruct(s, jnp.float32)) for s in sizes])


def moves(op: Callable[..., Any]) -> list[int]:
    """How far each shift in the rewritten op moves."""
    return [n.params[0]["by"] for n in shifted(graph_of(op)).nodes if n.op == "shift"]


def padded(x: Any, before: int, after: int) -> Any:
    return jnp.pad(x, ((0, 0), (before, after), (0, 0)))


WINDOWS: dict[str, tuple[Callable[..., Any], list[int]]] = {
    "pad and cut": (lambda x: padded(x, 2, 0)[:, :-2] + x, [2]),
    "cut and pad": (lambda x: padded(x[:, 1:], 0, 1) * x, [-1]),
    "joined with zeros": (lambda x: x - jnp.concatenate([jnp.zeros_like(x[:, :3]), x[:, :-3]], 1), [3]),
    "a negative pad": (lambda x: jax.lax.pad(x, 0.0, ((0, 0, 0), (1, -1, 0), (0, 0, 0))) + x, [1]),
    "twice": (lambda x: padded(padded(x, 1, 0)[:, :-1], 1, 0)[:, :-1] + x, [2]),
    "of what is made of windows": (lambda x: padded(x[:, 1:] * x[:, :-1], 1, 0), [1]),
    "the middle tap": (lambda x: padded(x, 1, 1)[:, 1:-1] * 2, []),
    "other lengths": (lambda x: padded(x, 2, 1)[:, :-1].sum(1), []),
    "lanes": (lambda x: jnp.pad(x, ((0, 0), (0, 0), (1, 0)))[..., :-1] + x, []),
    "two arrays joined": (lambda x: jnp.concatenate([x, x * 2], 1), []),
    "too far": (lambda x: jnp.pad(x, ((0, 0), (100, 0), (0, 0)))[:, :-100] + x, []),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_as_long_as_the_array_are_shifts(name: str) -> None:
    op, expected = WINDOWS[name]
    assert moves(op) == expected


def test_one_halo_serves_all_taps_and_reads_the_input_again() -> None:
    def op(x: Any) -> Any:
        return taps(x * 2.0, jnp.ones((4, 1)), 1, 2)

    graph = with_halos(shifted(graph_of(op)))
    assert len(graph.inputs) == 3
    assert set(graph.aliases.values()) == {graph.inputs[0]}
    assert all(len(n.arrays) == 2 for n in graph.nodes if n.op == "shift")


def test_an_axis_that_is_held_whole_has_no_halo() -> None:
    graph = shifted(graph_of(lambda x: (padded(x, 1, 0)[:, :-1] + x).reshape(-1)))
    assert with_halos(graph) == graph


def run(op: Callable[..., Any], sizes: list[Any], given: list[Any], block: int) -> tuple[str, Any]:
    avals = [[jax.ShapeDtypeStruct(s, jnp.dtype(d)) for s, d in specs] for specs in sizes]
    found, refused = templates(
        [jax.make_jaxpr(op)(*a) for a in avals], [f"a{i}" for i in range(len(avals[0]))], {}, MACHINE, "op"
    )
    assert found, refused
    module = types.ModuleType("template")
    exec(compile(found[0].source, "template.py", "exec"), module.__dict__)
    rows = {n: block for n in module.search_space([], "v5e") if n.endswith("_1")}
    with pltpu.force_tpu_interpret_mode():
        return found[0].name, module.kernel(*given, **rows)


@pytest.mark.parametrize("length", [40, 37, 5, 1])
def test_blocks_join_without_a_seam_at_any_length(length: int) -> None:
    """Partial blocks, one block, fewer rows than the shifts reach."""
    case = Case(
        "same", lambda x, w: taps(x, w, 1, 2), [matrices((2, 48, 128), (5, 128)), matrices((1, 40, 256), (5, 256))]
    )
    given = arguments([((2, length, 128), F32), ((5, 128), F32)], 100)
    name, got = run(case.op, case.sizes, given, 16)
    assert name == "fused"
    np.testing.assert_allclose(got, case.op(*given), rtol=1e-5, atol=1e-5)


def test_what_lies_outside_is_the_constant_whatever_the_rows_at_the_end_hold() -> None:
    def op(x: Any) -> Any:
        return jax.lax.rsqrt(padded(x, 0, 1)[:, 1:]) + padded(x, 1, 0)[:, :-1] * 0.0

    (x,) = arguments([((2, 40, 128), F32)], 100)
    given = [jnp.abs(x).at[0, 0, :3].set(jnp.nan).at[1, 39, 5:9].set(jnp.inf)]
    _, got = run(op, [matrices(s) for s in SIZES], given, 16)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(op(*given)))

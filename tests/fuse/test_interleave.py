"""Interleaved pairs become rolls and choices by lane, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from fuse_ops import every_two, grouped_attention, in_threes, partly_rotated, rope, rotated

from aka.fuse.graph import Graph, read
from aka.fuse.interleave import interleaved

Shapes = list[tuple[tuple[int, ...], str]]


def graph_of(op: Callable[..., Any], *sizes: Shapes) -> Graph:
    return read([jax.make_jaxpr(op)(*(jax.ShapeDtypeStruct(s, jnp.dtype(d)) for s, d in shapes)) for shapes in sizes])


def operations(graph: Graph) -> Counter[str]:
    return Counter(n.op for n in graph.nodes)


HEADS: Shapes = [((2, 16, 4, 128), "bfloat16"), ((16, 64), "float32"), ((16, 64), "float32")]
MORE: Shapes = [((1, 24, 2, 64), "bfloat16"), ((24, 32), "float32"), ((24, 32), "float32")]


def test_a_rotation_reads_its_argument_by_two_rolls_and_one_choice() -> None:
    made = operations(interleaved(graph_of(rotated, HEADS, MORE)))
    assert (made["roll"], made["select_n"], made["stack"], made["slice"]) == (2, 1, 0, 0)


def test_what_both_parts_compute_alike_is_computed_once() -> None:
    graph = interleaved(graph_of(rotated, HEADS, MORE))
    # even * cos and odd * cos are x * cos, each on the lanes where it is wanted.
    assert operations(graph)["mul"] == 3


def test_lanes_that_are_kept_take_part_so_that_none_is_moved() -> None:
    shapes: list[Shapes] = [[((b, 16, 3, 128), "float32"), ((b, 16), "int32")] for b in (2, 3)]
    made = operations(interleaved(graph_of(partly_rotated, *shapes)))
    assert (made["roll"], made["select_n"], made["slice"], made["concatenate"]) == (2, 2, 0, 0)


def test_repeated_results_of_the_op_are_computed_for_every_lane() -> None:
    shapes: list[Shapes] = [[((2, 3, s, 128), "float32"), ((s, 64), "float32")] for s in (16, 24)]
    graph = interleaved(graph_of(every_two, *shapes))
    (cos,) = (n for n in graph.nodes if n.op == "cos")
    assert graph.values[cos.outputs[0]].shape[-1] == (128, 128)


def test_any_number_of_parts() -> None:
    shapes: list[Shapes] = [[((m, n), "float32"), ((n // 3,), "float32")] for m, n in ((16, 384), (8, 192))]
    made = operations(interleaved(graph_of(in_threes, *shapes)))
    # Lanes of the first part find b one lane on, those of the second c, and those of the third a two lanes back.
    assert (made["roll"], made["select_n"], made["slice"]) == (2, 2, 0)


def test_ids_still_grow_along_the_program() -> None:
    graph = interleaved(graph_of(rotated, HEADS, MORE))
    for node in graph.nodes:
        assert max(node.arrays, default=-1) < min(node.outputs)


def with_sum(x: Any) -> Any:
    even, odd = x[:, 0::2], x[:, 1::2]
    return jnp.stack([even / jnp.sum(even, -1, keepdims=True), odd], -1).reshape(x.shape)


UNCHANGED = {
    "no joins": (rope, [((2, 16, 4, 128), "float32"), ((16, 64), "float32"), ((16, 64), "float32")]),
    "repeated heads": (grouped_attention, [((1, 32, 4, 64), "float32"), *[((1, 32, 2, 64), "float32")] * 2]),
    "two halves": (lambda x: jnp.stack(jnp.split(x, 2, -1), -1).reshape(x.shape), [((16, 256), "float32")]),
    "two arguments": (lambda a, b: jnp.stack([a, b], -1).reshape(16, 256), [((16, 128), "float32")] * 2),
    "slices alone": (lambda x: x[:, 0::2] * x[:, 1::2], [((16, 256), "float32")]),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_ops_without_such_pairs_stay_as_they_are(name: str) -> None:
    op, shapes = UNCHANGED[name]
    graph = graph_of(op, shapes)
    assert interleaved(graph) is graph


def test_a_sum_over_every_second_element_keeps_its_slice() -> None:
    made = operations(interleaved(graph_of(with_sum, [((16, 256), "float32")])))
    assert made["reduce_sum"] == 1
    assert made["slice"] == 1

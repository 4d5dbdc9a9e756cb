"""Pools of neighbouring lanes: left in their lanes where all of them are reduced in the end, else untouched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from aka.fuse.graph import Graph, read
from aka.fuse.pools import pooled


def graph(op: Callable[[Any], Any]) -> Graph:
    return read([jax.make_jaxpr(op)(jnp.ones((m, n))) for m, n in ((16, 256), (8, 384), (24, 512))])


def pools(x: Any, width: int = 2) -> Any:
    return x.reshape(x.shape[0], -1, width).max(-1)


def test_pools_that_are_reduced_stay_in_their_lanes() -> None:
    made = pooled(graph(lambda x: jnp.sum(jnp.exp(pools(x, 8)), -1)))
    ops = [n.op for n in made.nodes]
    assert ops.count("roll") == 6 and "reshape" not in ops
    assert all(s[0] in (1, 16, 256) for v in made.nodes for o in v.outputs for s in made.values[o].shape)


@pytest.mark.parametrize(
    "op",
    [
        pools,
        lambda x: jnp.sum(pools(x, 2), 0),
        lambda x: jnp.sum(pools(x, 2) * jnp.arange(x.shape[1] // 2), -1),
        lambda x: jnp.argmax(pools(x, 2), -1),
        lambda x: jnp.sum(x, -1),
    ],
)
def test_others_are_left_alone(op: Callable[[Any], Any]) -> None:
    before = graph(op)
    assert pooled(before) is before

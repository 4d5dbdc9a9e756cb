"""Which ops round on their way, so that a last-bit difference may become a whole step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from aka.evaluate import analysis


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (lambda x: jnp.round(x * 10), True),
        (lambda x: jnp.sign(x), True),
        (lambda x: (x * 127).astype(jnp.int8).astype(jnp.float32), True),
        (lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32), True),
        (lambda x: jax.nn.relu(x).astype(jnp.bfloat16), False),
        (lambda x: x + jnp.arange(4).astype(jnp.float32), False),
    ],
)
def test_ops_that_round_to_steps_are_known(op: Callable[[Any], Any], expected: bool) -> None:
    assert analysis.jumps(jax.make_jaxpr(op)(jnp.ones(4)).jaxpr) is expected

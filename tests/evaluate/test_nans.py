"""The op's references keep NaN through maxima, which XLA's CPU compiler alone does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from aka.evaluate import nans
nans.keep_in_reductions()
x = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
y = x.copy()
y[3, 7] = y[5, 200] = np.nan
ops = {
    "max": lambda x: x.max(-1), "min": lambda x: x.min(-1), "columns": lambda x: x.max(0),
    "window": lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 4), (1, 4), "VALID"),
    "integers": lambda x: (x * 100).astype(jnp.int32).max(-1), "all": lambda x: (x > -9).all(-1),
    "softmax": jax.nn.softmax,
}
plain = {"max": x.max(-1), "min": x.min(-1), "columns": x.max(0), "integers": (x * 100).astype(np.int32).max(-1)}
for name, op in ops.items():
    print(name, int(np.isnan(np.asarray(jax.jit(op)(y), np.float64)).sum()))
for name, want in plain.items():
    np.testing.assert_array_equal(jax.jit(ops[name])(x), want)
"""


@pytest.fixture(scope="module")
def counted() -> dict[str, int]:
    """NaN in each op's result, of a process of its own: lowering rules are for a whole process."""
    made = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    return {name: int(count) for name, count in (line.split() for line in made.stdout.splitlines())}


@pytest.mark.parametrize(
    ("name", "nans"),
    [("max", 2), ("min", 2), ("columns", 2), ("window", 2), ("integers", 0), ("all", 0), ("softmax", 512)],
)
def test_maxima_keep_nan_and_nothing_else_changes(counted: dict[str, int], name: str, nans: int) -> None:
    assert counted[name] == nans

"""Workloads that no kernel can be judged by are refused, and those that judge badly are named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aka.cli import compose
from aka.errors import WorkloadError
from aka.types import Workload
from aka.workload.read import read_workload

OP = """
import jax
import jax.numpy as jnp
import numpy as np

CONFIG = {"name": "made", "rows": 1024, "cols": 1024}
TEST_SHAPES = [{"rows": 64, "cols": 256}, {"rows": 16, "cols": 128}]


def create_inputs():
    keys = jax.random.split(jax.random.key(0))
    return jax.random.normal(keys[0], (CONFIG["rows"], CONFIG["cols"])), jax.random.normal(keys[1], (CONFIG["cols"],))


def workload(x, gain):
    return BODY
"""


@pytest.fixture(scope="module")
def bench() -> Iterator[compose.Bench]:
    with compose.bench("v5e", trials=False) as made:
        yield made


def admitted(bench: compose.Bench, folder: Path, body: str) -> Workload:
    op = folder / "op.py"
    op.write_text(OP.replace("BODY", body))
    return bench.judge.admit(bench.client.describe(read_workload(op)))


@pytest.mark.parametrize(
    ("body", "weak"),
    [
        ("jax.nn.relu(x) * jax.nn.gelu(gain)", ()),
        ("x + jax.random.normal(jax.random.key(3), x.shape) * gain", ()),
        ("jax.nn.softmax(x)", ("no output depends on input gain",)),
        ("(x * gain, (x.sum() * 0).astype(jnp.int32))", ("output 1 is the same for every input",)),
    ],
    ids=["sound", "fixed key", "unused input", "constant output"],
)
def test_named(bench: compose.Bench, tmp_path: Path, body: str, weak: tuple[str, ...]) -> None:
    assert admitted(bench, tmp_path, body).weak == weak


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("x * 0 + 1", "output 0 is the same for every input"),
        ("x.sum() * 1e-20 * gain", "output 0 is tiny"),
        ("x / 0.0", "output 0 is never finite"),
        ("jnp.broadcast_to(x.sum(), x.shape)", "output 0 is constant"),
        ("x * gain * np.random.rand()", "two traces"),
        ("x * gain * np.float32([np.nan, np.random.rand()])[1]", "two traces"),
    ],
    ids=["zeros", "tiny", "infinite", "constant", "random", "random constant"],
)
def test_refused(bench: compose.Bench, tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(WorkloadError, match=words) as refused:
        admitted(bench, tmp_path, body)
    assert "\n" not in str(refused.value)


def test_inputs_of_one_value_are_named_as_the_cause(bench: compose.Bench, tmp_path: Path) -> None:
    op = tmp_path / "op.py"
    ones = OP.replace("jax.random.normal(keys[0], ", "jnp.ones(").replace("jax.random.normal(keys[1], ", "jnp.ones(")
    op.write_text(ones.replace("BODY", "jax.nn.softmax(x * gain)"))
    with pytest.raises(WorkloadError, match=r"so are the inputs.*random") as refused:
        bench.judge.admit(bench.client.describe(read_workload(op)))
    assert "\n" not in str(refused.value)
    with pytest.raises(WorkloadError) as other:
        admitted(bench, tmp_path, "x * 0 + 1")
    assert "so are the inputs" not in str(other.value)

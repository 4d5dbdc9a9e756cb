"""What random honest workloads are made of: the op's file, sizes that need not divide, formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]
OP = """import jax
import jax.numpy as jnp

CONFIG = {config}
TEST_SHAPES = {shapes}


def _inputs(seed):
    keys, c = jax.random.split(jax.random.key(seed), {count}), CONFIG
    return ({inputs},)


def create_inputs():
    return _inputs(0)

{make_inputs}
def workload({names}):
{reference}
"""
MAKE_INPUTS = """
def make_inputs(seed, shape):
    return _inputs(seed)

"""
HEAD = """import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

"""
F32 = "jnp.float32"
DTYPES = {"float32": F32, "bfloat16": "jnp.bfloat16"}
UNARY = {  # formulas in float32 of a value v, from what is finite to what is finite
    "relu": "jnp.maximum(v, 0.0)",
    "tanh": "jnp.tanh(v)",
    "sigmoid": "1.0 / (1.0 + jnp.exp(-v))",
    "gelu": "0.5 * v * (1.0 + jnp.tanh(0.7978845608 * (v + 0.044715 * v * v * v)))",
    "square": "v * v",
    "softplus": "jnp.maximum(v, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(v)))",
    "clip": "jnp.minimum(jnp.maximum(v, -1.5), 2.5)",
    "shift": "v * 0.75 + 0.5",
    "root": "jnp.sqrt(jnp.abs(v) + 1.0)",
}


@dataclass(frozen=True)
class Example:
    """A workload's file and a candidate that computes it."""

    kind: str
    op: str
    code: str


@dataclass
class Op:
    """What an op's file is made of: `sizes` are CONFIG's keys, `tested` the sets of them in
    TEST_SHAPES (none: CONFIG's own), `arrays` name -> (dimensions, dtype, how drawn)."""

    sizes: dict[str, int]
    tested: list[dict[str, int]]
    arrays: dict[str, tuple[str, str, str]]
    reference: str

    def text(self) -> str:
        made = [self._array(i, *array) for i, array in enumerate(self.arrays.values())]
        whole = any(how for _, _, how in self.arrays.values())
        return OP.format(
            config=self.sizes, shapes=self.tested or [self.sizes], count=len(made), inputs=", ".join(made),
            names=", ".join(self.arrays), reference=indented(self.reference), make_inputs=MAKE_INPUTS if whole else "",
        )  # fmt: skip

    @staticmethod
    def _array(number: int, dims: str, dtype: str, how: str) -> str:
        shape = "(" + ", ".join(d if d.isdigit() else f"c[{d!r}]" for d in dims.split()) + ",)"
        drawn = how.format(key=f"keys[{number}]", shape=shape) or f"jax.random.normal(keys[{number}], {shape})"
        return f"{drawn}.astype(jnp.{dtype})"


def sizes(draw: Draw, **blocks: tuple[int, int]) -> tuple[dict[str, int], list[dict[str, int]]]:
    """Sizes, and in one of three draws others for TEST_SHAPES. Of each (block, most): 2 to `most` blocks, the last one
    whole or not; the others 1 to 2, so that the judge has to find out itself where the grid takes several steps."""
    first, other = {}, {}
    for name, (block, most) in blocks.items():
        steps = draw(st.integers(2, most))
        first[name] = steps * block - draw(st.sampled_from([0, 0, 1, 3, block // 2]))
        other[name] = draw(st.integers(1, 2)) * block - draw(st.sampled_from([0, 1, 5]))
    return first, [other] if draw(st.integers(0, 2)) == 0 else []


def dtype(draw: Draw) -> str:
    return str(draw(st.sampled_from(["float32", "float32", "bfloat16"])))


def rows_block(draw: Draw) -> int:
    return int(draw(st.sampled_from([16, 32])))


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines())

"""Kernels of manual copies for `x * 2 + 1`: an honest one, and edits that make it racy.

Each racy one gives the right values wherever copies land when they are waited for, in the order of the waits. On a chip
they may land at any time between start and wait.
"""

from __future__ import annotations

HEAD = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

"""

OP = """
import jax
import jax.numpy as jnp

CONFIG = {"rows": 512, "cols": 256}
TEST_SHAPES = [{"rows": 64, "cols": 256}, {"rows": 48, "cols": 128}]


def create_inputs(dtype=jnp.float32):
    return (jax.random.normal(jax.random.key(0), (CONFIG["rows"], CONFIG["cols"]), dtype),)


def workload(x):
    return x * 2.0 + 1.0
"""

STREAMED = (
    HEAD
    + """
def _body(x_ref, o_ref, a_ref, b_ref, sem):
    n = x_ref.shape[0] // 8

    def fetch(i, slot):
        return pltpu.make_async_copy(x_ref.at[pl.ds(i * 8, 8)], a_ref.at[slot], sem.at[slot])

    def store(i):
        return pltpu.make_async_copy(b_ref, o_ref.at[pl.ds(i * 8, 8)], sem.at[2])

    fetch(0, 0).start()

    @pl.loop(0, n)
    def _(i):
        slot = jax.lax.rem(i, 2)

        @pl.when(i + 1 < n)
        def _():
            fetch(i + 1, 1 - slot).start()

        fetch(i, slot).wait()
        b_ref[...] = a_ref[slot] * 2.0 + 1.0
        store(i).start()
        store(i).wait()


def workload(x):
    r, c = x.shape
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        _body, in_specs=[anywhere], out_specs=anywhere, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.VMEM((2, 8, c), x.dtype), pltpu.VMEM((8, c), x.dtype), pltpu.SemaphoreType.DMA((3,))],
    )(x)
"""
)
"""Honest: the next block is on its way into the other slot while this one is computed."""


def edited(*edits: tuple[str, str]) -> str:
    made = STREAMED
    for old, new in edits:
        assert old in made
        made = made.replace(old, new)
    return made


WAITED = "        fetch(i, slot).wait()\n"
RACY = {
    "next_block_into_the_slot_that_is_read": edited(
        (WAITED, ""), ("        @pl.when(i + 1", WAITED + "\n        @pl.when(i + 1"),
        ("a_ref.at[slot]", "a_ref.at[0]"), ("a_ref[slot]", "a_ref[0]"),
    ),
    "cleared_while_its_copy_is_on_the_way": edited((WAITED, "        a_ref[slot] = jnp.zeros_like(b_ref)\n" + WAITED)),
    "two_copies_to_one_place": edited(
        ("pltpu.SemaphoreType.DMA((3,))", "pltpu.SemaphoreType.DMA((4,))"),
        (
            "        store(i).start()\n",
            "        old = pltpu.make_async_copy(a_ref.at[slot], o_ref.at[pl.ds(i * 8, 8)], sem.at[3])\n"
            "        old.start()\n        store(i).start()\n        old.wait()\n",
        ),
    ),
}  # fmt: skip

SHARED_BLOCK = (
    HEAD
    + """
def _body(x_ref, o_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        o_ref[...] = x_ref[...] * 2.0 + 1.0


def workload(x):
    spec = pl.BlockSpec(x.shape, lambda i: (0, 0))
    return pl.pallas_call(
        _body, grid=(4,), in_specs=[spec], out_specs=spec, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x)
"""
)
"""Right on one core. On two, the second one writes back a block that it never filled: whichever comes last."""

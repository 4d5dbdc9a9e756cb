"""How a workload's arguments and constants come to stand for a kernel's, and the facts read off a jaxpr."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aka.evaluate import analysis, binding


def arrays(*specs: tuple[Any, ...]) -> list[Any]:
    return [jax.ShapeDtypeStruct(shape, dtype) for *shape, dtype in specs]


@pytest.mark.parametrize(
    ("signature", "leaves", "outputs", "orders"),
    [
        ("x:f[m,k], w:f[k,n] -> f[m,n]", [(8, 4, "f4"), (4, 2, "f4")], [(8, 2, "f4")], [(0, 1)]),
        ("x:f[m,k], w:f[k,n] -> f[m,n]", [(4, 2, "f4"), (8, 4, "f4")], [(8, 2, "f4")], [(1, 0)]),
        ("x:f[m,k], w:f[k,n] -> f[m,n]", [(8, 8, "f4"), (8, 8, "f4")], [(8, 8, "f4")], [(0, 1), (1, 0)]),
        ("x:f[*r,d], s:f[d] -> f[*r,d]", [(4, "f4"), (2, 3, 4, "f4")], [(2, 3, 4, "f4")], [(1, 0)]),
        ("x:f[*r,d], s:f[d] -> f[*r,d]", [(4, "f4"), (4, "f4")], [(4, "f4")], [(0, 1), (1, 0)]),
        ("x:f[*r,d], s:f[d] -> f[*r]", [(2, 4, "f4"), (4, "f4")], [(2, "f4")], [(0, 1)]),
        ("x:f[n], i:i[n] -> f[n]", [(4, "i4"), (4, "bfloat16")], [(4, "f4")], [(1, 0)]),
        ("x:f[n], m:b[n] -> f[n]", [(4, "bool"), (4, "f4")], [(4, "f4")], [(1, 0)]),
        ("x:int8[n], s:f[] -> f[n]", [(4, "i1"), ("f4",)], [(4, "f4")], [(0, 1)]),
        ("x:int8[n], s:f[] -> f[n]", [(4, "i4"), ("f4",)], [(4, "f4")], []),
        ("x:f[n,128] -> f[n]", [(4, 64, "f4")], [(4, "f4")], []),
        ("x:f[n] -> f[n], i[n]", [(4, "f4")], [(4, "f4"), (4, "i4")], [(0,)]),
        ("x:f[n] -> f[n]", [(4, "f4")], [(4, "f4"), (4, "i4")], []),
        ("x:f[n] -> f[n]", [(4, "f4"), (4, "f4")], [(4, "f4")], []),
    ],
)
def test_assignments_are_all_that_unify(signature: str, leaves: Any, outputs: Any, orders: list[Any]) -> None:
    pattern = binding.parse(signature)
    assert list(binding.assignments(pattern, arrays(*leaves), arrays(*outputs))) == orders


@pytest.mark.parametrize(
    "text", ["x:f[n]", "f[n] -> f[n]", "x:f[n, y:f[n] -> f[n]", "x -> f[n]", "x:f(n) -> f[n]", "x:f[*a,*b] -> f[1]"]
)
def test_a_signature_that_is_not_understood_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="signature"):
        binding.parse(text)


def values(kind: str, literals: list[float], **defaults: Any) -> list[Any]:
    return [c["s"] for c in binding.static_choices({"s": kind}, literals, defaults)]


def test_the_workloads_own_constants_come_before_a_kernels_default() -> None:
    assert values("float", [1e-5, 8.0], s=1e-6) == [1e-5, 8.0, 1.0, 1e5, 0.125, 1e-6]
    assert values("float", [1e-5, 1e-6], s=1e-6)[0] == 1e-6
    assert values("float", [0.5], s=None)[0] is None
    assert values("int", [2.0, 2.5, 4.0], s=3) == [2, 4, 3]
    assert values("bool", [], s=False) == [False, True]
    assert values("float", [0.0, 1e-45]) == [0.0, 1e-45, 1.0]


def test_combinations_are_bounded() -> None:
    literals = [float(i) for i in range(2, 60)]
    made = binding.static_choices({"a": "float", "b": "float"}, literals, {})
    assert len(made) == binding.MAX_STATICS
    assert binding.static_choices({}, literals, {}) == [{}]


EPS = """
import jax
import jax.numpy as jnp
def reference(x, *, eps=1e-6):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps)
"""


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 1e-3, 2e-12])
def test_the_closest_constant_is_taken_not_the_first_that_is_close_enough(eps: float) -> None:
    def op(x: jax.Array) -> jax.Array:
        return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + eps)

    x = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    closed = jax.make_jaxpr(op)(x)
    kernel = {"id": "k", "source": EPS, "signature": "x:f[*r,d] -> f[*r,d]", "statics": {"eps": "float"}}
    made = binding.bind_all(closed, [x], [kernel], analysis.literals(closed))
    assert made["bindings"][0]["statics"] == {"eps": eps} and made["bindings"][0]["error"] < 1e-6


def flops(fn: Any, *shapes: tuple[int, ...]) -> float:
    return analysis.dot_flops(jax.make_jaxpr(fn)(*(jnp.zeros(s) for s in shapes)).jaxpr)


def test_flops_of_products_loops_and_branches() -> None:
    dot = 2.0 * 8 * 16 * 32
    assert flops(lambda a, b: jnp.exp(a @ b), (8, 16), (16, 32)) == dot
    assert flops(jax.jit(lambda a, b: a @ b), (8, 16), (16, 32)) == dot
    assert flops(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (3, 8, 16), (3, 16, 32)) == 3 * dot
    scanned = lambda a, b: jax.lax.scan(lambda c, _: (c, a @ b), 0.0, length=5)[1]  # noqa: E731
    assert flops(scanned, (8, 16), (16, 32)) == 5 * dot
    branches = lambda a, b: jax.lax.cond(a[0, 0] > 0, lambda: a @ b, lambda: (a @ b) @ jnp.ones((32, 32)))  # noqa: E731
    assert flops(branches, (8, 16), (16, 32)) == dot + 2 * 8 * 32 * 32
    conv = lambda x, w: jax.lax.conv(x, w, (1, 1), "SAME")  # noqa: E731
    assert flops(conv, (2, 3, 10, 10), (5, 3, 3, 3)) == 2 * (2 * 5 * 10 * 10) * 3 * 3 * 3


def test_literals_are_short_and_primitives_are_counted_at_every_depth() -> None:
    closed = jax.make_jaxpr(jax.jit(lambda x: jax.nn.silu(x * 0.1 + 1e-6) + jnp.float32(3)))(jnp.ones(4))
    assert {0.1, 1e-6, 3.0} <= set(analysis.literals(closed))
    counted = analysis.primitives(closed.jaxpr)
    assert counted["logistic"] == 1 and not {"pjit", "jit", "custom_jvp_call"} & counted.keys()


def window(indices: list[list[int]], array: tuple[int, ...], block: tuple[int, ...], output: bool) -> Any:
    return SimpleNamespace(indices=np.array(indices), array=array, block=block, is_output=output)

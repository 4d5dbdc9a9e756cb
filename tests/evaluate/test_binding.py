"""How a workload's arguments and constants come to stand for a kernel's, and the facts read off a jaxpr."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aka.evaluate import analysis, binding, statics


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
    return [c["s"] for c in statics.choices({"s": kind}, literals, defaults)]


def test_the_workloads_own_constants_come_before_a_kernels_default() -> None:
    assert values("float", [8.0, 1e-5], s=1e-6) == [1e-5, 8.0, 0.125, 1.0, 1e5, 1e-6]
    assert values("float", [1e-5, 1e-6], s=1e-6)[0] == 1e-6
    assert values("float", [0.5], s=None)[0] is None
    assert values("int", [2.0, 2.5, 4.0], s=3) == [4, 2, 3]
    assert values("bool", [], s=False) == [False, True]
    assert values("float", [0.0, 1e-45]) == [0.0, 1e-45, 1.0]


def test_combinations_are_bounded() -> None:
    literals = [float(i) for i in range(2, 60)]
    made = statics.choices({"a": "float", "b": "float"}, literals, {})
    assert len(made) == statics.MAX_STATICS
    assert statics.choices({}, literals, {}) == [{}]


def test_combinations_vary_every_parameter_before_they_end() -> None:
    """A product would try 400 values of the last three while the first two stand still."""
    names = ["a", "b", "c", "d", "e"]
    made = statics.choices(dict.fromkeys(names, "float"), [2.0, 4.0, 8.0, 16.0], dict.fromkeys(names, 2.0))
    assert list(made[0].values()) == [2.0] * 5
    changed = [sum(v != 2.0 for v in m.values()) for m in made]
    assert changed[1:6] == [1] * 5 and {n for m in made[1:6] for n in names if m[n] != 2.0} == set(names)
    assert len({tuple(m.values()) for m in made}) == len(made) == statics.MAX_STATICS


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


ADAMW = """
import jax.numpy as jnp
def reference(p, g, m, v, *, lr=1e-3, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01):
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    return p - lr * (m / (jnp.sqrt(v) + eps) + weight_decay * p), m, v
"""
RATES = {"lr": 3e-4, "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1}


def bound_adamw(rates: dict[str, float], direction: Callable[[Any, Any], Any]) -> Any:
    """What the kernel's constants are bound to for a step with these rates, which moves p along a `direction`."""

    def op(p: Any, g: Any, m: Any, v: Any) -> Any:
        m = rates["b1"] * m + (1 - rates["b1"]) * g
        v = rates["b2"] * v + (1 - rates["b2"]) * jnp.square(g)
        return p - rates["lr"] * (direction(m, v) + rates["weight_decay"] * p), m, v

    chance = np.random.default_rng(0)
    arrays = [np.abs(chance.normal(size=(32, 128))).astype(np.float32) for _ in range(4)]
    closed = jax.make_jaxpr(op)(*arrays)
    signature = ", ".join(f"{n}:f[*s]" for n in "pgmv") + " -> f[*s], f[*s], f[*s]"
    names = ("b1", "b2", "eps", "weight_decay", "lr")
    kernel = {"id": "k", "source": ADAMW, "signature": signature, "statics": dict.fromkeys(names, "float")}
    made = binding.bind_all(closed, arrays, [kernel], analysis.literals(closed))
    return made["bindings"][0]["statics"] if made["bindings"] else made["refused"]["k"]


def test_five_constants_are_found() -> None:
    assert bound_adamw(RATES, lambda m, v: m / (jnp.sqrt(v) + 1e-8)) == RATES


def test_a_move_that_is_small_beside_the_parameters_is_compared_as_a_move() -> None:
    """Another rule of the update is within 1e-4 of the new parameters at this rate, whatever it does."""
    assert "computes something else" in bound_adamw(RATES | {"lr": 3e-5}, lambda m, v: m)


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

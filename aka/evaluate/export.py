"""Worker side: from a Python function to exported artifacts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export
from jax.extend import core as jex

from aka.evaluate import loading

# `mpmd_map` is what pl.kernel lowers to; `core_map` computes zeros in interpret mode on jax 0.10.
KERNEL_PRIMITIVES = ("pallas_call", "core_map", "mpmd_map")
CALLBACKS = ("pure_callback", "io_callback", "debug_callback", "outside_call", "host_callback")
MAX_BYTES = 8 << 20


class Forbidden(Exception):
    """The candidate uses something that no kernel may use; the text names it."""


class Nondeterministic(Exception):
    """Two traces of the same function at the same shapes differ."""


def trace(fn: Callable[..., Any], sig: Mapping[str, Any], *, twice: bool = False) -> tuple[Any, Any]:
    """The closed jaxpr of `fn` over flat leaves, and the signature of its outputs. With `twice`, a second trace
    through a fresh closure (JAX caches traces by function) must give the same program, else Nondeterministic."""
    closed, outputs = _trace_once(fn, sig)
    if twice and not _same(_trace_once(fn, sig)[0], closed):
        raise Nondeterministic("two traces at the same shapes gave different programs")
    return closed, outputs


def _same(a: Any, b: Any) -> bool:
    """Equations and constants; the text of a jaxpr leaves out what its constants hold."""
    pairs = [(np.asarray(x), np.asarray(y)) for x, y in zip(a.consts, b.consts, strict=True)]
    return str(a) == str(b) and all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in pairs)


def _trace_once(fn: Callable[..., Any], sig: Mapping[str, Any]) -> tuple[Any, Any]:
    seen: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        made = loading.as_arrays(fn(*loading.build_tree(sig["tree"], leaves)))
        seen.append(loading.signature(made))
        return loading.describe_tree(made)[0]

    closed = jax.make_jaxpr(flat)(*loading.structs(sig))
    return closed, seen[0]


def forbid(closed: Any) -> None:
    """Raises Forbidden if the program calls back into Python."""
    from aka.evaluate.analysis import equations

    for eqn, _ in equations(closed.jaxpr):
        if eqn.primitive.name in CALLBACKS:
            raise Forbidden(f"{eqn.primitive.name}: a kernel may not call back into Python")


def to_bytes(fn: Callable[..., Any], avals: Sequence[Any], platform: str) -> bytes:
    """`fn` over flat leaves, exported for "tpu" or "cpu". Raises ValueError when the artifact is over 8 MiB."""
    data = bytes(export.export(jax.jit(fn, keep_unused=True), platforms=[platform])(*avals).serialize())
    if len(data) > MAX_BYTES:
        raise ValueError(f"artifact of {len(data)} bytes; at most {MAX_BYTES} (does the program hold large constants?)")
    return data


def tpu_bytes(closed: Any) -> bytes:
    """A closed jaxpr exported for TPU; the chip's abstract mesh must be in scope."""
    avals = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in closed.in_avals]
    return to_bytes(jex.jaxpr_as_fun(closed), avals, "tpu")


def cpu_bytes(closed: Any) -> bytes:
    """The same jaxpr exported for CPU with every kernel in interpret mode; call it outside the chip's mesh."""
    avals = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in closed.in_avals]
    plain = jex.ClosedJaxpr(_interpreted(closed.jaxpr), closed.consts)
    return to_bytes(jex.jaxpr_as_fun(plain), avals, "cpu")


def _interpreted(jaxpr: Any) -> Any:
    def params(eqn: Any) -> dict[str, Any]:
        if eqn.primitive.name in KERNEL_PRIMITIVES:
            return {**eqn.params, "interpret": True}
        return {k: _inside(v) for k, v in eqn.params.items()}

    return jaxpr.replace(eqns=[e.replace(params=params(e)) for e in jaxpr.eqns])


def _inside(value: Any) -> Any:
    if isinstance(value, jex.ClosedJaxpr):
        return jex.ClosedJaxpr(_interpreted(value.jaxpr), value.consts)
    if isinstance(value, jex.Jaxpr):
        return _interpreted(value)
    return type(value)(_inside(i) for i in value) if type(value) in (tuple, list) else value

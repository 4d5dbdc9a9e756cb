"""How each JAX primitive is evaluated once every float is a float64 (worker side; see `aka.evaluate.float64`).

A primitive without a rule is bound as it is, on float64; one whose parameters hold a jaxpr or a float dtype that no
rule here knows is refused, so that a new JAX can't slip a narrow float through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr

# JAX types these only in part.
dtypes: Any = jax.dtypes
barrier: Any = lax.optimization_barrier

# Their value depends on the dtype's bits, on state, or on a world outside of the jaxpr.
_NEVER = frozenset({"nextafter", "shard_map", "pallas_call", "custom_partitioning", "rng_uniform", "ffi_call"})


class Lifter(Protocol):
    """What a rule needs of the interpreter."""

    @property
    def mxu_bf16(self) -> bool: ...

    @property
    def nan_as(self) -> int: ...

    def inline(self, body: Any, args: Sequence[Any]) -> list[Any]:
        """Evaluate a jaxpr (closed, or open without constants) here."""
        ...

    def retrace(self, body: Any) -> Any:
        """The same jaxpr over float64."""
        ...


Rule = Callable[[Lifter, Any, list[Any]], Sequence[Any]]


class NotLiftable(Exception):
    """The op holds a primitive that has no float64 twin; the caller falls back to the native precision and says so."""

    def __init__(self, primitive: str, why: str = "") -> None:
        super().__init__(f"{primitive} cannot be evaluated in float64" + (f": {why}" if why else ""))
        self.primitive = primitive


def lifted_dtype(dtype: Any) -> Any:
    """float64 for floats, complex128 for complex numbers, else the dtype itself."""
    if dtypes.issubdtype(dtype, np.floating):
        return np.dtype(np.float64)
    return np.dtype(np.complex128) if dtypes.issubdtype(dtype, np.complexfloating) else dtype


def apply_rule(lifter: Lifter, eqn: Any, args: list[Any]) -> Sequence[Any]:
    """The results of one equation; raises NotLiftable."""
    name = eqn.primitive.name
    if name in _NEVER or name.startswith("random_") or "callback" in name:
        raise NotLiftable(name)
    return _RULES.get(name, _bind)(lifter, eqn, args)


def dtype_of(atom: Any) -> Any:
    return atom.aval.dtype


def lift(value: Any, dtype: Any) -> Any:
    """`value`, which has `dtype` in the op, as the array that stands for it (float64 if it is a float)."""
    if dtypes.issubdtype(dtype, dtypes.extended):
        raise NotLiftable("random key")
    if getattr(value, "dtype", None) is None:
        value = np.asarray(value, dtype)
    return lax.convert_element_type(value, lifted_dtype(dtype))


def _bind(lifter: Lifter, eqn: Any, args: list[Any]) -> Sequence[Any]:
    """Any primitive whose meaning doesn't hang on a float dtype: the same one, on float64."""
    params = dict(eqn.params)
    for key, value in params.items():
        if isinstance(value, Jaxpr | ClosedJaxpr) or _is_narrow_dtype(value):
            raise NotLiftable(eqn.primitive.name, f"its parameter {key} is not known")
    return _call(eqn.primitive, args, params)


def _call(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Sequence[Any]:
    out = primitive.bind(*args, **params)
    return list(out) if primitive.multiple_results else [out]


def _is_narrow_dtype(value: Any) -> bool:
    return isinstance(value, np.dtype) and dtypes.issubdtype(value, np.inexact)


def _convert(lifter: Lifter, eqn: Any, args: list[Any]) -> Sequence[Any]:
    target = eqn.params["new_dtype"]
    if dtypes.issubdtype(target, np.floating) and dtypes.finfo(target).bits <= 8:
        # The barrier keeps XLA from simplifying the pair of casts away.
        args = [barrier(lax.convert_element_type(args[0], target))]
    if dtypes.issubdtype(target, np.integer) and dtypes.issubdtype(args[0].dtype, np.floating):
        # XLA leaves open what integer a NaN becomes.
        args = [lax.select(args[0] != args[0], lax.full_like(args[0], lifter.nan_as), args[0])]
    return [lax.convert_element_type(args[0], lifted_dtype(target))]


def _reduce_precision(lifter: Lifter, eqn: Any, args: list[Any]) -> Sequence[Any]:
    bits = 1 + eqn.params["exponent_bits"] + eqn.params["mantissa_bits"]
    return args if bits > 8 else _call(eqn.primitive, args, dict(eqn.params))


def _dot(lifter: Lifter, eqn: Any, args: list[Any]) -> Sequence[Any]:
    out = eqn.outvars[0].aval.dtype
    if not dtypes.issubdtype(out, np.inexact):
        return _call(eqn.primitive, args, dict(eqn.params))
    if lifter.mxu_bf16:
        args = [_mxu_operand(x, v.aval.dtype, eqn.params["precision"]) for x, v in zip(args, eqn.invars, strict=True)]
    args[:2] = [lax.convert_element_type(x, lifted_dtype(out)) for x in args[:2]]
    params = eqn.params | {"precision": (lax.Precision.HIGHEST,) * 2, "preferred_element_type": lifted_dtype(out)}
    return _call(eqn.primitive, args, params)


def _mxu_operand(value: Any, dtype: Any, precision: Any) -> Any:
    if not dtypes.issubdtype(dtype, np.floating):
        return value
    one_pass = all(
        p in (None, lax.Precision.DEFAULT) for p in (precision if isinstance(precision, tuple) else (precision,))
    )
    if dtype == dtypes.bfloat16 or (dtype == np.float32 and one_pass):
        return lax.reduce_precision(value, exponent_bits=8, mantissa_bits=7)
    return value


def _bitcast(lifter: Lifter, eqn: Any, args: list[Any]) -> Sequence[Any]:
    dtypes_seen = (eqn.invars[0].aval.dtype, eqn.params["new_dtype"])
    if any(dtypes.issubdtype(d, np.inexact) for d in dtypes_seen):
        raise NotLiftable(eqn.primitive.name, "the bits of a float")
    return _call(eqn.primitive, args, dict(eqn.params))


def _retyped(key: str) -> Rule:
    def rule(lifter: Lifter, eqn: Any, args: list[Any]) -> Sequence[Any]:
        return _call(eqn.primitive, args, eqn.params | {key: lifted_dtype(eqn.params[key])})

    return rule


def _combiner(lifter: Lifter, eqn: Any, args: list[Any]) -> Sequence[Any]:
    """Primitives that carry a small scalar jaxpr (how to combine two values)."""
    bodies = {k: lifter.retrace(v) for k, v in eqn.params.items() if isinstance(v, Jaxpr | ClosedJaxpr)}
    return _call(eqn.primitive, args, eqn.params | bodies)


def _scan(lifter: Lifter, eqn: Any, args: list[Any]) -> Sequence[Any]:
    p = eqn.params
    first, last = p["num_consts"], p["num_consts"] + p["num_carry"]

    def body(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        out = lifter.inline(p["jaxpr"], [*args[:first], *carry, *xs])
        return out[: p["num_carry"]], out[p["num_carry"] :]

    carry, ys = lax.scan(body, args[first:last], args[last:], length=p["length"], reverse=p["reverse"])
    return [*carry, *ys]


def _while(lifter: Lifter, eqn: Any, args: list[Any]) -> Sequence[Any]:
    p = eqn.params
    n, m = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
    out: Sequence[Any] = lax.while_loop(
        lambda state: lifter.inline(p["cond_jaxpr"], [*args[:n], *state])[0],
        lambda state: lifter.inline(p["body_jaxpr"], [*args[n:m], *state]),
        args[m:],
    )
    return out


def _cond(lifter: Lifter, eqn: Any, args: list[Any]) -> Sequence[Any]:
    branches = [lambda *ops, b=b: lifter.inline(b, ops) for b in eqn.params["branches"]]
    out: Sequence[Any] = lax.switch(lax.convert_element_type(args[0], np.int32), branches, *args[1:])
    return out


_RULES: dict[str, Rule] = {
    "convert_element_type": _convert,
    "reduce_precision": _reduce_precision,
    "dot_general": _dot,
    "ragged_dot_general": _dot,
    "conv_general_dilated": _dot,
    "bitcast_convert_type": _bitcast,
    "iota": _retyped("dtype"),
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
_COMBINERS = "scatter scatter-add scatter_add scatter-sub scatter_sub scatter-mul scatter_mul scatter-min scatter_min"
_COMBINERS += " scatter-max scatter_max reduce reduce_window select_and_scatter"
_RULES |= dict.fromkeys(_COMBINERS.split(), _combiner)

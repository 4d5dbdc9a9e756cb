"""The op's own mathematics in float64: a jaxpr interpreter that drops every float-narrowing cast (worker side).

Every floating value, whatever its dtype in the op, is carried as float64 (complex as complex128), so a bfloat16 cast,
a `reduce_precision` or a `preferred_element_type` loses nothing. What stays as the op wrote it: integers and booleans
with their dtype and wrap-around, casts from float to integer, and casts to 8-bit (or smaller) floats, whose rounding is
the op's meaning and not an accident of its precision. Literals keep the value that they have in the op's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from aka.evaluate import analysis
from aka.evaluate.lift_rules import NotLiftable, apply_rule, dtype_of, lift, lifted_dtype

__all__ = [
    "NotLiftable",
    "References",
    "evaluate64",
    "lifted_dtype",
    "lifted_specs",
    "primitives",
    "reference_functions",
    "uses_dots",
]

# JAX types it only in part.
Spec: Any = jax.ShapeDtypeStruct
_INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_vmap_call": "call",
    "composite": "jaxpr",
}


class References(NamedTuple):
    """Three jittable callables with the op's own argument and result trees.

    `exact` and `chip` return float64 for every float; `chip` rounds dot and conv operands as a TPU's one pass does.
    """

    exact: Callable[..., Any]
    chip: Callable[..., Any]
    native: Callable[..., Any]


def evaluate64(
    closed_jaxpr: ClosedJaxpr, *args: Any, mxu_bf16: bool = False, grid: float | None = None, nan_as: int = 0
) -> list[Any]:
    """The flat results of `closed_jaxpr` in float64; `args` are its flat inputs, in its own dtypes or as float64.

    With `mxu_bf16`, float32 operands of a dot or conv of default precision are rounded to bfloat16 (to nearest, ties
    to even) before an exact accumulation, and bfloat16 ones too, which other passes have left unrounded.
    With `grid` (a factor such as 1.2), every intermediate that the op itself holds in bfloat16 or float16 is rounded to
    that precision, on a number grid scaled by the factor: another draw of the same rounding errors, which tells how
    much they matter. Results are not rounded. A NaN that is cast to an integer becomes `nan_as`. Raises NotLiftable.
    Works under any JAX transformation and enters x64 by itself.
    """
    with jax.enable_x64(True):
        return _Lift(mxu_bf16, grid, nan_as).run(closed_jaxpr.jaxpr, closed_jaxpr.consts, args, last=True)


def reference_functions(fn: Callable[..., Any], examples: Sequence[Any] | None = None) -> References:
    """`fn` exactly, as a TPU's dots allow, and natively (matmul precision "highest").

    `examples` (arrays or ShapeDtypeStructs, one pytree per argument) fix the op's dtypes, so that `exact` and `chip`
    may then be called and exported with float64 inputs; without them the arguments themselves must have those dtypes.
    """

    def lifted_fn(mxu_bf16: bool) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            closed, tree = _trace(fn, args if examples is None else examples)
            return tree.unflatten(evaluate64(closed, *jax.tree.leaves(args), mxu_bf16=mxu_bf16))

        return call

    def native(*args: Any) -> Any:
        with jax.enable_x64(False), jax.default_matmul_precision("highest"):
            return fn(*args)

    return References(lifted_fn(False), lifted_fn(True), native)


def lifted_specs(examples: Any) -> Any:
    """The same tree as ShapeDtypeStructs, with float64 (complex128) in place of every float (complex) dtype."""
    return jax.tree.map(lambda x: Spec(np.shape(x), lifted_dtype(x.dtype)), examples)


def uses_dots(fn: Callable[..., Any], examples: Sequence[Any]) -> bool:
    """Whether `fn` has a dot or conv anywhere, so that the `chip` reference can differ from the exact one."""
    return analysis.uses_mxu(_trace(fn, examples)[0].jaxpr)


def primitives(fn: Callable[..., Any], examples: Sequence[Any]) -> frozenset[str]:
    """The names of all primitives of `fn`, nested ones included."""

    def walk(jaxpr: Jaxpr) -> set[str]:
        names = {eqn.primitive.name for eqn in jaxpr.eqns}
        return names.union(*(walk(sub) for eqn in jaxpr.eqns for sub in _subjaxprs(eqn.params)))

    return frozenset(walk(_trace(fn, examples)[0].jaxpr))


def rounds_inside(closed_jaxpr: ClosedJaxpr, specs: Sequence[Any]) -> bool:
    """Whether the op rounds intermediates to bfloat16 or float16; `specs` are its lifted inputs."""
    made = jax.make_jaxpr(lambda *args: evaluate64(closed_jaxpr, *args, grid=2.0))(*specs)
    plain = jax.make_jaxpr(lambda *args: evaluate64(closed_jaxpr, *args))(*specs)
    return str(made).count("reduce_precision") > str(plain).count("reduce_precision")


def _trace(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[ClosedJaxpr, Any]:
    """The op's jaxpr with x64 off (as its author meant it), and the tree of its results."""
    specs = jax.tree.map(lambda x: Spec(np.shape(x), x.dtype), tuple(args))
    with jax.enable_x64(False):
        closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*specs)
    return closed, jax.tree.structure(shapes)


# They move values about or choose among them: whatever was rounded before stays as it is.
_EXACT = frozenset(
    {
        "abs", "argmax", "argmin", "broadcast_in_dim", "clamp", "concatenate", "cond", "copy", "copy_p",
        "dynamic_slice",
        "dynamic_update_slice", "expand_dims", "gather", "max", "min", "neg", "pad", "reduce_max", "reduce_min",
        "reshape", "rev", "scan", "scatter", "select_n", "slice", "sort", "split", "squeeze", "stop_gradient",
        "transpose", "while",
    }
)  # fmt: skip


@dataclass(frozen=True)
class _Lift:
    mxu_bf16: bool
    grid: float | None
    nan_as: int

    def run(self, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any], *, last: bool = False) -> list[Any]:
        """`last`: this jaxpr's results are the op's own, so that rounding them is no intermediate error."""
        values: dict[Any, Any] = {}

        def read(atom: Any) -> Any:
            return lift(atom.val, dtype_of(atom)) if isinstance(atom, Literal) else values[atom]

        variables: list[Any] = [*jaxpr.constvars, *jaxpr.invars]
        for var, value in zip(variables, [*consts, *args], strict=True):
            values[var] = lift(value, var.aval.dtype)
        results = {v for v in jaxpr.outvars if not isinstance(v, Literal)} if last else set()
        for eqn in jaxpr.eqns:
            ends = not results.isdisjoint(eqn.outvars)
            values.update(zip(eqn.outvars, self.equation(eqn, [read(v) for v in eqn.invars], ends), strict=True))
        return [read(v) for v in jaxpr.outvars]

    def equation(self, eqn: Any, args: list[Any], ends: bool) -> Sequence[Any]:
        name = eqn.primitive.name
        if eqn.effects:
            raise NotLiftable(name, "it has effects")
        body = eqn.params[_INLINED[name]] if name in _INLINED else None
        out = apply_rule(self, eqn, args) if body is None else self.inline(body, args, last=ends)
        for var, value in zip(eqn.outvars, out, strict=True):
            if value.dtype != lifted_dtype(var.aval.dtype) or value.shape != var.aval.shape:
                raise NotLiftable(name, f"it gives {value.dtype}{list(value.shape)} for {var.aval}")
        if self.grid is None or ends or body is not None or name in _EXACT:
            return out
        return [_regridded(value, var.aval.dtype, self.grid) for var, value in zip(eqn.outvars, out, strict=True)]

    def inline(self, body: Any, args: Sequence[Any], *, last: bool = False) -> list[Any]:
        """Run a ClosedJaxpr or an open one without constants."""
        closed = isinstance(body, ClosedJaxpr)
        return self.run(body.jaxpr if closed else body, body.consts if closed else (), args, last=last)

    def retrace(self, body: Any) -> Any:
        """The same body as a jaxpr over float64, in the form (closed or open) that it came in."""
        inner = body.jaxpr if isinstance(body, ClosedJaxpr) else body
        specs = [Spec(v.aval.shape, lifted_dtype(v.aval.dtype)) for v in inner.invars]
        made = jax.make_jaxpr(lambda *args: self.inline(body, args))(*specs)
        return made if isinstance(body, ClosedJaxpr) else made.jaxpr


def _regridded(value: Any, dtype: Any, grid: float) -> Any:
    bits = {"bfloat16": (8, 7), "float16": (5, 10)}.get(np.dtype(dtype).name)
    if bits is None:
        return value
    return jax.lax.reduce_precision(value * grid, exponent_bits=11, mantissa_bits=bits[1]) / grid


def _subjaxprs(params: dict[str, Any]) -> list[Jaxpr]:
    found: list[Jaxpr] = []
    for value in jax.tree.leaves(list(params.values()), is_leaf=lambda x: isinstance(x, Jaxpr | ClosedJaxpr)):
        if isinstance(value, Jaxpr | ClosedJaxpr):
            found.append(value.jaxpr if isinstance(value, ClosedJaxpr) else value)
    return found

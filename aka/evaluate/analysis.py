"""Worker side: facts of a workload read off its jaxpr (what it consists of, how much arithmetic it must do)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

MAX_COUNT = 256
"""Sizes of a reshape up to this may be a count that a kernel takes as a static (groups, heads)."""
_WRAPPERS = {"pjit", "jit", "custom_jvp_call", "custom_vjp_call", "closed_call", "core_call", "remat", "checkpoint"}


def inner_jaxprs(eqn: Any) -> Iterator[tuple[Any, float]]:
    """(jaxpr, how often it runs) of an equation's inner jaxprs; a while loop's trip count is unknown and counts 1."""
    trips = float(eqn.params.get("length", 1)) if eqn.primitive.name == "scan" else 1.0
    for value in eqn.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, jex.ClosedJaxpr):
                yield item.jaxpr, trips
            elif isinstance(item, jex.Jaxpr):
                yield item, trips


def equations(jaxpr: Any, times: float = 1.0) -> Iterator[tuple[Any, float]]:
    """Every equation at every depth, with how often it runs."""
    for eqn in jaxpr.eqns:
        yield eqn, times
        for inner, trips in inner_jaxprs(eqn):
            yield from equations(inner, times * trips)


def primitives(jaxpr: Any) -> dict[str, int]:
    """How many equations of each primitive, wrappers such as pjit left out."""
    counts = Counter(e.primitive.name for e, _ in equations(jaxpr) if e.primitive.name not in _WRAPPERS)
    return dict(counts.most_common())


def literals(closed: Any) -> list[float]:
    """The distinct finite scalar constants of the op, as short as their dtype allows (1e-6, not 9.99999997e-7):
    candidates for a kernel's static parameters. Small sizes that a reshape splits into are among them."""
    scalars = [v.val for e, _ in equations(closed.jaxpr) for v in e.invars if isinstance(v, jex.Literal)]
    found: dict[float, None] = {}
    for value in (*scalars, *closed.consts):
        if np.ndim(value) == 0 and not np.iscomplexobj(value):
            number = _shortest(np.asarray(value))
            if np.isfinite(number):
                found.setdefault(number)
    for eqn, _ in equations(closed.jaxpr):  # a group count shows only in the shape that it splits into
        if eqn.primitive.name == "reshape":
            found |= dict.fromkeys(float(n) for n in eqn.params["new_sizes"] if 1 < n <= MAX_COUNT)
    return list(found)


def _shortest(value: np.ndarray[Any, Any]) -> float:
    if value.dtype.kind in "iub":
        return float(value)
    return float(str(value.astype(np.float32)))


def jumps(jaxpr: Any) -> bool:
    """Whether the op rounds floats to whole numbers or to 8 bits: a last-bit difference before may then be a whole step
    after, in any row."""
    return any(_jumps(eqn) for eqn, _ in equations(jaxpr))


def _jumps(eqn: Any) -> bool:
    before = next((np.dtype(v.aval.dtype) for v in eqn.invars), None)
    if before is None or not jnp.issubdtype(before, jnp.floating):
        return False
    if eqn.primitive.name in {"round", "floor", "ceil", "sign"}:
        return True
    after = np.dtype(eqn.outvars[0].aval.dtype)
    narrow = jnp.issubdtype(after, jnp.integer) or (jnp.issubdtype(after, jnp.floating) and after.itemsize == 1)
    return eqn.primitive.name == "convert_element_type" and narrow


def uses_mxu(jaxpr: Any) -> bool:
    """Whether the op holds a matrix product or a convolution."""
    return not {"dot_general", "conv_general_dilated", "ragged_dot_general"}.isdisjoint(primitives(jaxpr))


def dot_flops(jaxpr: Any) -> float:
    """Multiply-adds of matrix products and convolutions, times two; of a conditional, its dearest branch. Elementwise
    work is left out: it does not run on the MXU, whose peak is the roofline's."""
    total = 0.0
    for eqn in jaxpr.eqns:
        inside = [trips * dot_flops(inner) for inner, trips in inner_jaxprs(eqn)]
        total += _flops(eqn) + (max(inside, default=0.0) if eqn.primitive.name == "cond" else sum(inside))
    return total


def _flops(eqn: Any) -> float:
    if eqn.primitive.name == "dot_general":
        (contract, _), _ = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        return float(2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(shape[d] for d in contract))
    if eqn.primitive.name == "conv_general_dilated":
        dims = eqn.params["dimension_numbers"].rhs_spec
        kernel = eqn.invars[1].aval.shape
        return float(2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(kernel[d] for d in dims[1:]))
    return 0.0


def nbytes(leaves: list[dict[str, Any]]) -> int:
    """Bytes of the arrays of a signature (4-bit types count a whole byte: an upper bound)."""
    import jax.numpy as jnp

    return sum(math.prod(leaf["shape"]) * jnp.dtype(leaf["dtype"]).itemsize for leaf in leaves)

"""Worker side: maxima that keep NaN when an op is compiled for the CPU.

XLA's CPU compiler vectorises `reduce_max` into instructions that drop NaN (measured with jaxlib 0.10.2: a row with one
NaN has a finite maximum), where XLA's own semantics and a TPU keep it. A reference that drops NaN rejects kernels that
are right. So maxima and minima are lowered as reductions whose combiner asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import mlir

Combiner = Callable[[Any, Any], Any]
iinfo: Any = jnp.iinfo  # JAX does not type it


def keep_in_reductions() -> None:
    """For every op that this process compiles or exports for the CPU from now on."""
    for primitive, largest in ((lax.reduce_max_p, True), (lax.reduce_min_p, False)):
        _lower(primitive, _reduction(largest))
    for primitive, largest in ((lax.reduce_window_max_p, True), (lax.reduce_window_min_p, False)):
        _lower(primitive, _window(largest))


def _lower(primitive: Any, fn: Callable[..., Any]) -> None:
    mlir.register_lowering(primitive, mlir.lower_fun(fn, multiple_results=False), platform="cpu")


def _reduction(largest: bool) -> Callable[..., Any]:
    def reduce(x: Any, *, axes: Sequence[int], **_: Any) -> Any:
        return lax.reduce(x, _identity(x.dtype, largest), _better(largest), tuple(axes))

    return reduce


def _window(largest: bool) -> Callable[..., Any]:
    def reduce(
        x: Any, *, window_dimensions: Any, window_strides: Any, padding: Any, base_dilation: Any, window_dilation: Any,
        **_: Any,
    ) -> Any:  # fmt: skip
        start = _identity(x.dtype, largest)
        how = (window_dimensions, window_strides, padding, base_dilation, window_dilation)
        return lax.reduce_window(x, start, _better(largest), *how)

    return reduce


def _better(largest: bool) -> Combiner:
    def choose(a: Any, b: Any) -> Any:
        first = a > b if largest else a < b
        return lax.select(first | (a != a), a, b) if jnp.issubdtype(a.dtype, jnp.floating) else lax.select(first, a, b)

    return choose


def _identity(dtype: Any, largest: bool) -> Any:
    """What loses against everything."""
    if dtype == np.bool_:
        return np.asarray(not largest)
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(-jnp.inf if largest else jnp.inf, dtype)
    info = iinfo(dtype)
    return np.asarray(info.min if largest else info.max, dtype)

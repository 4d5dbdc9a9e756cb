"""Worker side: find which reference kernels compute a workload, and how its arguments and constants map to theirs.

Names decide nothing: an assignment of arguments must unify with the kernel's declared signature, and the kernel's
`reference` must agree numerically with the workload. (The judge verifies the resulting kernel once more.)
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.extend import core as jex

from aka.evaluate import loading, statics
from aka.evaluate.opfile import USER_FAULTS

finfo: Any = ml_dtypes.finfo
MAX_ASSIGNMENTS = 24
MAX_TRIES = 1600
"""Over all assignments of one kernel: an AdamW step at test shapes takes 9 ms each on a busy core."""
TOLERANCE = {2: 3e-2, 4: 1e-4, 8: 1e-6}
"""Relative RMS difference that still counts as the same op, by bytes per element; wrong ones are off by far more."""
ROUNDING = 4
"""Steps of an output's dtype by which two ways to compute the same may differ, to be safe."""


@dataclass(frozen=True)
class Argument:
    name: str
    kind: str
    dims: tuple[str, ...]


@dataclass(frozen=True)
class Pattern:
    """A parsed kernel signature such as "x:f[*rows,d], scale:f[d] -> f[*rows,d]"."""

    arguments: tuple[Argument, ...]
    outputs: tuple[Argument, ...]


def parse(text: str) -> Pattern:
    """Raises ValueError naming the part that is not understood."""
    left, arrow, right = text.partition("->")
    if not arrow:
        raise ValueError(f"signature without '->': {text!r}")
    return Pattern(tuple(_arguments(left, named=True)), tuple(_arguments(right, named=False)))


def _arguments(text: str, *, named: bool) -> Iterator[Argument]:
    pieces = re.findall(r"[^\[\],]+\[[^\]]*\]", text)
    if "".join(pieces).replace(" ", "") != re.sub(r"[\s]", "", text).replace("],", "]"):
        raise ValueError(f"signature not understood: {text.strip()!r}")
    for piece in pieces:
        found = re.fullmatch(r"\s*(?:(\w+)\s*:)?\s*(\w+)\[([^\]]*)\]\s*", piece)
        dims = tuple(d.strip() for d in found[3].split(",") if d.strip()) if found else ()
        plain = all(re.fullmatch(r"\*?\w+", d) for d in dims) and sum(d.startswith("*") for d in dims) <= 1
        if not found or not plain or (named and not found[1]):
            raise ValueError(f"signature not understood at {piece.strip()!r}")
        yield Argument(found[1] or "", found[2], dims)


def _kind_fits(kind: str, dtype: Any) -> bool:
    dtype = jnp.dtype(dtype)
    if kind == "f":
        return bool(jnp.issubdtype(dtype, jnp.floating))
    if kind == "i":
        return bool(jnp.issubdtype(dtype, jnp.integer))
    return bool(dtype == jnp.bool_) if kind == "b" else str(dtype.name) == kind


def unify(dims: Sequence[str], shape: Sequence[int], sizes: Mapping[str, Any]) -> dict[str, Any] | None:
    """`sizes` extended so that `dims` describe `shape`, or None. A starred dim takes any number of dimensions."""
    made = dict(sizes)
    star = next((i for i, d in enumerate(dims) if d.startswith("*")), None)
    rest = len(dims) - (star is not None)
    if (len(shape) < rest) if star is not None else (len(shape) != rest):
        return None
    head, tail = (star, rest - star) if star is not None else (rest, 0)
    plain: list[tuple[str, Any]] = [*zip(dims[:head], shape[:head], strict=True)]
    if star is not None:
        plain += zip(dims[star + 1 :], shape[len(shape) - tail :], strict=True)
        plain.append((dims[star], tuple(shape[head : len(shape) - tail])))
    for name, size in plain:
        if name.isdigit():
            if int(name) != size:
                return None
        elif made.setdefault(name, size) != size:
            return None
    return made


def assignments(pattern: Pattern, leaves: Sequence[Any], outputs: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    """Leaf indices in the kernel's argument order, for every way in which all leaves unify."""
    if len(leaves) != len(pattern.arguments) or len(outputs) != len(pattern.outputs):
        return
    for order in itertools.permutations(range(len(leaves))):
        sizes: dict[str, Any] | None = {}
        pairs = [(a, leaves[i]) for a, i in zip(pattern.arguments, order, strict=True)]
        for argument, leaf in [*pairs, *zip(pattern.outputs, outputs, strict=True)]:
            fits = _kind_fits(argument.kind, leaf.dtype)
            sizes = unify(argument.dims, leaf.shape, sizes) if fits and sizes is not None else None
            if sizes is None:
                break
        if sizes is not None:
            yield order


@dataclass(frozen=True)
class Wanted:
    """The op's outputs, and what a difference in each is relative to."""

    outputs: tuple[np.ndarray[Any, Any], ...]
    scales: tuple[float, ...]
    tolerance: float


def wanted(outputs: Sequence[np.ndarray[Any, Any]], inputs: Sequence[np.ndarray[Any, Any]]) -> Wanted:
    tolerance = TOLERANCE.get(min((w.dtype.itemsize for w in outputs), default=4), 1e-4)
    return Wanted(tuple(outputs), tuple(_scale(w, inputs, tolerance) for w in outputs), tolerance)


def _scale(output: np.ndarray[Any, Any], inputs: Sequence[np.ndarray[Any, Any]], tolerance: float) -> float:
    """The output's RMS; where it is an input that has hardly moved (an optimizer's parameters), that of the move, as
    far as rounding lets it be seen: a wrong rate of decay is within any tolerance of the parameters themselves."""
    whole = _apart(output, np.zeros_like(output))
    if not jnp.issubdtype(output.dtype, jnp.floating):
        return whole
    least = ROUNDING * float(finfo(output.dtype).eps) / tolerance * whole
    alike = [a for a in inputs if (a.shape, a.dtype) == (output.shape, output.dtype)]
    return min([whole, *(max(least, _apart(output, a)) for a in alike)])


def bind_all(
    closed: Any,
    arrays: Sequence[np.ndarray[Any, Any]],
    kernels: Sequence[Mapping[str, Any]],
    literals: Sequence[float],
    production: Sequence[Any] | None = None,
    production_outputs: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """JSON: `bindings` [{id, arguments, statics, error}] and `refused` {id: reason}. `closed` is the workload at the
    small shapes of `arrays`; signatures unify with the production shapes, where equal sizes are rarer accidents."""
    outputs = [np.asarray(w) for w in jax.jit(jex.jaxpr_as_fun(closed))(*arrays)]
    want = wanted(outputs, arrays)
    bindings: list[dict[str, Any]] = []
    refused: dict[str, str] = {}
    for kernel in kernels:
        try:
            found = _bind(kernel, arrays, want, literals, production or arrays, production_outputs or outputs)
        except (SyntaxError, ImportError, *USER_FAULTS) as error:
            found = f"cannot be used: {type(error).__name__}: {error}"[:300]
        if isinstance(found, str):
            refused[kernel["id"]] = found
        else:
            bindings.append(found)
    return {"bindings": bindings, "refused": refused}


def _bind(
    kernel: Mapping[str, Any], arrays: Sequence[np.ndarray[Any, Any]], want: Wanted, literals: Sequence[float],
    production: Sequence[Any], outputs: Sequence[Any],
) -> dict[str, Any] | str:  # fmt: skip
    module = loading.load(kernel["source"], kernel["id"])
    reference = loading.function(module, "reference")
    orders = list(itertools.islice(assignments(parse(kernel["signature"]), production, outputs), MAX_ASSIGNMENTS))
    if not orders:
        return f"signature {kernel['signature']} does not fit"
    closest = math.inf
    defaults = dict(getattr(reference, "__kwdefaults__", None) or {})
    choices = statics.choices(kernel["statics"], literals, defaults)[: MAX_TRIES // len(orders)]
    for order in orders:
        error, best = _best_statics(reference, [arrays[i] for i in order], choices, want)
        closest = min(closest, error)
        if error <= want.tolerance:
            return {"id": kernel["id"], "arguments": list(order), "statics": best, "error": error}
    return f"fits the signature, but computes something else (relative difference {closest:.2g} at best)"


def _best_statics(
    reference: Any, arrays: Sequence[Any], choices: Sequence[dict[str, Any]], want: Wanted
) -> tuple[float, dict[str, Any]]:
    """The choice that comes closest, the earlier one on a tie. The first that is close enough would not do: an eps that
    is ten times too large hardly shows on ordinary numbers."""
    least, best = math.inf, dict(choices[0])
    for choice in choices:
        error = _difference(reference, arrays, choice, want)
        if error < least:
            least, best = error, choice
        if least == 0:
            break
    return least, best


def _difference(reference: Any, arrays: Sequence[Any], choice: Mapping[str, Any], want: Wanted) -> float:
    """Largest relative RMS difference over the outputs; infinite where shapes or dtypes differ or it raises."""
    try:
        made = reference(*(jnp.asarray(a) for a in arrays), **choice)
    except USER_FAULTS:
        return math.inf
    got = [np.asarray(g) for g in jax.tree.leaves(made)]
    if [(g.shape, g.dtype) for g in got] != [(w.shape, w.dtype) for w in want.outputs]:
        return math.inf
    return max(map(_off, got, want.outputs, want.scales), default=math.inf)


def _off(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], scale: float) -> float:
    if not np.array_equal(*(np.isfinite(a.astype(np.float64)) for a in (got, want))):
        return math.inf
    off = _apart(got, want)
    return off / scale if scale else off


def _apart(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """RMS of the difference, where it is finite."""
    with np.errstate(invalid="ignore"):
        apart = a.astype(np.float64) - b.astype(np.float64)
    apart = apart[np.isfinite(apart)]
    return float(np.sqrt(np.mean(apart * apart))) if apart.size else 0.0

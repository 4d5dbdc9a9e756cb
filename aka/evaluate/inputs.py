"""Adversarial inputs that only the judge holds: families of argument lists for one op (parent side; no jax).

Each family is a way in which a kernel that looks right on ordinary numbers shows its fault: overflow, cancellation, a
skipped tail, a tolerance that small outputs slip through. Every value is exact in its argument's dtype, so the float64
reference sees the same numbers as the kernel. The seed (128 bits) goes through NumPy's SeedSequence together with the
family and the argument's index: the same inputs in any process, and no two alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from aka.types import ArraySpec

Array = np.ndarray[Any, Any]
finfo: Any = ml_dtypes.finfo
iinfo: Any = ml_dtypes.iinfo
# A float sample with at most this many distinct values is a mask or a table, not a draw from a distribution.
_FEW_VALUES = 4
_INTEGERS_WITHOUT_SAMPLE = 4


@dataclass(frozen=True)
class _Slot:
    """One float argument that a family shapes: its rows, its dtype's range, and whether it comes first."""

    rng: np.random.Generator
    rows: int
    columns: int
    dtype: np.dtype[Any]
    first: bool

    @property
    def wide_range(self) -> bool:
        """False for float16 and the 8-bit floats, whose largest number is below 1e5."""
        return float(finfo(self.dtype).max) > 1e5

    @property
    def tiny(self) -> float:
        return float(finfo(self.dtype).smallest_normal)


def families() -> tuple[str, ...]:
    """The names that `make` knows, the ordinary one first."""
    return tuple(_FAMILIES)


def make(
    family: str,
    specs: Sequence[ArraySpec],
    seed: int,
    sample: Sequence[Array | None] | None = None,
    *,
    verbatim: bool = False,
) -> list[Array]:
    """One argument list of `specs` (shapes and dtypes exact).

    `sample` is an argument list of the workload, of any shape (None: not known). From it come the range of integers
    and the rate of True, the spread and the sign of floats, the values of scalars and of tables with a handful of
    distinct values. `verbatim` says that it was made by `make_inputs`: integers and booleans of the right shape are
    then taken as they stand, for they may be indices with structure. Raises KeyError for an unknown family.
    """
    shape_family = _FAMILIES[family]
    samples = list(sample) if sample is not None else [None] * len(specs)
    largest = max((s.size for s in specs), default=0)
    big = [_is_float(s.dtype) and not _is_parameter(s, largest) for s in specs]
    made = []
    for i, (spec, seen) in enumerate(zip(specs, samples, strict=True)):
        rng = _generator(seed, family, i)
        if not _is_float(spec.dtype):
            made.append(_discrete(spec, rng, seen, verbatim))
        elif not spec.shape and seen is not None:
            made.append(np.asarray(seen).astype(_dtype(spec.dtype)).reshape(()))
        else:
            made.append(
                _float(spec, rng, seen, shape_family if big[i] else None, i == big.index(True) if big[i] else False)
            )
    return made


def nudge(arrays: Sequence[Array], seed: int, relative: float = 2.0**-22) -> list[Array]:
    """The same arguments as float64 (complex128), each float moved by +-`relative` of itself and its row by twice that.

    The default is two float32 ulps. The float64 reference on these shows how far such roundings move each output: the
    condition of the op at this point, and the places where an integer or a mask hangs on a rounding. Whole rows move
    too because the errors of a long sum of like numbers do not cancel.
    """
    moved = []
    for i, array in enumerate(arrays):
        if not _is_float(array.dtype.name):
            moved.append(array)
            continue
        rng = _generator(seed, "nudge", i)
        by_row = rng.choice([-2.0, 2.0], (*array.shape[:-1], 1) if array.ndim else ())
        wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
        moved.append(wide * (1.0 + relative * (rng.choice([-1.0, 1.0], array.shape) + by_row)))
    return moved


def mended(arguments: Sequence[Array], value: float) -> list[Array]:
    """The same arguments with `value` in place of every NaN and infinity."""
    return [
        np.where(np.isfinite(a.astype(np.complex128)), a, value).astype(a.dtype) if _is_float(a.dtype.name) else a
        for a in arguments
    ]


def _normal(x: Array, slot: _Slot) -> Array:
    return x


def _x100(x: Array, slot: _Slot) -> Array:
    return x * (100.0 if slot.wide_range else 16.0) if slot.first else x


def _small(x: Array, slot: _Slot) -> Array:
    return x * 1e-3


def _offset(x: Array, slot: _Slot) -> Array:
    """Far from zero: a variance by E[x^2] - E[x]^2 cancels. In a narrow dtype so far that 3 bits of x are left."""
    digits = int(finfo(slot.dtype).nmant)
    return x + (30000.0 if digits >= 20 else 2.0 ** (digits - 3)) if slot.first else x


def _spikes(x: Array, slot: _Slot) -> Array:
    at = np.asarray(slot.rng.random(x.shape) < 1e-3)
    at.flat[slot.rng.integers(x.size)] = True
    return np.where(at, x * (1e4 if slot.wide_range else 50.0), x)


def _tail(x: Array, slot: _Slot) -> Array:
    """The last eighth of the rows and of the columns (one at least) is of another kind, so that skipping it shows."""
    out = x.copy()
    out[:, -max(1, slot.columns // 8) :] += 4.0
    out[-max(1, slot.rows // 8) :] *= -3.0
    return out


def _constant_rows(x: Array, slot: _Slot) -> Array:
    out = x.copy()
    out[::2] = out[::2, :1] if slot.first else out[::2]
    return out


def _row_scales(x: Array, slot: _Slot) -> Array:
    reach = 3 if slot.wide_range else 1
    scales: Array = 10.0 ** slot.rng.integers(-reach, reach + 1, (slot.rows, 1))
    return x * scales


def _tiny_rows(x: Array, slot: _Slot) -> Array:
    """Rows near the smallest normal number and rows of zeros, each beside ordinary ones."""
    out = x.copy()
    out[1::4] *= 4.0 * slot.tiny
    out[3::4] = 0.0
    return out


def _masked(x: Array, slot: _Slot) -> Array:
    """A fifth of the first operand is -inf; the first column never, so that no row is masked whole."""
    hidden = np.asarray(slot.rng.random(x.shape) < 0.2)
    hidden[:, 0] = False
    return np.where(hidden, -np.inf, x) if slot.first else x


def _nonfinite(x: Array, slot: _Slot) -> Array:
    out = x.copy()
    values = [np.nan, np.inf, -np.inf][: max(1, min(3, slot.rows // 4))]
    out.flat[slot.rng.choice(x.size, len(values), replace=False)] = values
    return out


_FAMILIES: dict[str, Callable[[Array, _Slot], Array]] = {
    "normal": _normal,
    "x100": _x100,
    "x1e-3": _small,
    "offset": _offset,
    "spikes": _spikes,
    "tail": _tail,
    "constant_rows": _constant_rows,
    "row_scales": _row_scales,
    "tiny_rows": _tiny_rows,
    "masked": _masked,
    "nonfinite": _nonfinite,
}


def _generator(seed: int, purpose: str, index: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence([seed, int.from_bytes(purpose.encode(), "little"), index]))


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def _is_float(name: str) -> bool:
    return name.startswith(("float", "bfloat", "complex"))


def _is_parameter(spec: ArraySpec, largest: int) -> bool:
    """A scale or bias beside a big operand: it stays ordinary, else it would hide what the operand does."""
    return max(spec.shape, default=1) == spec.size and spec.size * 4 <= largest


def _float(spec: ArraySpec, rng: np.random.Generator, seen: Array | None, family: Any, first: bool) -> Array:
    if spec.dtype.startswith("complex"):
        part = ArraySpec(spec.shape, "float32" if spec.dtype == "complex64" else "float64")
        real, imaginary = (_float(part, rng, None, family, first) for _ in range(2))
        return (real + 1j * imaginary).astype(spec.dtype)
    dtype = _dtype(spec.dtype)
    known = None if seen is None else np.asarray(seen).astype(np.float64).ravel()
    if known is not None and known.size and len(np.unique(known)) <= _FEW_VALUES:
        return rng.choice(known, spec.shape).astype(dtype)
    if family is None:
        values = 1.0 + 0.5 * rng.normal(size=spec.shape)
    else:
        rows = spec.size // spec.shape[-1] if spec.size and spec.shape else 1
        values = rng.normal(size=(rows, spec.size // rows)) * _spread(known)
        values = family(values, _Slot(rng, rows, values.shape[1], dtype, first)) if spec.size else values
    return _rounded(_into_domain(values, known), dtype).reshape(spec.shape)


def _spread(known: Array | None) -> float:
    return 1.0 if known is None or not known.size else float(np.clip(np.nanstd(known), 0.02, 10.0))


def _into_domain(values: Array, known: Array | None) -> Array:
    """Keep the sign, or the unit interval, that every value of the sample has (an op may be undefined elsewhere)."""
    if known is None or not known.size or not known.min() >= 0:
        return values
    return np.abs(values) if known.max() > 1 else np.abs(values) / (1.0 + np.abs(values))


def _rounded(values: Array, dtype: np.dtype[Any]) -> Array:
    """To the dtype, finite values staying finite, and infinities too where the dtype has none."""
    info = finfo(dtype)
    limit = float(info.max)
    has_infinity = bool(np.isinf(np.array(np.inf).astype(dtype).astype(np.float64)))
    clipped = np.clip(values, -limit, limit)
    return np.where(np.isinf(values) & has_infinity, values, clipped).astype(dtype)


def _discrete(spec: ArraySpec, rng: np.random.Generator, seen: Array | None, verbatim: bool) -> Array:
    dtype = _dtype(spec.dtype)
    values = None if seen is None or not np.size(seen) else np.asarray(seen)
    if values is not None and ((values.shape == spec.shape and (verbatim or _is_sorted(values))) or not spec.shape):
        return values.astype(dtype).reshape(spec.shape)
    if spec.dtype == "bool":
        return rng.random(spec.shape) < (0.5 if values is None else float(values.mean()))
    low, high = _range(values, dtype)
    drawn = rng.integers(low, high, spec.shape, endpoint=True).astype(dtype)
    return np.sort(drawn) if values is not None and _is_sorted(values) else drawn


def _is_sorted(values: Array) -> bool:
    """Offsets and segment bounds rise; drawing them afresh in any order would make them invalid."""
    wide = values.astype(np.int64)
    return values.ndim == 1 and values.size > 2 and bool(np.all(np.diff(wide) >= 0)) and wide[0] != wide[-1]


def _range(values: Array | None, dtype: np.dtype[Any]) -> tuple[int, int]:
    if values is not None:
        wide = values.astype(np.int64)
        return int(wide.min()), int(wide.max())
    info = iinfo(dtype)
    # 8-bit integers are quantized numbers; wider ones may be indices, of which only small ones are safe.
    return (int(info.min), int(info.max)) if info.bits <= 8 else (0, _INTEGERS_WITHOUT_SAMPLE - 1)

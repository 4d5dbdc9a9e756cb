"""How far an element may be from the float64 reference: what the op's own precision allows there (parent side).

The limit of an element is a sum of:
- `relative` x |exact|: from the output's dtype (below);
- a rounding term, 2^-19 (16 float32 roundings) of the largest ordinary value in its row;
- what the op itself errs, natively on the CPU, beyond rounding its output: the row's worst, 4 times; an element of a
  short row may have been lucky, and is given what nine elements in ten err, as a share of their size;
- what the chip's matrix unit may round away (only where the op has dots): twice the row's worst, or what nine rows in
  ten lose if that is more; and for sums that one product dominates, 2^-7 x |exact|;
- where nudged references are given, how far they move the row (root mean square over them), 8 times: a running sum of
  50 equal numbers errs by 1e-6, and on a constant row this is all that is left of a normalisation;
- where the op rounds intermediates to a narrow float, what other draws of these roundings move the row, 4 times: the
  native run is one draw, and a lucky one where the intermediates happen to be round numbers;
- the smallest normal number of the dtype, for hardware that flushes below it; a row that is itself near it is also
  given 4 times what the op errs natively in the worst of such rows: how much a sum loses to flushing is luck.
A row is the last axis. There is no other absolute term, so small outputs are judged by their own size.

`relative` is 5e-5 for float32: 25 times less than the 2^-9 of a bfloat16 rounding on average, and above the 1e-5 that
other summation orders and approximate exponentials cost. For narrower dtypes it is 2.5 half-ulps: the rounding of the
output, a second one of an intermediate, and slack. These factors are judgement, held by the tables in the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_RELATIVE_FLOAT32 = 5e-5
_ROUNDING = 2.0**-19
_NATIVE, _CHIP, _NUDGED, _DRAWN = 4.0, 2.0, 8.0, 4.0
# "Nine in ten" of rows or elements.
_MOST = 0.9
# Two bfloat16 half-ulps: what a dot that one product dominates may lose by rounding its two operands.
_ONE_PASS = 2.0**-7
# Masks and other fill constants; they say nothing about the size of the ordinary values beside them.
_FILL = 1e9
# 4096 times the smallest normal float32: a sum of rows that small may flush at every step.
_FAINT = 2.0**-114
# Rows shorter than this are too few elements to tell how far the op errs; see `_pooled`.
_SHORT_ROW = 16


@dataclass(frozen=True)
class Format:
    """What a float dtype can hold: half an ulp relative, the smallest normal and the largest number."""

    half_ulp: float
    tiny: float
    largest: float

    @property
    def relative(self) -> float:
        return max(_RELATIVE_FLOAT32, 2.5 * self.half_ulp)


_FORMATS = {
    "float64": Format(2.0**-53, 2.0**-1022, float(np.finfo(np.float64).max)),
    "float32": Format(2.0**-24, 2.0**-126, (2 - 2.0**-23) * 2.0**127),
    "bfloat16": Format(2.0**-8, 2.0**-126, (2 - 2.0**-7) * 2.0**127),
    "float16": Format(2.0**-11, 2.0**-14, 65504.0),
    "float8_e4m3fn": Format(2.0**-4, 2.0**-6, 448.0),
    "float8_e4m3b11fnuz": Format(2.0**-4, 2.0**-10, 30.0),
    "float8_e4m3fnuz": Format(2.0**-4, 2.0**-7, 240.0),
    "float8_e4m3": Format(2.0**-4, 2.0**-6, 240.0),
    "float8_e3m4": Format(2.0**-5, 2.0**-2, 15.5),
    "float4_e2m1fn": Format(2.0**-2, 1.0, 6.0),
    "float8_e5m2": Format(2.0**-3, 2.0**-14, 57344.0),
    "float8_e5m2fnuz": Format(2.0**-3, 2.0**-15, 57344.0),
}


def number_format(dtype: str) -> Format | None:
    """The format of a float (for a complex dtype: of its parts); None for integers and booleans.

    Raises KeyError for a float dtype without an entry, such as the exponent-only float8_e8m0fnu.
    """
    part = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    return _FORMATS[part] if part.startswith(("float", "bfloat")) else None


def limits(
    exact: Array,
    native: Array,
    chip: Array | None,
    nudged: Sequence[Array],
    draws: Sequence[Array],
    judged: Array,
    form: Format,
    rtol: float | None,
    atol: float | None,
    jumps: bool = False,
) -> tuple[Array, Array]:
    """Each element's limit, and the scale of its row: the largest ordinary value in it.

    All arrays are float64 and of one shape; `judged` is False where the op itself fails. `rtol` and `atol` are the
    workload's own (see `aka.evaluate.numerics.compare`). Where the op `jumps`, the row that moves most under nudges
    speaks for all, as a share of its scale.
    """
    size = np.where(np.isfinite(exact), np.abs(exact), 0.0)
    ordinary = judged & np.isfinite(exact) & (size < _FILL)
    if ordinary.sum() < 0.5 * (judged & np.isfinite(exact)).sum():
        ordinary = judged & np.isfinite(exact)
    own = bool(nudged)
    scale = _pooled(size, ordinary, own)
    error = np.maximum(np.abs(native - exact) - form.half_ulp * size, 0.0)
    limit = (form.relative if rtol is None else rtol) * size + form.tiny
    limit += _ROUNDING * scale if atol is None else atol * np.minimum(scale, 1.0)
    typical = _pooled(error, ordinary, own)
    if own and not _has_rows(error):
        share = _share(np.where(ordinary & np.isfinite(error) & (scale > _FAINT), error, 0.0), size)
        typical = np.maximum(typical, np.quantile(share, _MOST) * size)
    limit += _NATIVE * np.maximum(typical, np.where(np.isfinite(error), error, 0.0))
    faint = ordinary & (scale <= _FAINT)
    limit += _NATIVE * np.where(faint, np.where(faint, error, 0.0).max(initial=0.0), 0.0)
    moves = np.sqrt(np.mean([np.where(ordinary, (n - exact) ** 2, 0.0) for n in nudged], axis=0)) if nudged else None
    if moves is not None:
        pooled = _pooled(moves, ordinary, own)
        limit += _NUDGED * (np.maximum(pooled, _share(pooled, scale).max() * scale) if jumps else pooled)
    if draws:
        drawn = np.max([np.abs(d - exact) for d in draws], axis=0)
        limit += _DRAWN * np.maximum(_pooled(drawn, ordinary, own), np.where(np.isfinite(drawn), drawn, 0.0))
    if chip is not None:
        limit += _one_pass(np.abs(chip - exact), ordinary, scale, size, moves)
    return limit, scale


def _one_pass(lost: Array, ordinary: Array, scale: Array, size: Array, moves: Array | None) -> Array:
    """What a kernel may lose where the chip reference loses `lost`: other orders of the same roundings lose another.

    So a row that was lucky is given what nine rows in ten lose, as a share of its scale; an element of a short row,
    as a share of how far nudges move it.
    """
    lost = np.where(np.isfinite(lost), lost, 0.0)
    kept = np.where(ordinary, lost, 0.0)
    typical = _pooled(lost, ordinary, moves is not None)
    if _has_rows(lost):
        typical = np.maximum(typical, np.quantile(_share(kept, scale).max(-1), _MOST) * scale)
    elif moves is not None:
        typical = np.maximum(typical, np.quantile(_share(kept, moves), _MOST) * moves)
    return _CHIP * np.maximum(typical, lost) + min(_ONE_PASS, 4 * float(_share(kept, scale).max())) * size


def _share(part: Array, whole: Array) -> Array:
    share: Array = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    return share


def _has_rows(values: Array) -> bool:
    return values.ndim > 1 and values.shape[-1] >= _SHORT_ROW


def _pooled(values: Array, ordinary: Array, own: bool) -> Array:
    """The worst ordinary value of each element's row.

    A short row says little about how far the op errs: it is pooled over the whole output, unless nudged references
    speak for each element (`own`), which keeps outputs of very different size apart.
    """
    kept = np.where(ordinary & np.isfinite(values), values, 0.0)
    if _has_rows(kept):
        return np.broadcast_to(kept.max(-1, keepdims=True), kept.shape)
    return kept if own else np.broadcast_to(kept.max(), kept.shape)

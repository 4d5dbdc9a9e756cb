"""Is a kernel's output right? Every element against the float64 reference (parent side, NumPy only).

Shape, dtype, NaN pattern and infinities must be equal, integers and booleans too; a float may be as far off as
`aka.evaluate.limits` allows. Where the op itself fails (it overflows, or is NaN where the exact result isn't), a few
elements are excused and counted; more than 1 % of them, or an op that errs as much as its result, and the argument
list is skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aka.evaluate.limits import Array, Format, limits, number_format

_SKIPPED_FRACTION = 0.01
NEAR = 0.8
"""A pass with more of its limit used than this may be luck, and is flagged."""
_TINY_OUTPUT = 1e-6


@dataclass(frozen=True)
class Comparison:
    """One argument list's answer. `margin` is the worst error/limit (ok means at most 1); inf if the form is wrong.

    `place` is (leaf, index) of the worst element, `limit` is its limit, `got` and `want` its values; `max_error` is
    the largest absolute error anywhere in that leaf.
    `excused` counts elements that weren't judged because the op itself overflows or hangs on a rounding there.
    `flags` are remarks for the report: a tolerance set by the workload, a pass near the limit, excused elements.
    """

    ok: bool
    max_error: float
    limit: float
    margin: float
    place: tuple[int, tuple[int, ...]] | None
    got: float | None
    want: float | None
    reason: str
    excused: int = 0
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Skip:
    """The reference itself errs so much on this argument list that nothing can be judged by it."""

    reason: str
    fraction: float


@dataclass(frozen=True)
class _Leaf:
    """Every reference of one output."""

    exact: Array
    native: Array
    chip: Array | None
    nudged: tuple[Array, ...]
    draws: tuple[Array, ...]
    dtype: str
    moot: Array | None = None
    free: Array | None = None
    jumps: bool = False

    @property
    def others(self) -> list[Array]:
        """Every other answer that the op itself may give."""
        return [self.native, *([] if self.chip is None else [self.chip]), *self.nudged, *self.draws]


@dataclass(frozen=True)
class _Integers:
    """What an output of integers is held to where it is `judged`: between `low` and `high` where the references differ
    from `want`, in at most `allowed` places, and equal to `want` elsewhere."""

    want: Array
    low: Array
    high: Array
    judged: Array
    allowed: int
    dtype: str


@dataclass(frozen=True)
class _Floats:
    """What an output of floats is held to: within `limit` of `want` where it is `judged`, at all but `excused`
    elements."""

    want: Array
    limit: Array
    judged: Array
    excused: int


@dataclass(frozen=True)
class Standard:
    """What every candidate's outputs on one argument list are held to: made once, with nothing of a candidate in it."""

    leaves: tuple[_Integers | _Floats | Skip, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    rtol: float | None
    atol: float | None

    @property
    def size_bytes(self) -> int:
        arrays = [a for leaf in self.leaves for a in vars(leaf).values() if isinstance(a, np.ndarray)]
        return sum(a.nbytes for a in arrays)


def compare(
    got: Sequence[Array],
    exact: Sequence[Array],
    native: Sequence[Array],
    chip: Sequence[Array] | None,
    dtypes: Sequence[str],
    rtol: float | None = None,
    atol: float | None = None,
    *,
    nudged: Sequence[Sequence[Array]] = (),
    draws: Sequence[Sequence[Array]] = (),
    jumps: bool = False,
) -> Comparison | Skip:
    """Judge the flat outputs `got` of a candidate on one argument list by the references (see `standard`)."""
    return hold(got, standard(exact, native, chip, dtypes, rtol, atol, nudged=nudged, draws=draws, jumps=jumps))


def standard(
    exact: Sequence[Array],
    native: Sequence[Array],
    chip: Sequence[Array] | None,
    dtypes: Sequence[str],
    rtol: float | None = None,
    atol: float | None = None,
    *,
    nudged: Sequence[Sequence[Array]] = (),
    draws: Sequence[Sequence[Array]] = (),
    moot: Sequence[Array] | None = None,
    free: Sequence[Array] | None = None,
    jumps: bool = False,
) -> Standard:
    """What the references say of one argument list.

    `exact` and `chip` are the float64 references (see `aka.evaluate.float64`), `native` the op's own run on the CPU,
    `dtypes` the op's output dtypes; `chip` is None for an op without dots. `nudged` holds the outputs of `exact` on
    inputs moved by a rounding (`aka.evaluate.inputs.nudge`): four of them make constant rows, row sums near zero and
    integers that hang on a rounding safe to judge. `draws` holds other draws of the op's own inner roundings (see
    `evaluate64`'s grid). `rtol` takes the place of the dtype's relative term, `atol` that
    of the rounding term, times the row's scale where that is below 1; both are named in `flags`.

    `moot` marks elements that do not hang on the NaN and infinities among the inputs except through a product with
    zero (a masked key, a block above the diagonal): there the op's NaN is no part of its meaning, and a kernel that
    skips the block is right. Where `exact` is not finite, such elements are not judged.

    `free` marks elements that hang on what integer a NaN becomes, which XLA leaves open: they are not judged.

    `jumps` tells that the op rounds to whole numbers or to 8 bits on its way. A value that lies on a tie may then go
    either way, and a few nudges don't show every tie: floats of each row are given what the worst row moves, integers
    a step of one in as few places as the references differ.
    """
    leaves: list[_Integers | _Floats | Skip] = []
    for i, name in enumerate(dtypes):
        moved, drawn = tuple(n[i] for n in nudged), tuple(d[i] for d in draws)
        own = chip[i] if chip else None, moot[i] if moot else None, free[i] if free else None
        leaf = _Leaf(exact[i], native[i], own[0], moved, drawn, name, own[1], own[2], jumps)
        form = number_format(name)
        leaves.append(_integers(leaf) if form is None else _floats(leaf, form, rtol, atol))
    return Standard(tuple(leaves), tuple(e.shape for e in exact), tuple(dtypes), rtol, atol)


def hold(got: Sequence[Array], to: Standard) -> Comparison | Skip:
    """Judge the flat outputs `got` of a candidate."""
    wrong = _form(got, to)
    if wrong is not None:
        return Comparison(False, float("inf"), 0.0, float("inf"), None, None, None, wrong)
    return _together(_each(got, to), to.rtol, to.atol)


def turned(got: Sequence[Array], to: Standard) -> bool:
    """Whether any output is seen to be wrong: what ghost replay asks of a program without its kernels."""
    return any(isinstance(one, Comparison) and not one.ok for one in _each(got, to))


def judges(to: Standard) -> bool:
    """Whether any output has elements that a candidate is held to."""
    return any(not isinstance(leaf, Skip) and bool(leaf.judged.any()) for leaf in to.leaves)


def _each(got: Sequence[Array], to: Standard) -> list[Comparison | Skip]:
    results: list[Comparison | Skip] = []
    for i, (value, leaf) in enumerate(zip(got, to.leaves, strict=True)):
        if isinstance(leaf, Skip):
            results.append(leaf)
        else:
            results.append(_exactly(i, value, leaf) if isinstance(leaf, _Integers) else _nearly(i, _wide(value), leaf))
    return results


def weakness(outputs: Mapping[str, Sequence[Array]]) -> dict[int, str]:
    """Why an output judges kernels badly, by its index; those that judge well are not there.

    `outputs` maps each family to the exact outputs on it.
    """
    count = len(next(iter(outputs.values()), ()))
    told = {i: _weak([np.asarray(leaves[i]) for leaves in outputs.values()]) for i in range(count)}
    return {i: f"output {i} is {why}" for i, why in told.items() if why}


def _weak(values: list[Array]) -> str:
    if all(v.size == 0 for v in values):
        return "empty"
    if len(values) > 1 and all(np.array_equal(v, values[0], equal_nan=True) for v in values):
        return "the same for every input"
    if values[0].size > 1 and all(bool(np.all(_same(v, v.flat[0]))) for v in values):
        return "constant: all of its elements are equal"
    if not any(np.isfinite(v).any() for v in values):
        return "never finite"
    peak = max(float(np.abs(v[np.isfinite(v)]).max(initial=0.0)) for v in values)
    return f"tiny: no element above {peak:.1e}" if peak < _TINY_OUTPUT else ""


def _same(a: Array, b: Any) -> Array:
    same: Array = (a == b) | ((a != a) & (b != b))
    return same


def _form(got: Sequence[Array], to: Standard) -> str | None:
    if len(got) != len(to.dtypes):
        return f"{len(got)} outputs, the op has {len(to.dtypes)}"
    for i, (value, shape, name) in enumerate(zip(got, to.shapes, to.dtypes, strict=True)):
        if value.shape != shape:
            return f"output {i} has shape {list(value.shape)}, the op's is {list(shape)}"
        if value.dtype.name != name:
            return f"output {i} has dtype {value.dtype.name}, the op's is {name}"
    return None


def _together(results: Sequence[Comparison | Skip], rtol: float | None, atol: float | None) -> Comparison | Skip:
    """The worst output's answer; Skip only if no output could be judged."""
    judged = [r for r in results if isinstance(r, Comparison)]
    skipped = [(i, r) for i, r in enumerate(results) if isinstance(r, Skip)]
    if skipped and not judged:
        return skipped[0][1]
    worst = max(judged, key=lambda r: (not r.ok, r.margin), default=_passed(0))
    excused = sum(r.excused for r in judged)
    flags = [f"{name} {v:g} is the workload's own" for name, v in (("rtol", rtol), ("atol", atol)) if v is not None]
    flags += [f"near the limit: {worst.margin:.0%} of it"] if NEAR < worst.margin <= 1 else []
    flags += [f"{excused} elements excused"] if excused else []
    flags += [f"output {i} not judged: {r.reason}" for i, r in skipped]
    return replace(worst, excused=excused, flags=tuple(flags))


def _passed(excused: int) -> Comparison:
    return Comparison(True, 0.0, 0.0, 0.0, None, None, None, "equal", excused)


def _integers(leaf: _Leaf) -> _Integers:
    stack = np.stack([leaf.exact, *leaf.others]).astype(np.int64 if leaf.dtype != "uint64" else np.uint64)
    references = stack[1 : 2 + (leaf.chip is not None)]
    allowed = max(1, leaf.exact.size // 1000, 2 * int((references != stack[0]).any(0).sum()))
    step = 1 if leaf.jumps and leaf.dtype != "bool" else 0
    low, high = np.minimum(stack.min(0), stack[0] - step), np.maximum(stack.max(0), stack[0] + step)
    judged = np.ones(leaf.exact.shape, bool) if leaf.free is None else ~leaf.free
    return _Integers(stack[0].copy(), low, high, judged, allowed, leaf.dtype)


def _exactly(index: int, got: Array, to: _Integers) -> Comparison:
    """Exact, but for the few elements that a reference shows to hang on a rounding (a quantized tie, two equal maxima).

    There the candidate may give any value between those of the references.
    """
    want, value = to.want, got.astype(to.want.dtype)
    differs = (value != want) & to.judged
    hang = differs & (to.low != to.high) & (value >= to.low) & (value <= to.high)
    excused = int(hang.sum())
    if excused <= to.allowed:
        differs &= ~hang
    if not differs.any():
        return _passed(excused)
    error = np.where(differs, np.abs(value.astype(np.float64) - want.astype(np.float64)), 0.0)
    at = np.unravel_index(int(error.argmax()), error.shape)
    reason = f"{int(differs.sum())} of {differs.size} {to.dtype} elements differ; such outputs are compared exactly"
    return _at(index, at, value, want, np.zeros(error.shape), float(error[at]), float("inf"), reason)


def _at(
    leaf: int, at: Any, got: Array, want: Array, limits: Array, max_error: float, margin: float, reason: str
) -> Comparison:
    """The comparison whose worst element is `at`; it fails if the margin is above 1."""
    index = tuple(int(i) for i in at)
    value, wanted = float(got[at]), float(want[at])
    if margin > 1:
        reason = f"output {leaf} at {list(index)}: got {value:.9g}, want {wanted:.9g}; {reason}"
    return Comparison(margin <= 1, max_error, float(limits[at]), margin, (leaf, index), value, wanted, reason)


def _floats(leaf: _Leaf, form: Format, rtol: float | None, atol: float | None) -> _Floats | Skip:
    exact, native = _wide(leaf.exact), _wide(leaf.native)
    chip = None if leaf.chip is None else _wide(leaf.chip)
    nudged, draws = [_wide(n) for n in leaf.nudged], [_wide(d) for d in leaf.draws]
    if not exact.size:
        return _Floats(exact, exact, exact.astype(bool), 0)
    judged = _judged(exact, native, form)
    # What is nobody's fault does not count against the op either.
    if leaf.moot is not None:
        judged |= _wide(leaf.moot) > 0
    if leaf.free is not None:
        judged |= leaf.free
    excused = int((~judged).sum())
    if excused > _SKIPPED_FRACTION * judged.size:
        why = f"the op itself overflows, or is NaN otherwise than exactly, on {excused} of {judged.size} elements"
        return Skip(why, excused / judged.size)
    if leaf.free is not None:
        judged &= ~leaf.free
    if leaf.moot is not None:
        judged &= np.isfinite(exact) | ~(_wide(leaf.moot) > 0)
    with np.errstate(invalid="ignore", over="ignore"):
        limit, scale = limits(exact, native, chip, nudged, draws, judged, form, rtol, atol, leaf.jumps)
        loose = judged & np.isfinite(exact) & (limit - form.tiny > 0.5 * np.maximum(np.abs(exact), scale))
        if loose.mean() > 0.5:
            return Skip("the op's own rounding is as large as its result", float(loose.mean()))
    return _Floats(exact, limit, judged, excused)


def _wide(array: Array) -> Array:
    """float64; a complex array gets a last axis of its two parts."""
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], -2).astype(np.float64)
    return array.astype(np.float64)


def _judged(exact: Array, native: Array, form: Format) -> Array:
    """Where the op itself has the exact result's kind: the same NaN, the same infinity, or both finite."""
    fits = np.isfinite(native) & (np.abs(exact) <= form.largest)
    judged: Array = np.where(np.isfinite(exact), fits, _same(exact, native))
    return judged


def _nearly(index: int, got: Array, to: _Floats) -> Comparison:
    """Every element within its limit, and of the exact result's kind: finite, NaN or the same infinity."""
    if not got.size:
        return _passed(0)
    exact, judged = to.want, to.judged
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.isfinite(exact)
        same_kind = np.where(finite, np.isfinite(got), _same(exact, got)) | ~judged
        if not same_kind.all():
            at = np.unravel_index(int((~same_kind).argmax()), got.shape)
            reason = f"{int((~same_kind).sum())} of {got.size} elements differ in being finite, NaN or infinite"
            return _at(index, at, got, exact, to.limit, float("inf"), float("inf"), reason)
        error = np.where(judged & finite, np.abs(got - exact), 0.0)
        ratio = np.divide(error, to.limit, out=np.zeros_like(error), where=error > 0)
    at = np.unravel_index(int(ratio.argmax()), ratio.shape)
    over = int((ratio > 1).sum())
    reason = "within limits"
    if over:
        reason = f"{over} of {got.size} elements are further off than the op's precision allows"
    made = _at(index, at, got, exact, to.limit, float(error.max()), float(ratio[at]), reason)
    return replace(made, excused=to.excused)

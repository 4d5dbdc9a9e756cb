"""Arithmetic, comparisons and conversions, of scalars and vectors alike. Narrow floats round after each operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from aka.artifact.code import Builder, Machine, Step
from aka.artifact.dialect import numpy_dtype
from aka.artifact.lifting import NARROWINGS
from aka.artifact.program import Op

Array = Any


def _in_f32(fn: Callable[..., Array]) -> Callable[..., Array]:
    """`fn` for operations that NumPy has for no narrow float: computed in float32, rounded once."""
    return lambda *xs: fn(*[np.asarray(x, np.float32) for x in xs]).astype(np.asarray(xs[0]).dtype)[()]


def unsigned(x: Array) -> Array:
    """The same bits as an unsigned integer."""
    x = np.asarray(x)
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))[()] if x.dtype.kind == "i" else x[()]


def _as_unsigned(fn: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, b: np.asarray(fn(unsigned(a), unsigned(b))).view(np.asarray(a).dtype)[()]


def _divide(a: Array, b: Array) -> Array:
    """Integer division that truncates; anything divided by 0 is -1."""
    safe = np.where(b == 0, np.ones_like(b), b)
    return np.where(b == 0, -1, (a - np.fmod(a, safe)) // safe).astype(np.asarray(a).dtype)[()]


def _shift(fn: Callable[..., Array]) -> Callable[..., Array]:
    def shift(a: Array, b: Array) -> Array:
        wide = unsigned(b) >= 8 * np.asarray(a).dtype.itemsize
        return np.where(wide, np.zeros_like(a), fn(a, np.where(wide, np.zeros_like(b), b)))[()]

    return shift


def _half_away(x: Array) -> Array:
    return np.trunc(x + np.copysign(0.5, x))


def _leading_zeros(x: Array) -> Array:
    width = 8 * np.asarray(x).dtype.itemsize
    return (width - np.frexp(unsigned(x).astype(np.float64))[1]).astype(np.asarray(x).dtype)


ELEMENTWISE: dict[str, Callable[..., Array]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "arith.negf": np.negative,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divsi": _divide,
    "arith.remsi": np.fmod,
    "arith.floordivsi": np.floor_divide,
    "arith.divui": _as_unsigned(np.floor_divide),
    "arith.remui": _as_unsigned(np.fmod),
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.maxui": _as_unsigned(np.maximum),
    "arith.minui": _as_unsigned(np.minimum),
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": _shift(np.left_shift),
    "arith.shrsi": np.right_shift,
    "arith.shrui": _shift(_as_unsigned(np.right_shift)),
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.expm1": np.expm1,
    "math.log": np.log,
    "math.log2": np.log2,
    "math.log1p": np.log1p,
    "math.sqrt": np.sqrt,
    "math.rsqrt": _in_f32(lambda x: 1 / np.sqrt(x)),
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.tan": np.tan,
    "math.tanh": np.tanh,
    "math.atan2": np.arctan2,
    "math.erf": _in_f32(special.erf),
    "math.powf": np.power,
    "math.fpowi": _in_f32(np.power),
    "math.absf": np.abs,
    "math.absi": np.abs,
    "math.floor": np.floor,
    "math.ceil": np.ceil,
    "math.trunc": np.trunc,
    "math.round": _half_away,
    "math.roundeven": np.rint,
    "math.ctpop": lambda x: np.bitwise_count(unsigned(x)).astype(np.asarray(x).dtype),
    "math.ctlz": _leading_zeros,
    "tpu.weird": lambda x: ~np.isfinite(x),
    # The approximate reciprocal is computed exactly: its error on the chip is below what bf16 shows.
    "tpu.reciprocal": _in_f32(np.reciprocal),
}

_SIGNED = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
_UNSIGNED = (np.less, np.less_equal, np.greater, np.greater_equal)
# MLIR's float predicates in order: false, oeq ogt oge olt ole one ord, ueq ugt uge ult ule une uno, true.
_FLOAT: tuple[Callable[[Array, Array], Array], ...] = (
    lambda a, b: np.zeros(np.shape(a), np.bool_)[()],
    np.equal,
    np.greater,
    np.greater_equal,
    np.less,
    np.less_equal,
    # jax lowers `!=` to the ordered "one", which the compiler turns into `vcmp.ne.f32.partialorder` (seen in the v5e
    # bundles of libtpu 0.0.42.1): true for NaN.
    np.not_equal,
    lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    lambda a, b: ~((a < b) | (a > b)),
    lambda a, b: ~(a <= b),
    lambda a, b: ~(a < b),
    lambda a, b: ~(a >= b),
    lambda a, b: ~(a > b),
    np.not_equal,
    lambda a, b: np.isnan(a) | np.isnan(b),
    lambda a, b: np.ones(np.shape(a), np.bool_)[()],
)


def _elementwise(op: Op, machine: Machine) -> Step:
    return ELEMENTWISE[op.name]


def _constant(op: Op, machine: Machine) -> Step:
    type_ = op.result_types[0]
    dtype = numpy_dtype(type_.dtype)
    value = np.broadcast_to(np.asarray(op.attributes["value"]).astype(dtype), type_.shape)
    made = value if type_.shape else value[()]
    return lambda: made


def _compare_integers(op: Op, machine: Machine) -> Step:
    predicate = int(op.attributes["predicate"])
    if predicate < len(_SIGNED):
        return _SIGNED[predicate]
    fn = _UNSIGNED[predicate - len(_SIGNED)]
    return lambda a, b: fn(unsigned(a), unsigned(b))


def _compare_floats(op: Op, machine: Machine) -> Step:
    return _FLOAT[int(op.attributes["predicate"])]


def _select(op: Op, machine: Machine) -> Step:
    if op.operand_types[0].kind == "scalar":
        return lambda condition, yes, no: yes if condition else no
    return lambda condition, yes, no: np.where(condition, yes, no)


def _cast(op: Op, machine: Machine) -> Step:
    dtype = numpy_dtype(op.result_types[0].dtype)
    return lambda x: np.asarray(x).astype(dtype)[()]


def _narrow(op: Op, machine: Machine) -> Step:
    if op.results[0] in machine.wide:
        return lambda x: x
    return _cast(op, machine)


def _cast_unsigned(op: Op, machine: Machine) -> Step:
    dtype = numpy_dtype(op.result_types[0].dtype)
    return lambda x: unsigned(x).astype(dtype)[()]


def _sign_extend(op: Op, machine: Machine) -> Step:
    """Like a cast, but the one bit of a boolean is its sign."""
    dtype = numpy_dtype(op.result_types[0].dtype)
    sign = -1 if op.operand_types[0].dtype == "bool" else 1
    return lambda x: (np.asarray(x).astype(dtype) * dtype.type(sign))[()]


def _truncate(op: Op, machine: Machine) -> Step:
    dtype = numpy_dtype(op.result_types[0].dtype)
    return lambda x: (np.asarray(x) & 1 if dtype == np.bool_ else np.asarray(x)).astype(dtype)[()]


def _to_integer(op: Op, machine: Machine) -> Step:
    """Float to integer: truncates, saturates, and turns NaN into 0."""
    dtype = numpy_dtype(op.result_types[0].dtype)
    signed = "ui" not in op.name
    info = np.iinfo(dtype if signed or dtype.kind == "u" else np.dtype(f"u{dtype.itemsize}"))

    def convert(x: Array) -> Array:
        wide = np.nan_to_num(np.asarray(x, np.float64), nan=0.0, posinf=info.max, neginf=info.min)
        return np.clip(np.trunc(wide), info.min, info.max).astype(info.dtype).astype(dtype)[()]

    return convert


TABLE: dict[str, Builder] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    "arith.constant": _constant,
    "arith.cmpi": _compare_integers,
    "arith.cmpf": _compare_floats,
    "arith.select": _select,
    **dict.fromkeys(("arith.index_cast", "arith.extf", "tpu.extf", "arith.sitofp", "tpu.sitofp"), _cast),
    **dict.fromkeys(NARROWINGS, _narrow),
    **dict.fromkeys(("arith.extui", "arith.uitofp", "arith.index_castui", "tpu.uitofp"), _cast_unsigned),
    "arith.extsi": _sign_extend,
    "arith.trunci": _truncate,
    **dict.fromkeys(("arith.fptosi", "tpu.fptosi", "arith.fptoui", "tpu.fptoui"), _to_integer),
}

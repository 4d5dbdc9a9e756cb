"""Vector shapes: broadcasts, slices, transposes, rotations, reductions, packing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from aka.artifact import dialect
from aka.artifact.code import Builder, Machine, Step
from aka.artifact.dialect import numpy_dtype
from aka.artifact.errors import Unsupported
from aka.artifact.program import Op

Array = Any


def _broadcast(op: Op, machine: Machine) -> Step:
    shape = op.result_types[0].shape
    return lambda x: np.broadcast_to(x, shape)


def _reshape(op: Op, machine: Machine) -> Step:
    shape = op.result_types[0].shape
    return lambda x: np.reshape(x, shape)


def _identity(op: Op, machine: Machine) -> Step:
    return lambda x, *rest: x


def _transpose(op: Op, machine: Machine) -> Step:
    permutation = op.attributes["permutation"]
    return lambda x: np.transpose(x, permutation)


def _concatenate(op: Op, machine: Machine) -> Step:
    axis = int(op.attributes["dimension"])
    return lambda *xs: np.concatenate(xs, axis)


def _repeat(op: Op, machine: Machine) -> Step:
    axis, times = int(op.attributes["dimension"]), int(op.attributes["times"])
    return lambda x: np.concatenate([x] * times, axis)


def _iota(op: Op, machine: Machine) -> Step:
    type_ = op.result_types[0]
    axes = op.attributes["dimensions"] if "dimensions" in op.attributes else (int(op.attributes["dimension"]),)
    sizes = [n if axis in axes else 1 for axis, n in enumerate(type_.shape)]
    count = np.arange(math.prod(sizes)).astype(numpy_dtype(type_.dtype)).reshape(sizes)
    made = np.broadcast_to(count, type_.shape)
    return lambda: made


def _extract(op: Op, machine: Machine) -> Step:
    position = tuple(op.attributes.get("static_position", ()))
    if len(op.operands) > 1:
        raise Unsupported(op.name, "a dynamic position")
    return lambda x: x[position]


def _extract_slice(op: Op, machine: Machine) -> Step:
    offsets, sizes, strides = (op.attributes[k] for k in ("offsets", "sizes", "strides"))
    parts = tuple(slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(offsets, sizes, strides, strict=True))
    return lambda x: x[parts]


def _rotate(op: Op, machine: Machine) -> Step:
    axis = int(op.attributes["dimension"])
    stride, along = op.attributes.get("stride"), op.attributes.get("stride_dimension")
    if "amount" in op.attributes:
        amount = int(op.attributes["amount"])
        return lambda x: np.roll(x, amount, axis)
    if stride is None or along is None:
        return lambda x, amount: np.roll(x, int(amount), axis)

    def rotate(x: Array, amount: Array) -> Array:
        rows = np.split(x, x.shape[along], along)
        return np.concatenate([np.roll(r, int(amount) + i * stride, axis) for i, r in enumerate(rows)], along)

    return rotate


_REDUCTIONS: dict[str, tuple[Callable[..., Array], Callable[..., Array]]] = {
    "add": (np.sum, np.add),
    "mul": (np.prod, np.multiply),
    "maximumf": (np.max, np.maximum),
    "minimumf": (np.min, np.minimum),
    "maxnumf": (np.fmax.reduce, np.fmax),
    "minnumf": (np.fmin.reduce, np.fmin),
    "maxsi": (np.max, np.maximum),
    "minsi": (np.min, np.minimum),
    "and": (np.bitwise_and.reduce, np.bitwise_and),
    "or": (np.bitwise_or.reduce, np.bitwise_or),
    "xor": (np.bitwise_xor.reduce, np.bitwise_xor),
}


def _reduce(op: Op, machine: Machine) -> Step:
    """A reduction into an accumulator. Narrow floats are summed in float32 and rounded once."""
    kind = str(op.attributes["kind"]).rsplit("<", 1)[-1].rstrip(">")
    if kind not in _REDUCTIONS:
        raise Unsupported(op.name, kind)
    whole, pair = _REDUCTIONS[kind]
    axes = tuple(op.attributes["reduction_dims"])
    dtype = numpy_dtype(op.result_types[0].dtype)
    wide = np.dtype(np.float32) if dtype.itemsize < 4 and "float" in dtype.name else dtype

    def reduce(x: Array, start: Array) -> Array:
        return pair(whole(x.astype(wide, copy=False), axis=axes).astype(wide), start).astype(dtype)

    return reduce


def _reduce_index(op: Op, machine: Machine) -> Step:
    kind, axis = str(op.attributes["kind"]), int(op.attributes["axis"])
    fn = np.argmax if "max" in kind else np.argmin
    dtype = numpy_dtype(op.result_types[0].dtype)
    return lambda x: fn(x, axis).astype(dtype)


def _gather(op: Op, machine: Machine) -> Step:
    axes = op.attributes["dimensions"] if "dimensions" in op.attributes else (int(op.attributes["dimension"]),)
    if len(axes) != 1:
        raise Unsupported(op.name, "several dimensions")
    return lambda x, indices: np.take_along_axis(x, indices.astype(np.int64), int(axes[0]))


def bitcast(x: Array, dtype: np.dtype[Any]) -> Array:
    """The same bits as another type. Between widths, rows (the second to last axis) are packed low half first."""
    x = np.ascontiguousarray(x) if np.ndim(x) else np.asarray(x)
    have, want = x.dtype.itemsize, dtype.itemsize
    if have == want:
        return x.view(dtype)[()]
    if have < want:
        ratio = want // have
        packed = np.moveaxis(x.reshape(*x.shape[:-2], x.shape[-2] // ratio, ratio, x.shape[-1]), -2, -1)
        return np.ascontiguousarray(packed).view(dtype)[..., 0]
    ratio = have // want
    parts = x[..., None].view(dtype)
    return np.moveaxis(parts, -1, -2).reshape(*x.shape[:-2], x.shape[-2] * ratio, x.shape[-1])


def _bitcast(op: Op, machine: Machine) -> Step:
    dtype = numpy_dtype(op.result_types[0].dtype)
    if dialect.bits(dtype.name) < 8 or dialect.bits(op.operand_types[0].dtype) < 8:
        raise Unsupported(op.name, "sub-byte types")
    return lambda x: bitcast(x, dtype)


TABLE: dict[str, Builder] = {
    "vector.broadcast": _broadcast,
    "vector.splat": _broadcast,
    "vector.shape_cast": _reshape,
    "vector.extract": _extract,
    "vector.extract_strided_slice": _extract_slice,
    "vector.multi_reduction": _reduce,
    "tpu.transpose": _transpose,
    "tpu.concatenate": _concatenate,
    "tpu.repeat": _repeat,
    "tpu.iota": _iota,
    "tpu.dynamic_rotate": _rotate,
    "tpu.reduce_index": _reduce_index,
    "tpu.dynamic_gather": _gather,
    "tpu.bitcast": _bitcast,
    "tpu.relayout": _identity,
    "tpu.assume_layout": _identity,
    "tpu.assume_multiple": _identity,
}

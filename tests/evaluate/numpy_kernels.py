"""Ops, correct kernels and wrong ones as NumPy functions: the table that `test_numerics.py` runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from aka.evaluate.inputs import make, nudge
from aka.evaluate.numerics import Comparison, Skip, compare
from aka.types import ArraySpec

Array = np.ndarray[Any, Any]
Kernel = Callable[..., Array]
BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.float32


def bf16(x: Array) -> Array:
    return x.astype(BF16).astype(x.dtype)


@dataclass(frozen=True)
class Op:
    """`math` runs in whatever precision its arguments have: float64 is the reference, float32 the native run."""

    math: Kernel
    specs: tuple[ArraySpec, ...]
    dtype: str
    chip: Kernel | None = None

    def references(self, args: list[Array]) -> tuple[Array, Array, Array | None, list[list[Array]]]:
        wide = [a.astype(np.float64) if a.dtype.kind != "i" else a for a in args]
        native = self.math(*[a.astype(F32) if a.dtype.kind != "i" else a for a in args])
        chip = self.chip(*wide) if self.chip else None
        nudged = [[self.math(*nudge(args, s))] for s in range(4)]
        return self.math(*wide), native.astype(np.dtype(getattr(ml_dtypes, self.dtype, self.dtype))), chip, nudged

    def judge(self, kernel: Kernel, args: list[Array], nudged: bool = True) -> Comparison | Skip:
        exact, native, chip, moved = self.references(args)
        got = np.asarray(kernel(*args)).astype(native.dtype)
        return compare(
            [got], [exact], [native], None if chip is None else [chip], [self.dtype], nudged=moved if nudged else ()
        )


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms_norm(x: Array, w: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(1e-6)) * w


def layer_norm(x: Array) -> Array:
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + x.dtype.type(1e-5))


def matmul(a: Array, b: Array) -> Array:
    return a @ b


def integers(x: Array, y: Array) -> Array:
    return x * np.int32(3) + np.maximum(x, y)


ROWS, COLUMNS = 24, 128
X = ArraySpec((ROWS, COLUMNS), "float32")
B = ArraySpec((COLUMNS, 32), "float32")


Q = ArraySpec((48, 32), "float32")


def _attention(q: Array, k: Array, v: Array, operand: Callable[[Array], Array] = lambda x: x) -> Array:
    s = operand(q) @ operand(k).T / q.dtype.type(np.sqrt(q.shape[1]))
    return operand(softmax(np.where(np.tri(len(q), dtype=bool), s, q.dtype.type(-1e9)))) @ operand(v)


def _bf(spec: ArraySpec) -> ArraySpec:
    return ArraySpec(spec.shape, "bfloat16")


def _total(x: Array) -> Array:
    return np.asarray(x.sum())


OPS = {
    "softmax": Op(softmax, (X,), "float32"),
    "rms_norm": Op(rms_norm, (_bf(X), ArraySpec((COLUMNS,), "bfloat16")), "bfloat16"),
    "layer_norm": Op(layer_norm, (X,), "float32"),
    "matmul": Op(matmul, (X, B), "float32", lambda a, b: bf16(a) @ bf16(b)),
    "matmul_bf16": Op(matmul, (_bf(X), _bf(B)), "bfloat16"),
    "attention": Op(lambda *qkv: _attention(*qkv), (Q,) * 3, "float32", lambda *qkv: _attention(*qkv, bf16)),
    "total": Op(_total, (X,), "float32"),
    "row_sums": Op(lambda x: x.sum(-1), (X,), "float32"),
    "integers": Op(integers, (ArraySpec((ROWS, COLUMNS), "int32"),) * 2, "int32"),
}


def _chip_exp(x: Array) -> Array:
    """An exponential that errs by up to 2 ulp, another way for each bit pattern."""
    e = np.exp(x)
    return e * (1 + F32(2.0**-23) * ((e.view(np.uint32) % 5).astype(F32) - 2))


def _blocked_sum(x: Array, axis: int = -1) -> Array:
    """One running sum per lane (128 of them; 8 on small rows, to be harsher than hardware), and those in order."""
    parts = x.reshape(*x.shape[:-1], -1, 128 if x.shape[-1] % 1024 == 0 else 8)
    total = parts[..., 0, :]
    for i in range(1, parts.shape[-2]):
        total = total + parts[..., i, :]
    return np.add.accumulate(total, -1)[..., -1]


def _softmax_on_chip(x: Array) -> Array:
    e = _chip_exp(x - x.max(-1, keepdims=True))
    return e * (F32(1) / _blocked_sum(e)[:, None] * F32(1 + 2.0**-22))


def _softmax_online(x: Array) -> Array:
    m = np.full((len(x), 1), -np.inf, F32)
    l = np.zeros((len(x), 1), F32)
    for i in range(0, x.shape[1], 32):
        new = np.maximum(m, x[:, i : i + 32].max(-1, keepdims=True))
        l = l * np.exp(m - new) + np.exp(x[:, i : i + 32] - new).sum(-1, keepdims=True)
        m = new
    return np.exp(x - m) / l


def _rms_wide(x: Array, w: Array) -> Array:
    wide = x.astype(F32)
    return wide * (F32(1) / np.sqrt(_blocked_sum(wide * wide)[:, None] / F32(x.shape[1]) + F32(1e-6))) * w.astype(F32)


def _rms_twice_rounded(x: Array, w: Array) -> Array:
    wide = x.astype(F32)
    y = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + F32(1e-6))
    return y.astype(BF16) * w


def _layer_norm_on_chip(x: Array) -> Array:
    d = x - _blocked_sum(x)[:, None] * F32(1 / x.shape[1])
    return d * (F32(1) / np.sqrt(_blocked_sum(d * d)[:, None] * F32(1 / x.shape[1]) + F32(1e-5)))


def _flash(q: Array, k: Array, v: Array, operand: Callable[[Array], Array] = lambda x: x) -> Array:
    """Online softmax over blocks of 16 keys, dividing at the end."""
    n, scale = len(q), F32(1 / np.sqrt(q.shape[1]))
    m, l, acc = np.full((n, 1), -1e30, F32), np.zeros((n, 1), F32), np.zeros_like(q)
    for i in range(0, n, 16):
        s = operand(q) @ operand(k[i : i + 16]).T * scale
        s = np.where(np.arange(n)[:, None] >= np.arange(i, i + 16), s, F32(-1e9))
        new = np.maximum(m, s.max(-1, keepdims=True))
        p, keep = _chip_exp(s - new), _chip_exp(m - new)
        m, l, acc = new, l * keep + p.sum(-1, keepdims=True), acc * keep + operand(p) @ operand(v[i : i + 16])
    return acc / l


def _split_k(a: Array, b: Array) -> Array:
    wide = [x.astype(F32) for x in (a, b)]
    return sum(wide[0][:, i : i + 32] @ wide[1][i : i + 32] for i in range(0, a.shape[1], 32))


def _one_pass(a: Array, b: Array) -> Array:
    return _split_k(bf16(a), bf16(b))


GOOD: dict[str, tuple[Kernel, ...]] = {
    "softmax": (softmax, _softmax_on_chip, _softmax_online),
    "rms_norm": (_rms_wide, _rms_twice_rounded),
    "layer_norm": (layer_norm, _layer_norm_on_chip),
    "matmul": (_split_k, _one_pass),
    "matmul_bf16": (_split_k,),
    "attention": (_flash, lambda q, k, v: _flash(q, k, v, bf16)),
    "total": (lambda x: _blocked_sum(x.reshape(1, -1))[0], lambda x: x.sum(0).sum()),
    "row_sums": (_blocked_sum, lambda x: np.add.accumulate(x, -1)[:, -1]),
    "integers": (integers, lambda x, y: x + x + x + np.where(x > y, x, y)),
}


def _altered(kernel: Kernel, change: Callable[[Array], Array]) -> Kernel:
    return lambda *args: change(np.array(kernel(*args)))


def _without_last_row(y: Array) -> Array:
    y[-1:] = 0
    return y


def _without_last_block(y: Array) -> Array:
    y[..., -y.shape[-1] // 8 :] = 0
    return y


def _in_bf16(kernel: Kernel) -> Kernel:
    return lambda *args: kernel(*[a.astype(BF16) for a in args]).astype(F32)


def _cut(n: int, axis: int = -1) -> Callable[[Array], Array]:
    return lambda x: np.take(x, np.arange(x.shape[axis] - n), axis)


def _padded(kernel: Kernel, n: int) -> Kernel:
    """Reduces over all but the last `n` columns."""

    def run(x: Array, *rest: Array) -> Array:
        y = kernel(_cut(n)(x), *[w[:-n] for w in rest])
        return np.concatenate([y, np.zeros((len(x), n), y.dtype)], -1) if y.ndim == 2 else y

    return run


def _unnormalised(x: Array) -> Array:
    e = np.exp(x)
    return e / e.sum(-1, keepdims=True)


def _softmax_in_bf16(x: Array) -> Array:
    x = x.astype(BF16)
    e = np.exp(x - x.max(-1, keepdims=True)).astype(BF16)
    return (e / e.sum(-1, keepdims=True).astype(BF16)).astype(F32)


def _variance_by_moments(x: Array) -> Array:
    m = x.mean(-1, keepdims=True)
    return (x - m) / np.sqrt((x * x).mean(-1, keepdims=True) - m * m + F32(1e-5))


def _masked_attention(q: Array, k: Array, v: Array, shift: int) -> Array:
    s = q @ k.T / F32(np.sqrt(q.shape[1]))
    return softmax(np.where(np.tri(len(q), k=shift, dtype=bool), s, F32(-1e9))) @ v


def _bf16_accumulator(a: Array, b: Array) -> Array:
    total = np.zeros((a.shape[0], b.shape[1]), BF16)
    for i in range(a.shape[1]):
        total = (total + a[:, i : i + 1].astype(BF16) * b[i : i + 1].astype(BF16)).astype(BF16)
    return total.astype(F32)


GENERAL: dict[str, Callable[[Kernel], Kernel]] = {
    "zeros": lambda k: _altered(k, np.zeros_like),
    "constant": lambda k: _altered(k, lambda y: np.full_like(y, y.flat[0])),
    "last row skipped": lambda k: _altered(k, _without_last_row),
    "last block skipped": lambda k: _altered(k, _without_last_block),
    "rows off by one": lambda k: _altered(k, lambda y: np.roll(y, 1, 0)),
    "columns off by one": lambda k: _altered(k, lambda y: np.roll(y, 1, -1)),
    "rows reversed in a block": lambda k: _altered(k, lambda y: np.concatenate([y[:8][::-1], y[8:]])),
    "mean": lambda k: _altered(k, lambda y: np.broadcast_to(y.mean(-1, keepdims=True, dtype=F32), y.shape)),
}
NAN: dict[str, Callable[[Kernel], Kernel]] = {"never written": lambda k: _altered(k, lambda y: np.full_like(y, np.nan))}
_ONE_VALUE = {k: GENERAL[k] for k in ("zeros",)}
_ROWS_ONLY = {k: GENERAL[k] for k in ("zeros", "constant", "last row skipped", "rows off by one")}

BAD: dict[str, dict[str, Kernel]] = {
    "softmax": {
        "no maximum": _unnormalised,
        "bf16": _softmax_in_bf16,
        "bf16 result": lambda x: bf16(softmax(x)),
        "bf16 input": lambda x: softmax(bf16(x)),
        "wrong axis": lambda x: softmax(x.T).T,
        "short reduction": _padded(softmax, 1),
        "global maximum": lambda x: (e := np.exp(x - x.max())) / e.sum(-1, keepdims=True),
    },
    "rms_norm": {
        "wrong axis": lambda x, w: rms_norm(x.astype(F32).T, np.ones(ROWS, F32)).T * w.astype(F32),
        "no weight": lambda x, w: rms_norm(x.astype(F32), np.ones(COLUMNS, F32)),
        "no epsilon": lambda x, w: (y := x.astype(F32)) / np.sqrt((y * y).mean(-1, keepdims=True)) * w.astype(F32),
        "mean of one less": lambda x, w: _rms_wide(x, w) * F32(np.sqrt((COLUMNS - 4) / COLUMNS)),
        "short reduction": lambda x, w: (
            x.astype(F32) / np.sqrt((x[:, :-8].astype(F32) ** 2).mean(-1, keepdims=True) + F32(1e-6)) * w.astype(F32)
        ),
    },
    "layer_norm": {
        "bf16": _in_bf16(layer_norm),
        "variance by moments": _variance_by_moments,
        "unbiased": lambda x: layer_norm(x) * F32(np.sqrt((COLUMNS - 1) / COLUMNS)),
    },
    "matmul": {
        "last k skipped": lambda a, b: a[:, :-1] @ b[:-1],
        "bf16 accumulator": _bf16_accumulator,
        "no accumulation": lambda a, b: a[:, -64:] @ b[-64:],
        "transposed block": lambda a, b: np.concatenate([a[:8] @ b[:, ::-1], a[8:] @ b]),
    },
    "matmul_bf16": {
        "last k skipped": lambda a, b: a[:, :-1].astype(F32) @ b[:-1].astype(F32),
        "no accumulation": lambda a, b: a[:, -64:].astype(F32) @ b[-64:].astype(F32),
        "bf16 accumulator": _bf16_accumulator,
    },
    "attention": {
        "no mask": lambda q, k, v: softmax(q @ k.T / F32(np.sqrt(32))) @ v,
        "mask off by one": lambda q, k, v: _masked_attention(q, k, v, -1),
        "no maximum": lambda q, k, v: (
            (e := np.exp(q @ k.T / F32(np.sqrt(32))) * np.tri(48, dtype=F32)) @ v / e.sum(-1, keepdims=True)
        ),
        "no scale": lambda q, k, v: _attention(q * F32(np.sqrt(32)), k, v),
        "last key block": lambda q, k, v: _flash(q, np.where(np.arange(48)[:, None] < 40, k, 0), v),
        "no rescale": lambda q, k, v: _flash(q, k, v) * (1 + F32(1e-1) * (np.arange(48) % 7 == 0)[:, None]),
    },
    "total": {
        "last row skipped": lambda x: x[:-1].sum(),
        "sampled": lambda x: x[::2].sum() * F32(2),
        "bf16": lambda x: bf16(x).sum(),
        "last element": lambda x: x.ravel()[:-1].sum(),
    },
    "row_sums": {"last column": lambda x: x[:, :-1].sum(-1), "bf16": lambda x: bf16(x).sum(-1)},
    "integers": {
        "off by one": lambda x, y: integers(x, y) + np.int32(1),
        "through float32": lambda x, y: (x.astype(F32) * F32(3) + np.maximum(x, y).astype(F32)).astype(np.int32),
        "one wrong": lambda x, y: integers(x, y) + (np.arange(COLUMNS) == 77).astype(np.int32),
    },
}
for _name, _table in BAD.items():
    _wrappers = _ONE_VALUE if _name == "total" else _ROWS_ONLY if _name == "row_sums" else GENERAL
    _wrappers = _wrappers if _name == "integers" else _wrappers | NAN
    _table |= {f"{label}": wrap(GOOD[_name][0]) for label, wrap in _wrappers.items()}
BAD_CASES = [(op, bad) for op, table in BAD.items() for bad in table]
WIDE = np.array([-(2**30), 2**30], np.int32)


def arguments(name: str, family: str, seed: int) -> list[Array]:
    op = OPS[name]
    return make(family, op.specs, seed, [WIDE] * 2 if name == "integers" else None)

"""Good kernels pass and bad ones are found, as NumPy functions over every input family, seed by seed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_kernels import BAD, BAD_CASES, F32, GOOD, OPS, Array, Op, arguments

from aka.evaluate.inputs import families, make, nudge
from aka.evaluate.limits import number_format
from aka.evaluate.numerics import Comparison, Skip, compare, hold, standard, weakness
from aka.types import ArraySpec

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("name", OPS)
def test_correct_kernels_pass_on_20_seeds(name: str) -> None:
    judged = 0
    for seed in range(20):
        for family in families():
            args = arguments(name, family, seed)
            for i, kernel in enumerate(GOOD[name]):
                verdict = OPS[name].judge(kernel, args)
                judged += isinstance(verdict, Comparison)
                assert isinstance(verdict, Skip) or verdict.ok, (family, seed, i, verdict)
    assert judged >= 0.8 * 20 * len(families()) * len(GOOD[name])


@pytest.mark.parametrize("name", sorted(set(OPS) - {"total", "layer_norm"}))
def test_correct_kernels_pass_without_nudged_references(name: str) -> None:
    for family in families():
        args = arguments(name, family, 0)
        for kernel in GOOD[name]:
            verdict = OPS[name].judge(kernel, args, nudged=False)
            assert isinstance(verdict, Skip) or verdict.ok, (family, verdict)


@pytest.mark.parametrize(("name", "bad"), BAD_CASES)
def test_wrong_kernels_are_found_on_every_seed(name: str, bad: str) -> None:
    for seed in range(3):
        verdicts = (OPS[name].judge(BAD[name][bad], arguments(name, f, seed)) for f in families())
        assert any(isinstance(v, Comparison) and not v.ok for v in verdicts), seed


MUST_FIND = [
    ("softmax", "no maximum", ("x100", "offset")),
    ("softmax", "bf16", ("normal", "x1e-3", "tail", "row_scales")),
    ("layer_norm", "variance by moments", ("offset",)),
    ("rms_norm", "no epsilon", ("tiny_rows",)),
    ("rms_norm", "zeros", ("x1e-3", "tiny_rows")),
    ("matmul", "last k skipped", ("tail",)),
    ("matmul_bf16", "last k skipped", ("tail",)),
    ("row_sums", "last row skipped", ("normal", "row_scales")),
]


@pytest.mark.parametrize(("name", "bad", "where"), MUST_FIND)
def test_each_family_finds_what_it_is_for(name: str, bad: str, where: tuple[str, ...]) -> None:
    for family in where:
        for seed in range(5):
            verdict = OPS[name].judge(BAD[name][bad], arguments(name, family, seed))
            assert isinstance(verdict, Comparison) and not verdict.ok, (family, seed)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(["softmax", "rms_norm", "layer_norm", "matmul", "total", "row_sums"]),
    st.integers(1, 40),
    st.integers(1, 20),
    st.integers(1, 9),
    st.integers(0, 2**128 - 1),
    st.sampled_from(families()),
)
def test_correct_kernels_are_never_rejected(name: str, rows: int, eighths: int, n: int, seed: int, family: str) -> None:
    columns = 8 * eighths
    shapes = [(rows, columns), (columns, n)] if name == "matmul" else [(rows, columns), (columns,)]
    old = OPS[name]
    op = Op(
        old.math, tuple(ArraySpec(s, o.dtype) for s, o in zip(shapes, old.specs, strict=False)), old.dtype, old.chip
    )
    for kernel in GOOD[name]:
        verdict = op.judge(kernel, make(family, op.specs, seed))
        assert isinstance(verdict, Skip) or verdict.ok, verdict


def _judge(got: Array, exact: Array, native: Array | None = None, **more: Any) -> Comparison | Skip:
    native = got.astype(np.float64).astype(got.dtype) if native is None else native
    return compare([got], [exact], [native], None, [got.dtype.name], **more)


EXACT = np.random.default_rng(5).normal(size=(8, 64))
NATIVE = EXACT.astype(F32)


def _moved(at: tuple[int, int], value: float) -> Array:
    got = NATIVE.copy()
    got[at] = value
    return got


def test_the_worst_element_is_named() -> None:
    verdict = _judge(_moved((3, 7), 9.0), EXACT, NATIVE)
    assert isinstance(verdict, Comparison) and not verdict.ok
    assert verdict.place == (0, (3, 7)) and verdict.got == 9.0 and verdict.want == EXACT[3, 7]
    assert verdict.margin > 1e3 and verdict.max_error == pytest.approx(9.0 - EXACT[3, 7])
    assert "output 0 at [3, 7]: got 9" in verdict.reason and "1 of 512" in verdict.reason


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_element_that_is_not_finite_is_found(value: float) -> None:
    verdict = _judge(_moved((7, 63), value), EXACT, NATIVE)
    assert isinstance(verdict, Comparison) and not verdict.ok and verdict.place == (0, (7, 63))


@pytest.mark.parametrize("got", [1.0, np.nan, -np.inf])
def test_an_infinity_of_the_reference_must_be_there_with_its_sign(got: float) -> None:
    exact, native = EXACT.copy(), NATIVE.copy()
    exact[0, 0] = native[0, 0] = np.inf
    verdict = _judge(_moved((0, 0), got), exact, native)
    assert isinstance(verdict, Comparison) and not verdict.ok
    assert _judge(native, exact, native).ok  # type: ignore[union-attr]


def test_shape_dtype_and_number_of_outputs_are_exact() -> None:
    one = ([EXACT], [NATIVE], None, ["float32"])
    for got in ([NATIVE[None]], [NATIVE.astype(np.float16)], [EXACT], [NATIVE, NATIVE], []):
        verdict = compare(got, *one)
        assert isinstance(verdict, Comparison) and not verdict.ok and verdict.place is None
    assert compare([NATIVE], *one).ok  # type: ignore[union-attr]


def test_fill_constants_do_not_loosen_the_values_beside_them() -> None:
    for fill in (-1e12, -np.inf, float(np.finfo(F32).min)):
        exact, native, got = EXACT.copy(), NATIVE.copy(), _moved((0, 1), NATIVE[0, 1] + 1e-3)
        for a in (exact, native, got):
            a[:, ::4] = fill
        assert not _judge(got, exact, native).ok  # type: ignore[union-attr]
        assert _judge(native, exact, native).ok  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [1e-3, 1e-10, 1e-30, 1e10])
def test_outputs_are_judged_by_their_own_size(size: float) -> None:
    native = (EXACT * size).astype(F32)
    assert _judge(native, EXACT * size, native).ok  # type: ignore[union-attr]
    for wrong in (np.zeros_like(native), native * F32(1.001), native[::-1]):
        assert not _judge(wrong, EXACT * size, native).ok  # type: ignore[union-attr]


def test_a_faint_row_may_flush_as_much_as_another_one_did() -> None:
    tiny = 2.0**-126
    exact = np.array([[40 * tiny], [30 * tiny], [1.0]])
    native = np.array([[37 * tiny], [30 * tiny], [1.0]], np.float32)  # the second row was lucky
    flushed, wrong = (np.array([[40 * tiny], [30 * tiny + off * tiny], [1.0]], np.float32) for off in (4, 20))
    nudged = [[exact * (1 + 1e-7)]]
    results = [compare([g], [exact], [native], None, ["float32"], nudged=nudged) for g in (flushed, wrong)]
    assert [isinstance(r, Comparison) and r.ok for r in results] == [True, False]


def test_an_op_that_overflows_by_itself_is_excused_or_skipped() -> None:
    exact, native = EXACT.copy(), NATIVE.copy()
    exact[2, 2], native[2, 2] = 1e39, np.inf
    verdict = _judge(_moved((2, 2), 5.0), exact, native)
    assert isinstance(verdict, Comparison) and verdict.ok and verdict.excused == 1
    assert any("1 elements excused" in f for f in verdict.flags)
    native[:, 3] = np.nan
    skipped = _judge(NATIVE, exact, native)
    assert isinstance(skipped, Skip) and skipped.fraction > 0.01 and "overflows" in skipped.reason


def test_an_op_that_errs_as_much_as_its_result_is_skipped() -> None:
    verdict = _judge(NATIVE, EXACT, NATIVE[::-1].copy())
    assert isinstance(verdict, Skip) and "as large as its result" in verdict.reason


def test_a_skipped_output_does_not_hide_a_wrong_one() -> None:
    native = [NATIVE[::-1].copy(), NATIVE]
    wrong = compare([NATIVE, _moved((1, 1), 9.0)], [EXACT] * 2, native, None, ["float32"] * 2)
    assert isinstance(wrong, Comparison) and not wrong.ok and wrong.place == (1, (1, 1))
    right = compare([NATIVE, NATIVE], [EXACT] * 2, native, None, ["float32"] * 2)
    assert isinstance(right, Comparison) and right.ok and "output 0 not judged" in right.flags[0]


def test_the_workloads_own_tolerance_is_used_and_named() -> None:
    got = NATIVE * F32(1.001)
    loose, tight = _judge(got, EXACT, NATIVE, rtol=1e-2), _judge(NATIVE * F32(1 + 2e-5), EXACT, NATIVE, rtol=1e-6)
    assert isinstance(loose, Comparison) and loose.ok and "rtol 0.01" in loose.flags[0]
    assert isinstance(tight, Comparison) and not tight.ok


def test_an_absolute_tolerance_shrinks_with_the_output() -> None:
    assert _judge(_moved((0, 1), NATIVE[0, 1] + 5e-3), EXACT, NATIVE, atol=1e-2).ok  # type: ignore[union-attr]
    tiny = (EXACT * 1e-4).astype(F32)
    assert not _judge(np.zeros_like(tiny), EXACT * 1e-4, tiny, atol=1e-2).ok  # type: ignore[union-attr]


def test_a_pass_near_the_limit_is_flagged() -> None:
    verdict = _judge(NATIVE * F32(1 + 4.6e-5), EXACT, NATIVE)
    assert isinstance(verdict, Comparison) and verdict.ok and "near the limit" in verdict.flags[0]


def test_both_parts_of_a_complex_number_count() -> None:
    exact = EXACT + 1j * EXACT[::-1]
    native = exact.astype(np.complex64)
    assert _judge(native, exact, native).ok  # type: ignore[union-attr]
    for wrong in (native.real.astype(np.complex64), native.conj(), native * np.complex64(1j)):
        assert not _judge(wrong, exact, native).ok  # type: ignore[union-attr]


def test_large_integers_are_not_compared_as_floats() -> None:
    want = np.full((4, 4), 2**30, np.int32)
    got = want.copy()
    got[2, 1] += 1
    verdict = _judge(got, want, want)
    assert (
        isinstance(verdict, Comparison) and not verdict.ok and verdict.place == (0, (2, 1)) and verdict.max_error == 1
    )


def test_an_integer_that_hangs_on_a_rounding_may_fall_either_way() -> None:
    x = np.random.default_rng(1).normal(size=(64, 64)).astype(F32)
    x[3, 3] = np.nextafter(F32(0.25), F32(1))
    quantize = lambda v: np.round(v * v.dtype.type(10)).astype(np.int8)  # noqa: E731
    exact, moved = quantize(x.astype(float)), [[quantize(a)] for s in range(4) for a in nudge([x], s)]
    got = exact.copy()
    got[3, 3] = 2
    assert exact[3, 3] == 3
    verdict = compare([got], [exact], [quantize(x)], None, ["int8"], nudged=moved)
    assert isinstance(verdict, Comparison) and verdict.ok and verdict.excused == 1
    got[0] += 1
    assert not compare([got], [exact], [quantize(x)], None, ["int8"], nudged=moved).ok  # type: ignore[union-attr]
    assert not compare([exact - 1], [exact], [quantize(x)], None, ["int8"], nudged=moved).ok  # type: ignore[union-attr]


def _by_ties(step: float) -> tuple[Array, Array, Array]:
    """Rows quantized to whole numbers and summed up: exact, with one row's tie broken the other way, and with one row
    wrong by `step` of what a broken tie makes."""
    exact = np.random.default_rng(2).normal(size=(64, 64)) * 40
    weight = np.linspace(-127, 127, 64)
    broken, wrong = exact.copy(), exact.copy()
    broken[5] += 0.01 * weight
    wrong[9] += 0.01 * step * weight
    return exact, broken, wrong


def test_a_row_may_break_a_tie_that_no_nudge_broke_where_the_op_rounds() -> None:
    exact, broken, wrong = _by_ties(1.0)
    args = ([exact], [exact], None, ["float32"])
    plain = compare([wrong.astype(F32)], *args, nudged=[[broken], [exact]])
    assert isinstance(plain, Comparison) and not plain.ok
    jumping = compare([wrong.astype(F32)], *args, nudged=[[broken], [exact]], jumps=True)
    assert isinstance(jumping, Comparison) and jumping.ok
    far = compare([_by_ties(40.0)[2].astype(F32)], *args, nudged=[[broken], [exact]], jumps=True)
    assert isinstance(far, Comparison) and not far.ok


def test_an_integer_on_a_tie_that_no_reference_broke_is_excused_by_one_step_in_few_places() -> None:
    want = np.arange(4096, dtype=np.int8).reshape(64, 64)
    one, two, many = want.copy(), want.copy(), want.copy()
    one[3, 4] += 1
    two[3, 4] += 2
    many[:, :8] += 1
    judged = [compare([g], [want], [want], None, ["int8"], jumps=j) for g in (one, two, many) for j in (True, False)]
    assert [v.ok for v in judged if isinstance(v, Comparison)] == [True, False, False, False, False, False]


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_what_hangs_on_the_integer_of_a_nan_is_not_judged(dtype: str) -> None:
    want = np.arange(64.0).reshape(8, 8).astype(dtype)
    free = np.zeros((8, 8), bool)
    free[2] = True
    got = want.copy()
    got[2] = 99
    held = {"nudged": [], "free": [free]}
    judged = standard([want.astype(float) if dtype == "float32" else want], [want], None, [dtype], **held)
    within = hold([got], judged)
    assert isinstance(within, Comparison) and within.ok
    got[3, 3] = 99
    outside = hold([got], judged)
    assert isinstance(outside, Comparison) and not outside.ok and outside.place == (0, (3, 3))


def test_empty_outputs_need_only_the_right_form() -> None:
    empty = np.zeros((0, 4), F32)
    assert _judge(empty, empty.astype(float), empty).ok  # type: ignore[union-attr]


def test_weak_workloads_are_named() -> None:
    one, two = EXACT, EXACT * 2
    assert weakness({"normal": [one], "x100": [two]}) == {}
    assert weakness({"normal": [two, one], "x100": [one, one]}).keys() == {1}
    assert "same for every input" in weakness({"normal": [one], "x100": [one]})[0]
    assert "constant" in weakness({"normal": [np.full(4, 2.0)], "x100": [np.full(4, 3.0)]})[0]
    assert "tiny" in weakness({"normal": [one * 1e-9], "x100": [two * 1e-9]})[0]
    assert "empty" in weakness({"normal": [one[:0]]})[0]
    assert "never finite" in weakness({"normal": [one * np.nan], "x100": [two * np.inf]})[0]


FORMATS = ["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e4m3fnuz"]
FORMATS += ["float8_e4m3", "float8_e3m4", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn"]


@pytest.mark.parametrize("name", FORMATS)
def test_the_table_of_formats_is_the_dtypes_own(name: str) -> None:
    info, form = ml_dtypes.finfo(name), number_format(name)
    assert form is not None
    assert (form.half_ulp * 2, form.tiny, form.largest) == tuple(map(float, (info.eps, info.smallest_normal, info.max)))


def test_an_unknown_float_is_never_compared_as_an_integer() -> None:
    assert number_format("int4") is None and number_format("bool") is None
    assert number_format("complex64") == number_format("float32")
    with pytest.raises(KeyError):
        number_format("float8_e8m0fnu")


def test_a_lucky_element_of_a_short_row_is_given_what_most_err() -> None:
    """KL divergences of near equal rows: the op errs by a tenth of each, at some elements by chance by nothing."""
    rng = np.random.default_rng(0)
    exact = rng.uniform(8e-6, 1e-5, 128)
    noise = rng.normal(scale=5e-7, size=(3, 128))
    noise[0, ::9] = 0.0
    native, kernel = (np.float32(exact + n) for n in noise[:2])
    nudged = [np.float64(exact * (1 + 1e-7))] * 4
    honest = compare([kernel], [exact], [native], None, ["float32"], nudged=[[n] for n in nudged])
    assert isinstance(honest, Comparison) and honest.ok, honest
    wrong = compare([np.float32(1.5 * exact)], [exact], [native], None, ["float32"], nudged=[[n] for n in nudged])
    assert isinstance(wrong, Comparison) and not wrong.ok

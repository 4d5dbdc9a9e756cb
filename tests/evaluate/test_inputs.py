"""The input families: exact in their dtype, reproducible anywhere, and each of the kind that its name says."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aka.evaluate.inputs import families, make, nudge
from aka.types import ArraySpec

Array = np.ndarray[Any, Any]
SEED = 0xFEDCBA98765432100123456789ABCDEF
X = ArraySpec((32, 64), "float32")
FLOATS = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]


def _one(family: str, spec: ArraySpec = X, seed: int = SEED) -> Array:
    return make(family, [spec], seed)[0].astype(np.float64)


def _digest(arrays: list[Array]) -> str:
    return hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()


@pytest.mark.parametrize("family", families())
@pytest.mark.parametrize("dtype", FLOATS)
def test_shape_dtype_and_range(family: str, dtype: str) -> None:
    for shape in ((32, 64), (2, 3, 8), (7,), (1, 1), (), (0, 4)):
        (made,) = make(family, [ArraySpec(shape, dtype)], SEED)
        assert made.shape == shape and made.dtype.name == dtype
        if family not in ("masked", "nonfinite"):
            assert np.isfinite(made.astype(np.float64)).all()


def test_the_seed_decides_in_any_process() -> None:
    specs = "[ArraySpec((8, 8), 'bfloat16'), ArraySpec((8,), 'int32'), ArraySpec((4, 4), 'bool')]"
    code = f"""
import hashlib
from aka.evaluate.inputs import families, make
from aka.types import ArraySpec
print(hashlib.sha256(b"".join(a.tobytes() for f in families() for a in make(f, {specs}, {SEED}))).hexdigest())
"""
    command = [sys.executable, "-c", code]
    import aka

    root = str(aka.__path__[0]).rsplit("/", 1)[0]
    there = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout.strip()
    here = [ArraySpec((8, 8), "bfloat16"), ArraySpec((8,), "int32"), ArraySpec((4, 4), "bool")]
    assert there == _digest([a for f in families() for a in make(f, here, SEED)])


def test_all_128_bits_family_and_position_matter() -> None:
    specs = [X, X]
    made = [make(f, specs, s) for f in ("normal", "tail") for s in (SEED, SEED ^ 1, SEED ^ (1 << 127))]
    assert len({_digest([a]) for arrays in made for a in arrays}) == 12


def test_each_family_is_of_its_kind() -> None:
    normal = _one("normal")
    assert 0.9 < normal.std() < 1.1
    assert 90 < _one("x100").std() < 110
    assert _one("x1e-3").std() < 2e-3
    assert 29990 < _one("offset").mean() < 30010 and _one("offset").std() > 0.9
    spikes = np.abs(_one("spikes"))
    assert 1 <= (spikes > 10).sum() < 0.02 * spikes.size
    tail = _one("tail")
    assert tail[:-4, -8:].mean() > 3 and abs(tail[:-4, :-8].mean()) < 0.2 and tail[-4:, -8:].mean() < -9
    rows = _one("constant_rows")
    assert (np.ptp(rows[::2], -1) == 0).all() and (np.ptp(rows[1::2], -1) > 0).all()
    sizes = np.abs(_one("row_scales")).max(-1)
    assert sizes.max() / sizes.min() > 1e3


@pytest.mark.parametrize("dtype", FLOATS)
def test_tiny_rows_stand_beside_ordinary_and_zero_rows(dtype: str) -> None:
    rows = np.abs(_one("tiny_rows", ArraySpec((32, 64), dtype))).max(-1)
    smallest = float(ml_dtypes.finfo(dtype).smallest_normal)
    assert (rows[3::4] == 0).all() and (rows[::2] > 0.1).all()
    assert (rows[1::4] > 0).all() and (rows[1::4] < 32 * smallest).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_offset_leaves_narrow_dtypes_some_digits(dtype: str) -> None:
    x = _one("offset", ArraySpec((32, 64), dtype))
    assert x.min() > 5 and len(np.unique(x)) > 10


def test_infinities_and_nan_come_where_they_should() -> None:
    first, second = (a.astype(float) for a in make("masked", [X, X], SEED))
    assert np.isneginf(first).mean() == pytest.approx(0.2, abs=0.04)
    assert np.isfinite(first).any(-1).all() and np.isfinite(second).all()
    broken = _one("nonfinite")
    assert np.isnan(broken).sum() == np.isposinf(broken).sum() == np.isneginf(broken).sum() == 1
    assert not np.isinf(_one("masked", ArraySpec((32, 64), "float8_e4m3fn"))).any()


def test_parameters_beside_an_operand_stay_ordinary() -> None:
    specs = [X, ArraySpec((64,), "float32"), ArraySpec((1, 64), "float32")]
    for family in families():
        _, scale, bias = make(family, specs, SEED)
        assert 0.7 < scale.mean() < 1.3 and 0.3 < scale.std() < 0.7 and np.abs(bias).max() < 5


def test_only_the_first_operand_grows() -> None:
    a, b = make("x100", [X, X], SEED)
    assert a.std() > 90 and b.std() < 1.1


def test_integers_keep_the_range_seen() -> None:
    sample = [np.array([[3, 9], [5, 4]], np.int32), np.array([True, False, False, False]), np.array([7], np.uint8)]
    specs = [ArraySpec((50, 50), "int32"), ArraySpec((4000,), "bool"), ArraySpec((9,), "uint8")]
    numbers, flags, sevens = make("normal", specs, SEED, sample)
    assert numbers.min() == 3 and numbers.max() == 9 and len(np.unique(numbers)) == 7
    assert flags.mean() == pytest.approx(0.25, abs=0.05) and (sevens == 7).all()


def test_structured_integers_stand_as_make_inputs_made_them() -> None:
    pages = np.array([[4, 2], [0, 7]], np.int32)
    specs = [ArraySpec((2, 2), "int32")]
    np.testing.assert_array_equal(make("tail", specs, SEED, [pages], verbatim=True)[0], pages)
    assert any(not np.array_equal(make("tail", specs, s, [pages])[0], pages) for s in range(5))


def test_rising_offsets_keep_rising() -> None:
    offsets = np.array([0, 3, 9, 16], np.int32)
    np.testing.assert_array_equal(make("normal", [ArraySpec((4,), "int32")], SEED, [offsets])[0], offsets)
    longer = make("normal", [ArraySpec((40,), "int32")], SEED, [offsets])[0]
    assert (np.diff(longer) >= 0).all() and longer.min() >= 0 and longer.max() <= 16


def test_integers_without_a_sample_are_small_or_8_bit() -> None:
    wide, narrow = make("normal", [ArraySpec((99,), "int32"), ArraySpec((4000,), "int8")], SEED)
    assert set(np.unique(wide)) == {0, 1, 2, 3} and narrow.min() == -128 and narrow.max() == 127


def test_a_sample_gives_sign_interval_spread_and_tables() -> None:
    rng = np.random.default_rng(0)
    sample = [rng.random(64), rng.exponential(5, 64), rng.choice([0.0, -1e9], 64), rng.normal(size=64) * 0.05]
    specs = [ArraySpec((32, 32), "float32")] * 4
    for family in set(families()) - {"masked", "nonfinite"}:
        unit, positive, mask, weights = make(family, specs, SEED, [s.astype(np.float32) for s in sample])
        assert unit.min() >= 0 and unit.max() <= 1 and positive.min() >= 0
        assert set(np.unique(mask)) == {0.0, np.float32(-1e9)}
        assert np.abs(weights).std() < 2000
    assert make("normal", specs, SEED, [s.astype(np.float32) for s in sample])[3].std() == pytest.approx(0.05, rel=0.2)


def test_scalars_keep_their_value() -> None:
    made = make(
        "x100", [X, ArraySpec((), "float32"), ArraySpec((), "int32")], SEED, [None, np.float32(1e-6), np.int32(5)]
    )
    assert made[1] == np.float32(1e-6) and made[2] == 5


def test_a_nudge_is_a_few_ulps_of_elements_and_rows_and_leaves_integers() -> None:
    x, n = make("normal", [X, ArraySpec((9,), "int32")], SEED)
    moved, same = nudge([x, n], SEED)
    assert moved.dtype == np.float64 and same is n
    steps = np.round((moved / x.astype(np.float64) - 1) * 2.0**22, 3)
    assert set(np.unique(np.abs(steps))) == {1.0, 3.0}
    rows = np.sign(steps)
    assert (rows == rows[:, :1]).all() and len(set(rows[:, 0])) == 2


def test_an_unknown_family_is_an_error() -> None:
    with pytest.raises(KeyError):
        make("nice", [X], SEED)

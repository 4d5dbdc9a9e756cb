"""A NaN that reaches an output only through a product with zero is no part of an op's meaning."""

from __future__ import annotations

import numpy as np

from aka.evaluate import inputs, numerics

MASK = np.tril(np.ones((4, 4)))


def causal(v: np.ndarray) -> np.ndarray:
    return MASK @ v


def skipping(v: np.ndarray) -> np.ndarray:
    """As a kernel that never looks above the diagonal."""
    return np.stack([v[: i + 1].sum(0) for i in range(4)])


def held(v: np.ndarray) -> numerics.Standard:
    one, other = (causal(inputs.mended([v], value)[0]) for value in (1.0, -3.0))
    return numerics.standard([causal(v)], [causal(v)], None, ["float32"], moot=[one == other])


def poisoned() -> np.ndarray:
    v = np.arange(12.0).reshape(4, 3) + 1
    v[2, 1] = np.nan
    return v


def test_a_kernel_that_skips_what_is_masked_is_right() -> None:
    made = numerics.hold([skipping(poisoned()).astype(np.float32)], held(poisoned()))
    assert isinstance(made, numerics.Comparison) and made.ok


def test_so_is_one_that_multiplies_it_in() -> None:
    made = numerics.hold([causal(poisoned()).astype(np.float32)], held(poisoned()))
    assert isinstance(made, numerics.Comparison) and made.ok


def test_a_nan_that_matters_must_show() -> None:
    got = skipping(poisoned())
    got[3, 1] = 5.0
    made = numerics.hold([got.astype(np.float32)], held(poisoned()))
    assert isinstance(made, numerics.Comparison) and not made.ok


def test_values_beside_it_are_still_compared() -> None:
    got = skipping(poisoned())
    got[0, 0] += 1.0
    made = numerics.hold([got.astype(np.float32)], held(poisoned()))
    assert isinstance(made, numerics.Comparison) and not made.ok


def test_mended_keeps_dtypes_and_integers() -> None:
    made = inputs.mended([np.array([np.inf, 1.0], np.float32), np.array([3, 4])], -3.0)
    assert made[0].dtype == np.float32 and made[0].tolist() == [-3.0, 1.0] and made[1].tolist() == [3, 4]

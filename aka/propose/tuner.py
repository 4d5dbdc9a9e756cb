"""Choose the next parameters of one kernel with Optuna, from what is remembered. Stateless: the study is built anew
from the records each time, so that a resumed or masked memory needs no special care."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from aka.types import MemoryRecord

FAILED_FACTOR = 10.0
"""A failed trial counts as this many times the baseline, so that the sampler moves away from it."""
MAX_GRID = 100_000


def key(params: Mapping[str, Any]) -> str:
    return json.dumps(params, sort_keys=True)


def next_params(
    space: Mapping[str, Sequence[Any]],
    records: Sequence[MemoryRecord],
    tried: Collection[str],
    *,
    baseline_us: float,
    seed: int,
    same: Callable[[Mapping[str, Any]], bool] = lambda params: False,
) -> dict[str, Any] | None:
    """Parameters that are neither in `tried` (keys) nor the `same` as what was tried elsewhere, or None when the whole
    grid is.

    TPE over `records` (all of one binding) on log time; where it only repeats itself, a seeded random untried point.
    """
    if math.prod(len(v) for v in space.values()) <= len(tried) and not untried(space, tried):
        return None
    study, distributions = _study(space, records, baseline_us, seed)
    for _ in range(8):
        asked = study.ask(distributions)
        params = {name: space[name][asked.params[name]] for name in space}
        if key(params) not in tried and not same(params):
            return params
    # By a draw of their own, not by position: a resumed run may not know yet which of them are the same.
    left = sorted(untried(space, tried), key=lambda p: hashlib.sha256(f"{seed} {key(p)}".encode()).hexdigest())
    return next((params for params in left if not same(params)), None)


def untried(space: Mapping[str, Sequence[Any]], tried: Collection[str]) -> list[dict[str, Any]]:
    """Every point of the grid that is not in `tried` (the first MAX_GRID points are looked at)."""
    points = itertools.islice(itertools.product(*space.values()), MAX_GRID)
    made = (dict(zip(space, point, strict=True)) for point in points)
    return [params for params in made if key(params) not in tried]


def _study(space: Mapping[str, Sequence[Any]], records: Sequence[MemoryRecord], baseline_us: float, seed: int) -> Any:
    """Choices are indices: Optuna's categories must be scalars, ours may be lists."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions: dict[str, optuna.distributions.BaseDistribution] = {
        n: optuna.distributions.CategoricalDistribution(tuple(range(len(v)))) for n, v in space.items()
    }
    sampler = optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=4, multivariate=True)
    study = optuna.create_study(sampler=sampler)
    for record in records:
        if all(record.params.get(n) in list(v) for n, v in space.items()):
            value = record.us if record.us is not None else FAILED_FACTOR * baseline_us
            params = {n: list(v).index(record.params[n]) for n, v in space.items()}
            made = optuna.trial.create_trial(params=params, distributions=distributions, value=math.log(value))
            study.add_trial(made)
    return study, distributions

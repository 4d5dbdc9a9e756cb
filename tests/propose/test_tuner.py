"""The tuner: what it is told of decides what it asks for next, and it asks for nothing twice."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from aka.propose import tuner
from aka.types import MemoryRecord

SPACE = {"m": [128, 256, 512, 1024], "n": [128, 256, 512, 1024], "order": [["a", "b"], ["b", "a"]]}


def us(params: Mapping[str, Any]) -> float:
    """Best at m=512, n=256; the order hardly matters."""
    return 10.0 + abs(params["m"] - 512) / 16 + abs(params["n"] - 256) / 16 + (params["order"] != ["a", "b"])


def record(index: int, params: dict[str, Any], value: float | None) -> MemoryRecord:
    return MemoryRecord(index, "f", "b", params, "ACCEPT" if value else "compile_error", value)


def walk(space: Mapping[str, Sequence[Any]], steps: int, seed: int) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for i in range(steps):
        records = [record(j, p, us(p)) for j, p in enumerate(made)]
        tried = {tuner.key(p) for p in made}
        params = tuner.next_params(space, records, tried, baseline_us=50.0, seed=seed + i)
        if params is None:
            break
        made.append(params)
    return made


def test_the_whole_grid_is_visited_once_and_then_it_ends() -> None:
    space = {"m": [128, 256, 512], "n": [128, 256], "order": [["a", "b"]]}
    made = walk(space, 10, 0)
    assert len(made) == 6 and len({tuner.key(p) for p in made}) == 6
    assert all(p[name] in values for p in made for name, values in space.items())


def test_the_same_seed_and_records_give_the_same_point() -> None:
    assert walk(SPACE, 8, 3) == walk(SPACE, 8, 3)
    assert walk(SPACE, 8, 3) != walk(SPACE, 8, 4)


def test_it_learns_where_it_is_fast() -> None:
    """Of 32 points, 12 are asked for; by luck alone the mean rank of the later ones would be the grid's."""
    late = [us(p) for seed in range(0, 600, 100) for p in walk(SPACE, 12, seed)[6:]]
    grid = [us({"m": m, "n": n, "order": o}) for m in SPACE["m"] for n in SPACE["n"] for o in SPACE["order"]]
    assert sum(late) / len(late) < 0.9 * sum(grid) / len(grid)


def test_failures_and_records_of_another_grid_do_no_harm() -> None:
    records = [
        record(0, {"m": 128, "n": 128, "order": ["a", "b"]}, None),
        record(1, {"m": 99, "n": 128, "order": ["a", "b"]}, 1.0),
        record(2, {"k": 3}, 1.0),
    ]
    made = tuner.next_params(SPACE, records, set(), baseline_us=50.0, seed=1)
    assert made is not None and made.keys() == SPACE.keys()


def test_a_kernel_without_parameters_has_one_point() -> None:
    assert tuner.next_params({}, [], set(), baseline_us=1.0, seed=0) == {}
    assert tuner.next_params({}, [], {tuner.key({})}, baseline_us=1.0, seed=0) is None


def test_what_was_tried_outside_the_grid_does_not_end_the_search() -> None:
    tried = {tuner.key({"m": m}) for m in (1, 2, 3)}
    assert tuner.next_params({"m": [4, 5]}, [], tried, baseline_us=1.0, seed=0) in ({"m": 4}, {"m": 5})


def test_it_says_nothing_on_stderr() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tuner.next_params(SPACE, [], set(), baseline_us=1.0, seed=0) is not None

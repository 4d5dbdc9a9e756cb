"""The many-step shape: sizes that follow from a candidate's own blocks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aka.evaluate import cases
from aka.evaluate.cases import with_shared
from aka.evaluate.client import small_sizes
from aka.evaluate.facts import KernelFacts

Blocks = tuple[tuple[tuple[int, int], ...], ...]


def kernel(grid: tuple[int, ...], reduction: tuple[int, ...] = (), blocks: Blocks = (), name: str = "k") -> KernelFacts:
    return KernelFacts(name, grid, reduction, blocks or ((),) * len(grid), 0, None, False)


MATMUL = kernel((8, 4, 16), (2,), (((4096, 512),), ((2048, 512),), ((8192, 512),)))
KNOBS = {"config:m": 4096, "config:n": 2048, "dim:8192": 8192}


def test_two_steps_on_each_axis_and_three_on_a_reduction() -> None:
    assert cases.wanted_steps(MATMUL) == (2, 2, 3)
    assert cases.wanted_steps(kernel((1, 2, 2), (2,))) == (1, 2, 2)
    assert cases.wanted_steps(kernel(())) == ()


def test_what_a_small_grid_fails_to_show_is_named() -> None:
    assert cases.missing_steps([MATMUL], [kernel((2, 2, 3))]) == []
    assert cases.missing_steps([MATMUL], [kernel((2, 1, 2), name="k")]) == [
        "k: 1 of 2 steps on grid axis 1",
        "k: 2 of 3 steps on grid axis 2",
    ]


def test_another_set_of_kernels_shows_nothing() -> None:
    assert cases.missing_steps([MATMUL], []) and cases.missing_steps([MATMUL], [kernel((2, 2))])
    assert cases.missing_steps([MATMUL], [kernel((2, 2, 3))] * 2)


def guesses(one: KernelFacts, knobs: dict[str, int], **start: int) -> list[dict[str, int]]:
    return cases.multi_step_sizes([one], knobs, start)


def test_sizes_follow_from_blocks() -> None:
    start = {"config:m": 128, "config:n": 256, "dim:8192": 384}
    assert cases.multi_step_sizes([MATMUL], KNOBS, start) == [{"config:m": 1024, "config:n": 1024, "dim:8192": 1536}]


def test_sizes_never_exceed_production_nor_shrink() -> None:
    assert guesses(kernel((2,), (), (((2048, 2048),),)), {"a": 2048}, a=128) == [{"a": 2048}]
    assert guesses(kernel((2,), (), (((64, 8),),)), {"a": 64}, a=32) == [{"a": 32}]


def test_of_knobs_of_equal_size_each_is_a_guess() -> None:
    square = kernel((4,), (), (((512, 128),),))
    made = guesses(square, {"a": 512, "b": 512}, a=128, b=128)
    assert len(made) == 2 and {"a": 256, "b": 128} in made and {"a": 128, "b": 256} in made


def test_flattened_rows_set_their_largest_factor() -> None:
    rows = kernel((64,), (), (((8 * 4096, 512),),))
    knobs = {"batch": 8, "seq": 4096, "d": 1024}
    assert guesses(rows, knobs, batch=8, seq=128, d=128) == [{"batch": 8, "seq": 128, "d": 128}]  # two blocks already
    assert guesses(rows, knobs, batch=2, seq=128, d=128) == [{"batch": 2, "seq": 512, "d": 128}]
    cube = kernel((64,), (), (((4 * 8 * 4096, 4096),),))
    assert guesses(cube, {"b": 4, "h": 8, "s": 4096}, b=4, h=8, s=128) == [{"b": 4, "h": 8, "s": 256}]


def test_a_dimension_that_no_knob_explains_changes_nothing() -> None:
    assert guesses(kernel((3,), (), (((999, 333),),)), {"a": 64}, a=32) == [{"a": 32}]


def test_guesses_are_few_and_the_smallest_comes_first() -> None:
    knobs = {name: 512 for name in "abcdefgh"}
    many = kernel((4,) * 4, (), tuple(((512, block),) for block in (64, 128, 192, 256)))
    made = guesses(many, knobs, **dict.fromkeys(knobs, 64))
    sizes = [math.prod(g.values()) for g in made]
    assert 1 <= len(made) <= cases.MAX_GUESSES and sizes == sorted(sizes)


def test_doubling_ends_at_production() -> None:
    sizes: dict[str, int] | None = {"a": 128, "b": 8}
    seen = []
    while sizes is not None:
        seen.append(sizes)
        sizes = cases.doubled(sizes, {"a": 500, "b": 8})
    assert seen == [{"a": 128, "b": 8}, {"a": 256, "b": 8}, {"a": 500, "b": 8}]


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(2, 100_000), max_size=5), st.integers(1, 4))
def test_small_sizes_are_small_and_keep_their_alignment(knobs: dict[str, int], count: int) -> None:
    made = small_sizes(knobs, count)
    assert len(made) == count
    for sizes in made:
        assert sizes.keys() == knobs.keys()
        for name, size in sizes.items():
            assert 1 <= size <= knobs[name] and (knobs[name] % 128 or size % 128 == 0)
            assert knobs[name] > 16 or size == knobs[name]
            assert knobs[name] % 128 or size <= 384


def test_small_sizes_differ_within_a_set_and_between_sets() -> None:
    first, second = small_sizes({"m": 8192, "n": 4096, "k": 2048})
    assert len(set(first.values())) == 3 and all(first[n] != second[n] for n in first)
    assert math.prod(first.values()) == 128 * 256 * 384


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        ([], [(2048, 1024)]),
        ([(2048, 1024)], [(2048, 1024)]),
        ([(2048, 2048)], [(2048, 2048), (2048, 1024)]),
        ([(4096, 2048)], [(2048, 1024)]),  # four times the work
        ([(3072, 1024)], [(2048, 1024)]),  # no multiple: blocks might not fit
        ([(4096, 1024), (2048, 1024)], [(2048, 1024)]),
        ([(1024, 1024)], [(2048, 1024)]),  # fewer steps
    ],
)
def test_sizes_of_earlier_candidates_come_first_where_they_do_for_twice_the_work(
    known: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    def sized(pair: tuple[int, int]) -> dict[str, int]:
        return dict(zip("mn", pair, strict=True))

    made = with_shared([sized((2048, 1024))], [sized(pair) for pair in known])
    assert made == [sized(pair) for pair in wanted]


def test_sizes_that_do_for_two_guesses_are_tried_once() -> None:
    known = [{"m": 512, "n": 256}]
    guesses = [{"m": 256, "n": 256}, {"m": 512, "n": 128}]
    assert with_shared(guesses, known) == [known[0], *guesses]

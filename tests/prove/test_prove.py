"""The tools of the proof do what they say; in the slow run a seeded sample is judged."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import artifacts
import pytest

artifacts.set_environment()

import hashes  # noqa: E402
import writing  # noqa: E402
from court import Court, court  # noqa: E402
from faces import faces, listed, source_of  # noqa: E402
from honest import Example, any_kind, examples  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from ledger import Ledger  # noqa: E402
from mutants import chosen, mutants  # noqa: E402
from trials import ACCEPTED, COUNTED, Trials  # noqa: E402

SAMPLED_KERNELS, SAMPLED_EACH, SAMPLED_HONEST, SEED = 8, 2, 12, "sample"
TINY = '''"""A tiny kernel."""
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def reference(x):
    return jnp.sum(x, axis=1)


def _mean(v):
    return jnp.max(v, axis=1) - 0.5


def _body(x_ref, o_ref, acc_ref):
    i = pl.program_id(1)

    @pl.when(i == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.where(i < 3, _mean(x_ref[...]), 0.0)

    @pl.when(i == pl.num_programs(1) - 1)
    def _():
        o_ref[...] = acc_ref[...]


def kernel(x):
    needed = x.size * 3 - 1
    return pl.pallas_call(
        _body, grid=(2, 2), in_specs=[pl.BlockSpec((8, 128), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((8, 1), lambda i, j: (i, 0)),
    )(x)
'''
OPERATORS = {  # operator: one (was, now) that it must make of the tiny kernel
    "axis": ("1", "0"),
    "when_never": ("i == 0", "False"),
    "when_always": ("i == 0", "True"),
    "index_map_off_by_one": ("j", "jnp.maximum((j) - 1, 0)"),
    "index_map_held": ("i", "0"),
    "index_map_swapped": ("(i, j)", "j, i"),
    "dropped_init": ("acc_ref[...] = jnp.zeros_like(acc_ref)", "pass"),
    "swapped": ("jnp.max(v, axis=1) - 0.5", "0.5 - jnp.max(v, axis=1)"),
    "unmasked": ("jnp.where(i < 3, _mean(x_ref[...]), 0.0)", "jnp.where((i < 3) | True, _mean(x_ref[...]), 0.0)"),
    "narrowed": ("jnp.max(v, axis=1) - 0.5", "_narrowed(jnp.max(v, axis=1) - 0.5)"),
    "compared": ("i < 3", "i <= 3"),
    "extreme": ("jnp.max", "jnp.min"),
    "dropped_term": ("jnp.max(v, axis=1) - 0.5", "jnp.max(v, axis=1)"),
    "constant": ("0.5", "1.0"),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_makes_its_fault(operator: str) -> None:
    made = [(m.was, m.now) for m in mutants("tiny.py", TINY) if m.operator == operator]
    assert OPERATORS[operator] in made


def test_a_mutant_is_the_source_with_one_place_edited() -> None:
    made = mutants("tiny.py", TINY)
    assert len({m.id for m in made}) == len({m.source for m in made}) == len(made)
    for mutant in made:
        lines = zip(TINY.splitlines(), mutant.source.splitlines(), strict=False)
        assert [n for n, (a, b) in enumerate(lines, 1) if a != b] == [mutant.line]
        compile(mutant.source, mutant.id, "exec")


def test_only_what_runs_on_the_chip_is_edited() -> None:
    lines = {m.line for m in mutants("tiny.py", TINY)}
    texts = {TINY.splitlines()[n - 1].strip() for n in lines}
    assert "return jnp.max(v, axis=1) - 0.5" in texts
    assert not texts & {"return jnp.sum(x, axis=1)", "needed = x.size * 3 - 1"}


def test_a_flush_at_every_step_is_no_fault() -> None:
    always = [m.was for m in mutants("tiny.py", TINY) if m.operator == "when_always"]
    assert always == ["i == 0"]


def test_the_choice_takes_the_operators_in_turn() -> None:
    made = mutants("softmax/row_blocks.py", source_of("softmax/row_blocks.py"))
    operators = {m.operator for m in made}
    assert {m.operator for m in chosen(made, len(operators))} == operators
    assert chosen(made, 5) == chosen(list(reversed(made)), 5)


def test_wording_does_not_change_a_hash() -> None:
    assert hashes.of_text('"""One."""\nx = 1  # one\n') == hashes.of_text('"""Two."""\nx = 1\n')
    assert hashes.of_text("def f():\n    'text'\n") == hashes.of_text("def f():\n    'other'\n")
    assert hashes.of_text("x = 1") != hashes.of_text("x = 2")


def test_an_equal_mutant_is_told_by_its_artifact() -> None:
    face = faces("softmax/row_blocks.py")[0]
    source = source_of(face.file)
    same = source.replace("keepdims=True", "keepdims=not False")
    other = source.replace("jnp.max(", "jnp.min(")
    assert same != source != other
    told = [artifacts.difference(face.op, face.candidate(source), face.candidate(text)) for text in (same, other, "")]
    assert told == [artifacts.EQUAL, None, artifacts.STILLBORN]


def test_a_ledger_outlives_a_torn_line(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    Ledger(folder, "a").add("one", verdict="incorrect")
    with (folder / "a.jsonl").open("a") as file:
        file.write('{"key": "two", "verd')
    assert set(Ledger(folder, "b").known) == {"one"}


@pytest.fixture(scope="module")
def judge() -> Iterator[Court]:
    with court() as made:
        yield made


@pytest.mark.slow
def test_sampled_mutants_are_rejected_or_known(judge: Court, tmp_path: Path) -> None:
    """Two mutants of each of some kernels, in another order than that of the proof."""
    trials = Trials(judge, Ledger(tmp_path, "sample"), "sample")
    kernels = listed()[:: len(listed()) // SAMPLED_KERNELS][:SAMPLED_KERNELS]
    answers = [answer for made in kernels for answer in _sampled(trials, made.file)]
    assert len(answers) == SAMPLED_KERNELS * SAMPLED_EACH
    assert {a["id"] for a in answers if a["verdict"] == ACCEPTED} <= set(writing.explanations())


def _sampled(trials: Trials, file: str) -> list[dict[str, Any]]:
    """Answers on the first in a seeded order that count."""
    answers = map(trials.mutant, chosen(mutants(file, source_of(file)), 40, SEED))
    return list(itertools.islice((a for a in answers if a["counts"]), SAMPLED_EACH))


@pytest.mark.slow
def test_honest_kernels_are_accepted(judge: Court) -> None:
    @settings(
        max_examples=SAMPLED_HONEST, derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(any_kind())
    def accepted(example: Example) -> None:
        evaluation = judge.judge(example.op, example.kind, example.code)
        assert evaluation.accepted, evaluation.gates[-1]

    accepted()


def test_the_honest_examples_are_of_every_kind() -> None:
    made = examples(20)
    assert len({e.kind for e in made}) == 10 and len({e.op + e.code for e in made}) == 20
    for example in made:
        compile(example.op, "op", "exec")
        compile(example.code, "code", "exec")


def test_more_mutants_are_made_than_are_counted() -> None:
    assert sum(min(COUNTED, len(mutants(made.file, source_of(made.file)))) for made in listed()) >= 600

"""Every snippet of the knowledge base does with the real TPU compiler what its info string says."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from compile_snippets import Outcome, run

from aka.errors import DocumentInvalid
from aka.kb.snippets import CHIPS, Snippet, extract, parse_info

KNOWLEDGE = Path(__file__).parents[2] / "knowledge"
NOTES = sorted(KNOWLEDGE.glob("*/*.md"))
QUICK_CHIPS = ("v5e",)
ABORTING = "import os\nos.abort()\n"
GOOD = """
import jax.numpy as jnp
ARGS = CHECK_ARGS = [((8, 128), "float32")]
def workload(x): return x + 1
def reference(x): return x + {amount}
"""


def snippets() -> list[Snippet]:
    return [snippet for note in NOTES for snippet in extract(note)]


@functools.cache
def outcomes(chip: str) -> dict[str, Outcome]:
    return {outcome.id: outcome for outcome in run(chip, [s for s in snippets() if chip in s.chips])}


def cases(chips: tuple[str, ...]) -> list[object]:
    return [pytest.param(s, chip, id=f"{s.id}-{chip}") for chip in chips for s in snippets() if chip in s.chips]


def judge(snippet: Snippet, outcome: Outcome) -> None:
    where = f"{snippet.note} line {snippet.line} on {outcome.chip}: {outcome.status} {outcome.text[:1500]}"
    if snippet.expects == "compile":
        assert outcome.status == "compiled", where
    else:
        assert outcome.status == "failed" and snippet.error and snippet.error in outcome.text, where


@pytest.mark.parametrize(("snippet", "chip"), cases(QUICK_CHIPS))
def test_snippet_does_what_it_says(snippet: Snippet, chip: str) -> None:
    judge(snippet, outcomes(chip)[snippet.id])


@pytest.mark.slow
@pytest.mark.parametrize(("snippet", "chip"), cases(tuple(c for c in CHIPS if c not in QUICK_CHIPS)))
def test_snippet_does_what_it_says_on_the_other_chips(snippet: Snippet, chip: str) -> None:
    judge(snippet, outcomes(chip)[snippet.id])


def test_an_abort_and_wrong_values_are_told_apart_from_success() -> None:
    codes = [GOOD.format(amount=1), ABORTING, GOOD.format(amount=2), "ARGS = []"]
    made = [Snippet("made", i, 1, code, "compile", ("v5e",), None) for i, code in enumerate(codes)]
    statuses = [outcome.status for outcome in run("v5e", made)]
    assert statuses == ["compiled", "aborted", "wrong", "failed"]


def test_techniques_show_code_that_compiles_and_constraints_show_code_that_fails() -> None:
    for note in NOTES:
        expected = {"techniques": {"compile"}, "constraints": {"compile", "fails"}}.get(note.parent.name, set())
        assert expected <= {snippet.expects for snippet in extract(note)}, note


@pytest.mark.parametrize(
    "info",
    [
        "python",
        "py compile chips=v5e",
        "python compile",
        "python compile chips=v9",
        "python fails chips=v5e",
        'python compile chips=v5e error="x"',
        "python compile chips=v5e speed=1",
    ],
)
def test_a_fence_that_does_not_say_what_it_expects_is_refused(info: str, tmp_path: Path) -> None:
    note = tmp_path / "note.md"
    note.write_text(f"text\n\n```{info}\npass\n```\n")
    with pytest.raises(DocumentInvalid, match=r"note\.md:3: "):
        extract(note)


def test_info_string_parts() -> None:
    info = 'python fails chips=v4,v5e error="exceeded by a lot"'
    assert parse_info(info) == ("fails", ("v4", "v5e"), "exceeded by a lot")

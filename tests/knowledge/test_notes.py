"""The form of the notes: front matter complete, ids unique, links alive, every figure with a source."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import frontmatter
import pytest

from aka.kb.snippets import CHIPS

KNOWLEDGE = Path(__file__).parents[2] / "knowledge"
NOTES = sorted(KNOWLEDGE.glob("*/*.md"))
KEYS = {
    *("id", "title", "layer", "chips", "jax", "ops", "symptoms", "tags", "sources"),
    *("confidence", "verified", "related"),
}
LAYERS = {"hardware", "api", "constraints", "techniques", "playbooks", "measurement", "versions", "pitfalls"}


def matter(note: Path) -> dict[str, Any]:
    return dict(frontmatter.loads(note.read_text(encoding="utf-8")).metadata)


@pytest.fixture(params=NOTES, ids=lambda note: note.stem)
def note(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_the_library_has_its_first_notes() -> None:
    ids = {matter(note)["id"] for note in NOTES}
    assert ids >= {"c01", "c03", "c10", "c24", "t01", "t02", "t03", "t13", "t23", "m09"}


def test_ids_are_unique() -> None:
    assert [i for i, n in Counter(matter(note)["id"] for note in NOTES).items() if n > 1] == []


def test_front_matter_has_exactly_its_fields(note: Path) -> None:
    found = matter(note)
    assert set(found) == KEYS
    assert found["layer"] in LAYERS and found["layer"] == note.parent.name
    assert note.name.startswith(found["id"] + "-")
    assert set(found["chips"]) <= set(CHIPS) and found["chips"]
    assert found["confidence"] in {"measured", "documented", "inferred"}
    assert set(found["verified"]) == {"date", "jax", "libtpu"}


def test_lists_hold_texts(note: Path) -> None:
    found = matter(note)
    for key in ("ops", "symptoms", "tags", "sources"):
        assert found[key] and all(isinstance(text, str) and text for text in found[key]), key


def test_sources_are_addresses_or_commands(note: Path) -> None:
    sources = matter(note)["sources"]
    assert all(source.startswith(("https://", "measured: ")) for source in sources)
    if matter(note)["confidence"] == "measured":
        assert any(source.startswith("measured: ") for source in sources)


def test_related_notes_exist(note: Path) -> None:
    ids = {matter(other)["id"] for other in NOTES}
    found = matter(note)
    assert set(found["related"]) <= ids - {found["id"]}


def test_nothing_is_left_to_fill_in(note: Path) -> None:
    assert "@@" not in note.read_text(encoding="utf-8")

"""What a document must say about itself, and what is made of it."""

from __future__ import annotations

import pytest

from aka.errors import DocumentInvalid
from aka.kb.documents import kernel_matter, parse_document, read_documents
from aka.kb.places import Places
from aka.kb.sources import Source, read_sources
from aka.kb.values import CHIPS


def test_every_fixture_is_a_document(library: Places) -> None:
    documents = {document.id: document for document in read_documents(read_sources(library))}
    assert set(documents) == {
        "scoped-vmem-limit", "double-buffering", "partial-blocks", "rms-norm-row-blocks", "matmul-tiled",
    }  # fmt: skip
    assert documents["double-buffering"].chips == CHIPS
    assert documents["scoped-vmem-limit"].path == "knowledge/constraints/scoped-vmem-limit.md"
    assert documents["scoped-vmem-limit"].matter["verified"] == {
        "date": "2026-11-30", "jax": "0.10.2", "libtpu": "0.0.42.1",
    }  # fmt: skip
    assert documents["rms-norm-row-blocks"].matter["statics"] == {"eps": "float"}
    assert "rsqrt" in documents["rms-norm-row-blocks"].keywords


def _note(library: Places, old: str, new: str) -> Source:
    assert library.knowledge is not None
    text = (library.knowledge / "constraints/scoped-vmem-limit.md").read_text()
    assert old in text
    return Source("note", "knowledge/a.md", text.replace(old, new).encode())


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("layer: constraints", "layer: folklore", "layer"),
        ('sources: ["fixture: written for this test"]', "sources: []", "sources"),
        ("chips: [v5e, v6e]", "chips: [v5e, v99]", "chips.1"),
        ("confidence: inferred", "confidence: sure", "confidence"),
        ("symptoms:", "symtoms:", "symtoms"),
        ('jax: ">=0.10,<0.13"', "jax: 0.10", "jax"),
        ("date: 2026-11-30", "date: yesterday", "verified.date"),
        ("id: scoped-vmem-limit", "id: Scoped VMEM", "id"),
    ],
)
def test_a_bad_field_is_named_with_its_file(library: Places, old: str, new: str, told: str) -> None:
    with pytest.raises(DocumentInvalid) as caught:
        parse_document(_note(library, old, new))
    assert str(caught.value).startswith(f"knowledge/a.md: {told}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "data", "told"),
    [
        ("note", b"No front matter.", "has no front matter"),
        ("note", b"---\nid: [\n---\n", "front matter is not YAML"),
        ("note", b"---\nid: \xff\n---\n", "not UTF-8"),
        ("kernel", b"def f(:", "not Python"),
        ("kernel", b"x = 1", "has no front matter"),
    ],
)
def test_a_file_that_is_no_document(kind: str, data: bytes, told: str) -> None:
    with pytest.raises(DocumentInvalid, match=told):
        parse_document(Source(kind, "knowledge/a.md", data))  # type: ignore[arg-type]


def test_family_is_the_folder(library: Places) -> None:
    assert library.kernels is not None
    data = (library.kernels / "matmul/tiled.py").read_bytes()
    with pytest.raises(DocumentInvalid, match="family: 'matmul' must be the folder's name, 'softmax'"):
        parse_document(Source("kernel", "reference_kernels/softmax/tiled.py", data))


def test_two_documents_with_one_id(library: Places) -> None:
    sources = read_sources(library)
    with pytest.raises(DocumentInvalid, match="is also the id of"):
        read_documents((sources[0], Source("note", "knowledge/copy.md", sources[0].data)))


def test_front_matter_of_a_kernel_anywhere(library: Places) -> None:
    assert library.kernels is not None
    text = (library.kernels / "rms_norm/row_blocks.py").read_text()
    assert kernel_matter("mine.py", text)["signature"] == "x:f[*rows,d], scale:f[d] -> f[*rows,d]"
    with pytest.raises(DocumentInvalid, match=r"mine\.py: op"):
        kernel_matter("mine.py", text.replace("op: y", "opp: y"))

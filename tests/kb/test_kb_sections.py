"""Cutting, and splitting identifiers into words."""

from __future__ import annotations

from aka.kb.documents import read_documents
from aka.kb.places import Places
from aka.kb.sections import MAX_CHARS, markdown_sections, python_sections
from aka.kb.sources import read_sources
from aka.kb.words import match_expression, words


def test_markdown_is_cut_at_headings_but_not_inside_a_fence(library: Places) -> None:
    note = next(d for d in read_documents(read_sources(library)) if d.id == "scoped-vmem-limit")
    sections = markdown_sections(note.body, note.summary)
    assert [s.heading for s in sections] == ["", "Fix", "Fix > When raising does not help", "Why"]
    assert sections[0].text.startswith("Symptoms: RESOURCE_EXHAUSTED")
    assert sections[0].text.endswith("share one scoped allocation.")
    assert "# not a heading\nparams" in sections[1].text


def test_a_long_section_is_cut_between_blocks() -> None:
    paragraphs = [f"Paragraph {n} " + "word " * 60 for n in range(12)]
    sections = markdown_sections("## Long\n\n" + "\n\n".join(paragraphs))
    assert len(sections) > 1
    assert all(s.heading == "Long" and len(s.text) <= MAX_CHARS for s in sections)
    assert sum(s.text.count("Paragraph") for s in sections) == 12


def test_a_single_long_block_stays_whole() -> None:
    fence = "```\n" + "line\n" * 500 + "```"
    assert [s.text for s in markdown_sections(f"## A\n\n{fence}\n\nafter")] == [fence, "after"]


def test_python_is_cut_at_definitions(library: Places) -> None:
    kernel = next(d for d in read_documents(read_sources(library)) if d.id == "rms-norm-row-blocks")
    sections = python_sections(kernel.body, kernel.summary)
    assert [s.heading for s in sections] == ["", "module", "reference", "kernel_body", "module"]
    assert "when XLA wins: tiny arrays" in sections[0].text.replace("When", "when")
    assert "Each grid step" in sections[0].text
    assert sections[3].text.startswith("# The body sees one block of rows.\ndef kernel_body")
    assert [sections[1].text, sections[4].text] == ['TUNED_PARAMS = {"block_rows": 256}', "LAST = 1"]
    assert not any("id: rms-norm" in s.text for s in sections)


def test_python_without_docstring_or_with_decorators() -> None:
    sections = python_sections("@wrap\ndef f():\n    return 1\n")
    assert [(s.heading, s.text) for s in sections] == [("f", "@wrap\ndef f():\n    return 1")]


def test_identifiers_are_split_and_kept() -> None:
    assert words("pltpu.CompilerParams") == ["pltpu", "compiler", "params", "pltpucompilerparams"]
    assert words("vmem_limit_bytes.") == ["vmem", "limit", "bytes", "vmemlimitbytes"]
    assert words("RMSNorm on v5e, bf16") == ["rms", "norm", "rmsnorm", "on", "v5e", "bf16"]


def test_a_query_asks_for_any_of_its_telling_words() -> None:
    assert match_expression('how is the "VMEM" used') == '"vmem" OR "used"'
    assert match_expression("how") == '"how"'
    assert match_expression("?! …") is None

"""Builds: incremental, atomic, one at a time, honest about what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from errno import ENOSPC
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from kb_stand_ins import HashEmbedder

from aka.errors import Busy, DocumentInvalid, IndexMissing, IndexStale, KnowledgeError, NoSpace
from aka.kb.builder import build_index
from aka.kb.embed import Embedder, EmbedderUnavailable
from aka.kb.manifest import NAME, read_manifest
from aka.kb.opening import open_retriever, refresh
from aka.kb.places import Places
from aka.kb.retriever import HybridRetriever
from aka.kb.writing import disk_errors


def _note(library: Places) -> Path:
    assert library.knowledge is not None
    return library.knowledge / "constraints/scoped-vmem-limit.md"


def _edit(library: Places, old: str, new: str) -> None:
    text = _note(library).read_text()
    assert old in text
    _note(library).write_text(text.replace(old, new))


def no_engine() -> Embedder:
    raise EmbedderUnavailable("not installed: onnxruntime")


def test_the_first_build_and_its_manifest(library: Places) -> None:
    stages: list[tuple[str, int, int]] = []
    report = build_index(library, embedder=HashEmbedder, progress=lambda *stage: stages.append(stage))
    manifest = read_manifest(library.index)
    assert report.built and report.reason == "no usable index"
    assert report.documents == len(manifest.documents) == 5
    assert report.passages == report.embedded == manifest.passages == 14
    assert (manifest.model, manifest.dimensions) == ("all-MiniLM-L6-v2", 384)
    assert manifest.engines == {"hash": "0" * 64}
    assert [s for s in stages if s[0] == "embed"][-1] == ("embed", 14, 14)
    assert stages[-1] == ("write", 1, 1)


def test_nothing_changed_nothing_done(library: Places) -> None:
    build_index(library, embedder=HashEmbedder)
    before = (library.index / NAME).stat().st_mtime_ns
    engine = HashEmbedder()
    report = build_index(library, embedder=lambda: engine)
    assert not report.built and report.reason == "up to date" and engine.texts == 0
    assert (library.index / NAME).stat().st_mtime_ns == before


def test_an_edit_embeds_only_the_changed_passage(library: Places) -> None:
    build_index(library, embedder=HashEmbedder)
    _edit(library, "The physical VMEM is the ceiling.", "Nothing goes beyond the physical VMEM.")
    engine = HashEmbedder()
    report = build_index(library, embedder=lambda: engine)
    assert (report.reason, report.embedded, engine.texts) == ("1 of 5 documents changed", 1, 1)
    assert build_index(library, embedder=lambda: engine, force=True).embedded == 14


def test_the_same_library_gives_the_same_passage_ids(library: Places, tmp_path: Path) -> None:
    other = Places(library.knowledge, library.kernels, tmp_path / "other")
    for places in (library, other):
        build_index(places, embedder=HashEmbedder)
    mine, theirs = (
        [p.passage_id for p in HybridRetriever(places.index, embedder=HashEmbedder).search("rows", k=9)]
        for places in (library, other)
    )
    assert mine == theirs and len(mine) == 5


def test_a_removed_document_is_gone(library: Places) -> None:
    build_index(library, embedder=HashEmbedder)
    _note(library).unlink()
    build_index(library, embedder=HashEmbedder)
    found = HybridRetriever(library.index, embedder=HashEmbedder).search("scoped vmem limit", k=9)
    assert "scoped-vmem-limit" not in [p.doc_id for p in found] and len(found) == 4


def test_a_bad_document_leaves_the_index_alone(library: Places) -> None:
    build_index(library, embedder=HashEmbedder)
    before = (library.index / NAME).read_bytes()
    _edit(library, "layer: constraints", "layer: folklore")
    with pytest.raises(DocumentInvalid, match=r"scoped-vmem-limit\.md: layer"):
        build_index(library, embedder=HashEmbedder)
    assert (library.index / NAME).read_bytes() == before


CRASH = """
import os, sys
from pathlib import Path
from aka.kb.builder import build_index
from aka.kb.places import Places

class Dies:
    engine, sha256 = "dies", "0"
    def embed(self, texts):
        os._exit(9)

root = Path(sys.argv[1])
build_index(Places(root / "knowledge", root / "reference_kernels", root / "index"), embedder=Dies)
"""


def test_a_crash_leaves_the_previous_index_and_the_next_build_sweeps_up(library: Places, tmp_path: Path) -> None:
    build_index(library, embedder=HashEmbedder)
    before = (library.index / NAME).read_bytes()
    _edit(library, "physical VMEM", "whole VMEM")
    died = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path)], check=False)
    assert died.returncode == 9
    assert (library.index / NAME).read_bytes() == before
    assert list(library.index.glob(".building-*"))
    assert HybridRetriever(library.index, embedder=HashEmbedder).search("scoped vmem limit")
    build_index(library, embedder=HashEmbedder)
    assert not list(library.index.glob(".building-*"))


def test_only_the_current_and_the_previous_generation_are_kept(library: Places) -> None:
    for word in ("one", "two", "three"):
        _edit(library, "## Why", f"## Why {word}")
        build_index(library, embedder=HashEmbedder)
    generations = {path.name for path in library.index.glob("gen-*")}
    assert len(generations) == 2 and read_manifest(library.index).generation in generations


def test_a_second_builder_waits_then_says_busy(library: Places) -> None:
    library.index.mkdir()
    stages: list[str] = []
    with FileLock(library.index / ".lock"), pytest.raises(Busy, match="another process"):
        build_index(library, timeout_s=0.1, embedder=HashEmbedder, progress=lambda stage, *_: stages.append(stage))
    assert stages == ["wait for another build"]


def test_without_an_engine_words_alone_and_it_says_so(library: Places) -> None:
    report = build_index(library, embedder=no_engine)
    assert report.notice == "keyword search alone (not installed: onnxruntime)" and report.engines == ()
    retriever = HybridRetriever(library.index)
    assert retriever.notice.startswith("keyword search alone: the index holds no vectors")
    assert retriever.search("scoped vmem oom")[0].doc_id == "scoped-vmem-limit"
    assert build_index(library, embedder=HashEmbedder).reason == "vectors can be added"


def test_an_index_with_vectors_serves_words_where_no_engine_runs(library: Places) -> None:
    build_index(library, embedder=HashEmbedder)
    retriever = HybridRetriever(library.index, embedder=no_engine)
    assert retriever.notice == "keyword search alone (not installed: onnxruntime)"
    found = retriever.search("normalise rows")
    assert found[0].doc_id == "rms-norm-row-blocks" and found[0].metadata["cosine"] is None


def _spoil(index: Path, **fields: object) -> None:
    path = index / NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"model": "other-model"}, "built with model other-model, queries use all-MiniLM-L6-v2: run `aka kb build`"),
        ({"dimensions": 768}, "built with dimensions 768, queries use 384: run `aka kb build`"),
        ({"schema_version": 99}, "has schema 99, this aka reads 1: run `aka kb build`"),
        ({"passages": 3}, "holds 14 vectors, MANIFEST.json says 3: run `aka kb build`"),
        ({"documents": None}, "is damaged"),
    ],
)
def test_an_index_of_another_make_is_named_and_build_cures_it(
    library: Places, fields: dict[str, object], told: str
) -> None:
    build_index(library, embedder=HashEmbedder)
    _spoil(library.index, **fields)
    with pytest.raises(IndexStale) as caught:
        HybridRetriever(library.index, embedder=HashEmbedder)
    assert told in str(caught.value) and "\n" not in str(caught.value)
    assert build_index(library, embedder=HashEmbedder).built
    assert HybridRetriever(library.index, embedder=HashEmbedder).search("vmem")


@pytest.mark.parametrize("victim", ["library.sqlite3", "chroma/chroma.sqlite3"])
@pytest.mark.parametrize("damage", ["remove", "garble"])
def test_damage_is_found_and_build_cures_it(library: Places, victim: str, damage: str) -> None:
    build_index(library, embedder=HashEmbedder)
    path = library.index / read_manifest(library.index).generation / victim
    path.unlink() if damage == "remove" else path.write_bytes(b"garbage" * 2000)
    with pytest.raises(IndexStale, match="run `aka kb build`"):
        HybridRetriever(library.index, embedder=HashEmbedder).search("vmem")
    engine = HashEmbedder()
    build_index(library, embedder=lambda: engine)
    assert HybridRetriever(library.index, embedder=HashEmbedder).search("vmem")
    assert engine.texts == (0 if "chroma" in victim else 14), "chroma is made again from our own vectors"


def test_a_missing_index_is_built_on_first_use_and_again_after_an_edit(library: Places) -> None:
    with pytest.raises(IndexMissing, match="run `aka kb build`"):
        open_retriever(library, build=False)
    said: list[str] = []
    refresh(library, announce=said.append, first=HashEmbedder)
    assert said == [f"building the index in {library.index} (first use)"]
    assert refresh(library) is None
    _edit(library, "two copies", "twice the size")
    assert refresh(library, announce=said.append, later=HashEmbedder).embedded == 1  # type: ignore[union-attr]
    assert said[-1].endswith("(1 of 5 documents changed)")


def test_without_sources_a_missing_index_is_an_error(tmp_path: Path) -> None:
    nowhere = Places(None, None, tmp_path / "index")
    with pytest.raises(IndexMissing):
        open_retriever(nowhere)
    with pytest.raises(KnowledgeError, match="no documents to build from"):
        build_index(nowhere)


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    with pytest.raises(NoSpace), disk_errors(tmp_path):
        raise OSError(ENOSPC, os.strerror(ENOSPC))


class Wrong(HashEmbedder):
    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return super().embed(texts)[:-1]


def test_an_engine_that_drops_a_text_is_caught(library: Places) -> None:
    with pytest.raises(ValueError, match="zip"):
        build_index(library, embedder=Wrong)
    assert not (library.index / NAME).exists()

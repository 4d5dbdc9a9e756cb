"""Retrieval over the fixture library with the real ONNX engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aka.errors import UsageError
from aka.kb import chroma, store
from aka.kb.adapter import LlamaRetriever
from aka.kb.builder import build_index
from aka.kb.embed import query_embedder
from aka.kb.fuse import fuse
from aka.kb.manifest import read_manifest
from aka.kb.places import Places
from aka.kb.retriever import HybridRetriever
from aka.protocols import Retriever


@pytest.fixture(scope="module")
def retriever(built: Places) -> HybridRetriever:
    return HybridRetriever(built.index)


@pytest.mark.parametrize(
    ("query", "id"),
    [
        ("scoped vmem oom", "scoped-vmem-limit"),
        ("Ran out of memory in memory space vmem. Used 24M of 16M", "scoped-vmem-limit"),
        ("CompilerParams vmem_limit_bytes", "scoped-vmem-limit"),
        ("overlap copies with computation", "double-buffering"),
        ("why are the last rows NaN", "partial-blocks"),
        ("mean square normalisation of each row", "rms-norm-row-blocks"),
        ("dot_general accumulate in float32", "matmul-tiled"),
    ],
)
def test_the_right_document_comes_first(retriever: HybridRetriever, query: str, id: str) -> None:
    assert retriever.search(query)[0].doc_id == id


def test_it_is_a_retriever_and_its_passages_are_whole(retriever: HybridRetriever) -> None:
    seam: Retriever = retriever
    best = seam.search("raise vmem_limit_bytes", k=1)[0]
    assert (best.kind, best.heading) == ("note", "Fix")
    assert best.path == "knowledge/constraints/scoped-vmem-limit.md"
    assert "vmem_limit_bytes=64 * 2**20" in best.text
    assert best.metadata["front_matter"]["layer"] == "constraints"
    assert retriever.notice == ""


def test_one_passage_for_each_document_best_first(retriever: HybridRetriever) -> None:
    found = retriever.search("vmem block", k=9)
    assert len({p.doc_id for p in found}) == len(found) == 5
    assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)
    assert [p.doc_id for p in retriever.search("vmem block", k=2)] == [p.doc_id for p in found[:2]]


def test_filters(retriever: HybridRetriever) -> None:
    kernels = retriever.search("vmem", k=9, kind="kernel")
    assert {p.doc_id for p in kernels} == {"rms-norm-row-blocks", "matmul-tiled"}
    on_v5e = {p.doc_id for p in retriever.search("vmem", k=9, chip="v5e")}
    assert on_v5e == {"scoped-vmem-limit", "double-buffering", "rms-norm-row-blocks"}
    rest = retriever.search("scoped vmem oom", k=9, exclude=["scoped-vmem-limit", "no-such-id"])
    assert "scoped-vmem-limit" not in [p.doc_id for p in rest] and len(rest) == 4
    both = retriever.search("rows", k=9, kind="note", chip="v5e", exclude=("double-buffering",))
    assert [p.doc_id for p in both] == ["scoped-vmem-limit"]


@pytest.mark.parametrize("bad", [{"kind": "book"}, {"chip": "v99"}, {"query": "  "}])
def test_bad_requests(retriever: HybridRetriever, bad: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        retriever.search(**{"query": "vmem"} | bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("query", ['"', "a OR b) NEAR(", "vmem*", "-x", "行列", "col:val", "'; DROP TABLE passages"])
def test_no_query_upsets_the_keyword_index(retriever: HybridRetriever, query: str) -> None:
    assert len(retriever.search(query, k=3)) == 3


def test_documents_by_id(retriever: HybridRetriever) -> None:
    assert "TUNED_PARAMS" in retriever.document("rms-norm-row-blocks").source
    with pytest.raises(UsageError, match="nearest: rms-norm-row-blocks"):
        retriever.document("rms-norm-rows")


def test_chroma_agrees_with_exact_cosines(built: Places) -> None:
    manifest = read_manifest(built.index)
    generation = built.index / manifest.generation
    vector = query_embedder().embed(["scoped vmem oom"])[0]
    dense = chroma.DenseIndex(generation / chroma.NAME, manifest.passages).scores(vector.tolist(), store.Scope())
    library = store.Store(generation / store.NAME)
    exact = {v.sha256: float(np.frombuffer(v.data, "<f4") @ vector) for v in library.vectors()}
    passages = library.passages(dense)
    assert len(dense) == manifest.passages
    assert all(abs(exact[passages[id].embedded_sha256] - score) < 1e-4 for id, score in dense.items())


def test_an_open_retriever_sees_a_new_build(library: Places) -> None:
    build_index(library, embedder=query_embedder)
    retriever = HybridRetriever(library.index)
    assert retriever.search("systolic array depth")[0].score < 9
    assert library.knowledge is not None
    note = (library.knowledge / "techniques/double-buffering.md").read_text()
    new = note.replace("id: double-buffering", "id: mxu").replace(
        "Double buffering hides", "Systolic array depth hides"
    )
    (library.knowledge / "techniques/mxu.md").write_text(new)
    build_index(library, embedder=query_embedder)
    assert retriever.search("systolic array depth")[0].doc_id == "mxu"


def test_fusion_adds_z_scores() -> None:
    fused = fuse({"a": 0.9, "b": 0.5, "c": 0.1}, {"b": 4.0})
    assert list(fused) == ["b", "a", "c"]
    assert fused["b"] == pytest.approx(2**0.5) and fused["a"] == pytest.approx(1.5**0.5 - 0.5**0.5)
    assert list(fuse(None, {"a": 1.0, "b": 2.0})) == ["b", "a"]
    assert fuse({"a": 0.5, "b": 0.5}, {}) == {"a": 0.0, "b": 0.0}
    late = fuse({"a": 0.9, "b": 0.5}, {"c": 1.0})
    assert set(late) == {"a", "b", "c"}, "a keyword hit outside the dense list still counts"


def test_llama_index_can_use_it(retriever: HybridRetriever) -> None:
    nodes = LlamaRetriever(retriever, k=2, kind="note").retrieve("scoped vmem oom")
    best = retriever.search("scoped vmem oom", kind="note")[0]
    assert (nodes[0].node.node_id, nodes[0].score) == (best.passage_id, best.score)
    assert len(nodes) == 2 and nodes[0].node.metadata["document"] == "scoped-vmem-limit"


def test_places(tmp_path: Path) -> None:
    from aka.kb.places import ROOT, find_places

    own = find_places()
    assert own.knowledge == ROOT / "knowledge" and own.index == ROOT / "index"
    (tmp_path / "notes").mkdir()
    given = find_places(knowledge=tmp_path / "notes")
    assert given.index != own.index and given.index.name.startswith("index-")
    with pytest.raises(UsageError, match="is not a folder"):
        find_places(knowledge=tmp_path / "nowhere")

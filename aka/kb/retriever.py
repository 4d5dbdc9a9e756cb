"""Hybrid retrieval over a finished index: vectors from Chroma, words from SQLite, fused, one passage for each document.

Neither llama-index nor sentence-transformers is imported here: together they would cost a command 7 s. See
docs/decisions/0004-retrieval.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from aka.errors import IndexStale, UsageError
from aka.kb import chroma, store
from aka.kb.chroma import CANDIDATES, DenseIndex
from aka.kb.embed import Embedder, EmbedderUnavailable, query_embedder
from aka.kb.fuse import fuse
from aka.kb.health import database_intact
from aka.kb.manifest import NAME, REBUILD, Manifest, read_manifest
from aka.kb.store import Scope, Store, Stored, find_document
from aka.kb.values import CHIPS, KINDS, Document
from aka.types import Passage


class HybridRetriever:
    """Implements `aka.protocols.Retriever`. Opens the index when made, and again whenever another process replaced it.

    Raises IndexMissing or IndexStale (one line, with the command that cures it). Not to be used across a fork.
    """

    def __init__(self, index_dir: Path, *, embedder: Callable[[], Embedder] = query_embedder) -> None:
        self._index = index_dir
        self._make_embedder = embedder
        self._embedder: Embedder | None = None
        self._dense: DenseIndex | None = None
        self.notice = ""
        self._open()

    def search(
        self, query: str, *, k: int = 5, kind: str | None = None, chip: str | None = None, exclude: Iterable[str] = ()
    ) -> list[Passage]:
        """The best passage of each of the k best documents, best first; `score` is a sum of two z-scores (higher is
        better, comparable within one answer only). Raises UsageError for an empty query, unknown kind or unknown chip.
        """
        scope = _scope(query, kind, chip, exclude)
        if self._state() != self._opened:
            self.close()
            self._open()
        near = self._dense_scores(query, scope)
        hits = self._store.keyword_scores(query, scope, CANDIDATES)
        ranked = fuse(near, hits)
        passages = self._store.passages(ranked)
        found: dict[str, Passage] = {}
        for id, score in ranked.items():
            passage = passages[id]
            if len(found) < k and passage.document not in found:
                evidence = {"cosine": (near or {}).get(id), "bm25": hits.get(id)}
                found[passage.document] = self._passage(passage, score, evidence)
        return list(found.values())

    def document(self, id: str) -> Document:
        """The whole document. Raises UsageError that names the nearest ids."""
        return find_document(self._store, id)

    def close(self) -> None:
        self._store.close()
        if self._dense:
            self._dense.close()
            self._dense = None

    def _open(self) -> None:
        self._opened = self._state()
        manifest = read_manifest(self._index)
        if not database_intact(self._index, manifest):
            raise IndexStale(f"{self._index / manifest.generation} is damaged or missing: {REBUILD}")
        generation = self._index / manifest.generation
        self._open_dense(manifest, generation / chroma.NAME)
        self._store = Store(generation / store.NAME)

    def _open_dense(self, manifest: Manifest, folder: Path) -> None:
        if manifest.model is None:
            self.notice = f"keyword search alone: the index holds no vectors ({REBUILD} where onnxruntime is installed)"
            return
        try:
            self._embedder = self._embedder or self._make_embedder()
        except EmbedderUnavailable as error:
            self.notice = f"keyword search alone ({error})"
            return
        self._dense = DenseIndex(folder, manifest.passages)
        self.notice = ""

    def _state(self) -> tuple[int, int] | None:
        path = self._index / NAME
        if not path.exists():
            return None
        stat = path.stat()
        return stat.st_ino, stat.st_mtime_ns

    def _dense_scores(self, query: str, scope: Scope) -> dict[str, float] | None:
        if self._dense is None or self._embedder is None:
            return None
        return self._dense.scores(self._embedder.embed([query])[0].tolist(), scope)

    def _passage(self, passage: Stored, score: float, evidence: dict[str, Any]) -> Passage:
        document = self._store.document(passage.document)
        assert document is not None
        return Passage(
            doc_id=document.id,
            passage_id=passage.id,
            kind=document.kind,
            title=document.title,
            heading=passage.heading,
            text=passage.text,
            score=score,
            path=document.path,
            metadata=evidence | {"front_matter": document.matter},
        )


def _scope(query: str, kind: str | None, chip: str | None, exclude: Iterable[str]) -> Scope:
    if not query.strip():
        raise UsageError("the query is empty")
    if kind is not None and kind not in KINDS:
        raise UsageError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
    if chip is not None and chip not in CHIPS:
        raise UsageError(f"unknown chip {chip!r}; known: {', '.join(CHIPS)}")
    return Scope(kind, chip, tuple(exclude))

"""Chroma on disk: written once by a build (through llama-index), then only queried.

Chroma allows one writer (three at once lost up to 800 of 1800 rows in a trial) and hangs in a child that was forked
after the client opened; so a build writes under a lock, aside, and no process of `aka` forks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from aka.errors import IndexStale
from aka.kb.manifest import REBUILD
from aka.kb.store import Scope

NAME = "chroma"
COLLECTION = "passages"
# The graph search must see at least as many neighbours as we ask it for, or it answers with fewer.
CANDIDATES = 200
_HNSW = {"hnsw": {"space": "cosine", "ef_construction": 200, "ef_search": 2 * CANDIDATES}}


@contextmanager
def create_collection(folder: Path) -> Iterator[Any]:
    """A new, empty collection in `folder`; the client is closed on leaving."""
    with _client(folder) as client:
        yield client.create_collection(COLLECTION, embedding_function=None, configuration=_HNSW)


class DenseIndex:
    """A finished Chroma folder, opened to query. Raises IndexStale if it is missing or damaged."""

    def __init__(self, folder: Path, passages: int) -> None:
        _check_file(folder / "chroma.sqlite3")
        from chromadb.errors import ChromaError

        self._errors = ChromaError
        try:
            self._client = _client(folder)
            self._collection = self._client.get_collection(COLLECTION, embedding_function=None)
            count = self._collection.count()
        except ChromaError as error:
            raise IndexStale(f"{folder} is damaged ({error}): {REBUILD}") from error
        if count != passages:
            raise IndexStale(f"{folder} holds {count} vectors, MANIFEST.json says {passages}: {REBUILD}")

    def close(self) -> None:
        self._client.close()

    def scores(self, vector: list[float], scope: Scope) -> dict[str, float]:
        """Cosine similarity of up to CANDIDATES passages, by passage id, best first."""
        try:
            found = self._collection.query(
                query_embeddings=[vector], n_results=CANDIDATES, where=_where(scope), include=["distances"]
            )
        except self._errors as error:
            raise IndexStale(f"the vector index cannot be read ({error}): {REBUILD}") from error
        return {id: 1.0 - distance for id, distance in zip(found["ids"][0], found["distances"][0], strict=True)}


def _check_file(database: Path) -> None:
    """Chroma makes a new index where there is none, and after one failed open fails in other ways; so look first."""
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as db:
            db.execute("SELECT count(*) FROM collections").fetchone()
    except sqlite3.Error as error:
        raise IndexStale(f"{database} is missing or damaged ({error}): {REBUILD}") from error


def _client(folder: Path) -> Any:
    import chromadb
    from chromadb.config import Settings

    return chromadb.PersistentClient(str(folder), settings=Settings(anonymized_telemetry=False))


def _where(scope: Scope) -> dict[str, Any] | None:
    terms: list[dict[str, Any]] = []
    if scope.kind:
        terms.append({"kind": scope.kind})
    if scope.chip:
        terms.append({f"chip_{scope.chip}": True})
    if scope.exclude:
        terms.append({"document": {"$nin": list(scope.exclude)}})
    return {"$and": terms} if len(terms) > 1 else (terms[0] if terms else None)

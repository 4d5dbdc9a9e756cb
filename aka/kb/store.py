"""Our own SQLite file: documents, passages, vectors and the keyword index (FTS5). Chroma can be made again from it."""

from __future__ import annotations

import difflib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from aka.errors import IndexStale, UsageError
from aka.kb.manifest import REBUILD
from aka.kb.values import Document
from aka.kb.words import indexed, match_expression

NAME = "library.sqlite3"
SCHEMA = """
CREATE TABLE documents (id TEXT PRIMARY KEY, kind TEXT NOT NULL, data TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE chips (document TEXT NOT NULL, chip TEXT NOT NULL, PRIMARY KEY (document, chip)) WITHOUT ROWID;
CREATE TABLE passages (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, document TEXT NOT NULL, heading TEXT NOT NULL,
    text TEXT NOT NULL, embedded_sha256 TEXT NOT NULL);
CREATE TABLE vectors (
    sha256 TEXT PRIMARY KEY, engine TEXT NOT NULL, weights_sha256 TEXT NOT NULL, vector BLOB NOT NULL) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5(title, symptoms, keywords, heading, body, tokenize = 'porter unicode61');
"""
# BM25 weight of each column of `words`: a title, an error text or a tag was chosen to be found by.
WEIGHTS = (3.0, 3.0, 2.0, 2.0, 1.0)
FILTER = """
    (:kind IS NULL OR d.kind = :kind) AND d.id NOT IN (SELECT value FROM json_each(:exclude))
    AND (:chip IS NULL OR EXISTS (SELECT 1 FROM chips c WHERE c.document = d.id AND c.chip = :chip))
"""


@dataclass(frozen=True)
class Stored:
    """One passage; `embedded_sha256` is the hash of the text behind its vector (title and heading added)."""

    id: str
    document: str
    heading: str
    text: str
    embedded_sha256: str


@dataclass(frozen=True)
class Vector:
    """float32 little-endian bytes for the text of hash `sha256`, with the engine and weights that made them."""

    sha256: str
    engine: str
    weights_sha256: str
    data: bytes


@dataclass(frozen=True)
class Scope:
    """Which documents a search may return. None and empty mean all."""

    kind: str | None = None
    chip: str | None = None
    exclude: tuple[str, ...] = ()


class Store:
    """A finished library file, opened to read; it never changes once it is in place."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise IndexStale(f"{path} is missing: {REBUILD}")
        self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)

    def close(self) -> None:
        self._db.close()

    def document(self, id: str) -> Document | None:
        row = self._db.execute("SELECT data FROM documents WHERE id = ?", (id,)).fetchone()
        return _document(row[0]) if row else None

    def document_ids(self) -> list[str]:
        return [id for (id,) in self._db.execute("SELECT id FROM documents ORDER BY id")]

    def passages(self, ids: Iterable[str]) -> dict[str, Stored]:
        """Those of these ids that exist."""
        rows = self._db.execute(
            "SELECT id, document, heading, text, embedded_sha256 FROM passages"
            " WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(ids)),),
        )
        return {row[0]: Stored(*row) for row in rows}

    def keyword_scores(self, query: str, scope: Scope, limit: int) -> dict[str, float]:
        """BM25 (higher is better) of up to `limit` passages, by passage id, best first."""
        expression = match_expression(query)
        if expression is None:
            return {}
        rows = self._db.execute(
            f"SELECT p.id, -bm25(words, {', '.join(map(str, WEIGHTS))}) AS score"
            " FROM words JOIN passages p ON p.number = words.rowid JOIN documents d ON d.id = p.document"
            f" WHERE words MATCH :query AND {FILTER} ORDER BY score DESC, p.id LIMIT :limit",
            {"query": expression, "kind": scope.kind, "chip": scope.chip, "exclude": json.dumps(scope.exclude),
             "limit": limit},
        )  # fmt: skip
        return dict(rows.fetchall())

    def vectors(self) -> Iterator[Vector]:
        for row in self._db.execute("SELECT sha256, engine, weights_sha256, vector FROM vectors"):
            yield Vector(*row)


def find_document(library: Store, id: str) -> Document:
    """The document of this id. Raises UsageError that names the nearest ids."""
    document = library.document(id)
    if document is None:
        near = difflib.get_close_matches(id, library.document_ids(), n=3, cutoff=0.4)
        raise UsageError(f"no document {id!r}" + (f"; nearest: {', '.join(near)}" if near else ""))
    return document


def write_store(
    path: Path, documents: Sequence[Document], passages: Sequence[Stored], vectors: Iterable[Vector]
) -> None:
    """Writes a new library file; the caller moves it into place."""
    known = {document.id: document for document in documents}
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(SCHEMA)
        db.executemany(
            "INSERT INTO documents VALUES (?, ?, ?)", [(d.id, d.kind, json.dumps(asdict(d))) for d in documents]
        )
        db.executemany("INSERT INTO chips VALUES (?, ?)", [(d.id, chip) for d in documents for chip in d.chips])
        db.executemany("INSERT INTO vectors VALUES (?, ?, ?, ?)", [tuple(asdict(v).values()) for v in vectors])
        for number, passage in enumerate(passages):
            db.execute("INSERT INTO passages VALUES (?, ?, ?, ?, ?, ?)", (number, *asdict(passage).values()))
            db.execute(
                "INSERT INTO words (rowid, title, symptoms, keywords, heading, body) VALUES (?, ?, ?, ?, ?, ?)",
                (number, *_columns(known[passage.document], passage)),
            )


def _columns(document: Document, passage: Stored) -> tuple[str, ...]:
    texts = (document.title, " ".join(document.symptoms), " ".join(document.keywords), passage.heading, passage.text)
    return tuple(map(indexed, texts))


def _document(data: str) -> Document:
    fields = json.loads(data)
    lists = {name: tuple(fields[name]) for name in ("chips", "keywords", "symptoms")}
    return Document(**fields | lists)

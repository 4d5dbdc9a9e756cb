"""MANIFEST.json: what the index in a folder is, and the one file whose replacement makes a new build current."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from aka.errors import IndexMissing, IndexStale
from aka.kb.embed import DIMENSIONS, MODEL
from aka.types import decode, encode

SCHEMA = 1
CHUNKER = 1
NAME = "MANIFEST.json"
REBUILD = "run `aka kb build`"


@dataclass(frozen=True)
class Manifest:
    """`generation` is the folder beside MANIFEST.json that holds the index; `documents` maps label to content sha256.

    `model`, `engines`, `dimensions` are None/empty for an index of keywords alone. `built_at` is UTC, ISO 8601.
    """

    schema_version: int
    generation: str
    chunker: int
    model: str | None
    engines: dict[str, str]
    dimensions: int | None
    documents: dict[str, str]
    passages: int
    database_sha256: str
    chromadb: str
    llama_index_core: str
    built_at: str

    def outdated(self, documents: dict[str, str]) -> str | None:
        """Why an index of these sources must be built again, or None."""
        if self.chunker != CHUNKER:
            return f"passages are cut another way now (chunker {self.chunker}, now {CHUNKER})"
        if self.chromadb != version("chromadb"):
            return f"written by chromadb {self.chromadb}, now {version('chromadb')}"
        if documents == self.documents:
            return None
        changed = {label for label, _ in documents.items() ^ self.documents.items()}
        return f"{len(changed)} of {len(documents.keys() | self.documents.keys())} documents changed"


def read_manifest(index: Path) -> Manifest:
    """Raises IndexMissing, or IndexStale with one line that names what was found, what is needed and the cure."""
    path = index / NAME
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise IndexMissing(f"no index in {index}: {REBUILD}") from error
    except ValueError as error:
        raise IndexStale(f"{path} is damaged (not JSON): {REBUILD}") from error
    schema = data.get("schema_version") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise IndexStale(f"the index in {index} has schema {schema}, this aka reads {SCHEMA}: {REBUILD}")
    try:
        manifest = decode(Manifest, data)
    except ValueError as error:
        raise IndexStale(f"{path} is damaged (fields missing): {REBUILD}") from error
    if manifest.model is not None:
        _same("model", manifest.model, MODEL, index)
        _same("dimensions", manifest.dimensions, DIMENSIONS, index)
    return manifest


def write_manifest(index: Path, manifest: Manifest) -> None:
    """Replaces MANIFEST.json in one step, durably."""
    aside = index / f".{NAME}.{os.getpid()}"
    with aside.open("w") as file:
        json.dump(encode(manifest), file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(index / NAME)


def _same(what: str, found: object, needed: object, index: Path) -> None:
    if found != needed:
        raise IndexStale(f"the index in {index} was built with {what} {found}, queries use {needed}: {REBUILD}")

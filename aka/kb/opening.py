"""Opens the library, bringing its index up to date first where the sources are at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aka.errors import IndexMissing, IndexStale
from aka.kb import store
from aka.kb.cache import Progress, quiet
from aka.kb.embed import Embedder, build_embedder, query_embedder
from aka.kb.health import database_intact
from aka.kb.manifest import REBUILD, read_manifest
from aka.kb.places import Places
from aka.kb.retriever import HybridRetriever
from aka.kb.sources import fingerprint, read_sources
from aka.kb.store import Store

if TYPE_CHECKING:
    from aka.kb.builder import BuildReport

LOCK_TIMEOUT_S = 600.0


def hush(message: str) -> None:
    """An announcement callback that says nothing."""


def open_retriever(
    places: Places,
    *,
    build: bool = True,
    announce: Callable[[str], None] = hush,
    progress: Progress = quiet,
    timeout_s: float = LOCK_TIMEOUT_S,
) -> HybridRetriever:
    """A retriever over a current index (any readable one with `build=False`).

    Raises IndexMissing, IndexStale, and what `build_index` raises.
    """
    if build:
        refresh(places, announce=announce, progress=progress, timeout_s=timeout_s)
    return HybridRetriever(places.index)


def open_store(
    places: Places,
    *,
    build: bool = True,
    announce: Callable[[str], None] = hush,
    progress: Progress = quiet,
    timeout_s: float = LOCK_TIMEOUT_S,
) -> Store:
    """Documents alone, without a model or Chroma; otherwise as `open_retriever`."""
    if build:
        refresh(places, announce=announce, progress=progress, timeout_s=timeout_s)
    manifest = read_manifest(places.index)
    if not database_intact(places.index, manifest):
        raise IndexStale(f"{places.index / manifest.generation} is damaged or missing: {REBUILD}")
    return Store(places.index / manifest.generation / store.NAME)


def refresh(
    places: Places,
    *,
    announce: Callable[[str], None] = hush,
    progress: Progress = quiet,
    timeout_s: float = LOCK_TIMEOUT_S,
    first: Callable[[], Embedder] = build_embedder,
    later: Callable[[], Embedder] = query_embedder,
) -> BuildReport | None:
    """Builds the index if there is none (with engine `first`) or its sources changed (with engine `later`, since a few
    changed passages are not worth the 5 s that sentence-transformers takes to start); None if there was nothing to do.

    Raises IndexStale for an index that another `aka` wrote or that is damaged: replacing it is the user's decision.
    """
    engine = later
    try:
        manifest = read_manifest(places.index)
    except IndexMissing:
        if not places.has_sources:
            raise
        reason, engine = "first use", first
    else:
        outdated = manifest.outdated(fingerprint(read_sources(places))) if places.has_sources else None
        if outdated is None:
            return None
        reason = outdated
    from aka.kb.builder import build_index

    announce(f"building the index in {places.index} ({reason})")
    report = build_index(places, progress=progress, timeout_s=timeout_s, embedder=engine)
    if report.notice:
        announce(report.notice)
    return report

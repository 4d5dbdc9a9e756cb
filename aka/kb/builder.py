"""Builds the index: aside, under a writer lock, then put in place in one step.

An index folder holds MANIFEST.json and `gen-…` folders; the manifest names the current one, and replacing it is the
commit. A crash before that leaves the previous index current. Every build cuts all documents again (a few ms each) but
embeds only texts that it has no vector of.
"""

from __future__ import annotations

import datetime
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from aka.errors import KnowledgeError
from aka.kb import chroma, store
from aka.kb.cache import Progress, VectorCache, quiet
from aka.kb.documents import read_documents
from aka.kb.embed import DIMENSIONS, MODEL, Embedder, EmbedderUnavailable, build_embedder
from aka.kb.health import build_reason, current_manifest, database_intact, database_sha256
from aka.kb.manifest import CHUNKER, SCHEMA, Manifest
from aka.kb.places import Places
from aka.kb.sources import Source, fingerprint, read_sources
from aka.kb.store import Store, Vector, write_store
from aka.kb.writing import GENERATION, commit, disk_errors, folder_aside, writer_lock


@dataclass(frozen=True)
class BuildReport:
    """What a build did. `embedded` counts texts that had no vector yet, `engines` made the vectors in use, `notice`
    is for people ("" if nothing is amiss)."""

    built: bool
    reason: str
    index: str
    documents: int
    passages: int
    embedded: int
    engines: tuple[str, ...]
    seconds: float
    notice: str = ""


def build_index(
    places: Places,
    *,
    force: bool = False,
    progress: Progress = quiet,
    timeout_s: float = 600.0,
    embedder: Callable[[], Embedder] = build_embedder,
) -> BuildReport:
    """Makes the index current. Does nothing if it is; `force` builds from nothing, vectors included.

    Raises Busy if another process still builds after `timeout_s` seconds, DocumentInvalid for a bad document,
    KnowledgeError if there are no documents, NoSpace if the disk is full. The previous index survives all of them.
    """
    start = time.perf_counter()
    with writer_lock(places.index, timeout_s, progress):
        progress("read", 0, 1)
        sources = read_sources(places)
        if not sources:
            raise KnowledgeError("no documents to build from: neither knowledge/ nor reference_kernels/ has any")
        previous = current_manifest(places.index)
        reason = "forced" if force else build_reason(places.index, previous, sources)
        if reason is None and previous is not None:
            return _report(places, previous, start, built=False, reason="up to date")
        with disk_errors(places.index):
            job = _Job(places.index, sources, previous, not force, progress, embedder)
            manifest, embedded, notice = _build(job)
        return _report(places, manifest, start, built=True, reason=reason or "", embedded=embedded, notice=notice)


@dataclass(frozen=True)
class _Job:
    index: Path
    sources: tuple[Source, ...]
    previous: Manifest | None
    reuse: bool
    progress: Progress
    embedder: Callable[[], Embedder]


def _build(job: _Job) -> tuple[Manifest, int, str]:
    documents = read_documents(job.sources)
    from aka.kb import ingest

    nodes = ingest.cut(documents)
    passages = [ingest.stored(node) for node in nodes]
    cache = VectorCache(_known_vectors(job), job.embedder, job.progress, len(nodes))
    notice = ""
    with folder_aside(job.index) as folder:
        try:
            ingest.embed_into(folder / chroma.NAME, nodes, cache)
        except EmbedderUnavailable as error:
            cache = VectorCache((), job.embedder, job.progress, 0)
            notice = f"keyword search alone ({error})"
            shutil.rmtree(folder / chroma.NAME)
        job.progress("write", 0, 1)
        write_store(folder / store.NAME, documents, passages, cache.used())
        manifest = _manifest(job, folder, len(passages), cache)
        commit(job.index, folder, manifest, job.previous)
    job.progress("write", 1, 1)
    return manifest, cache.embedded, notice


def _known_vectors(job: _Job) -> list[Vector]:
    if not job.reuse or job.previous is None or not database_intact(job.index, job.previous):
        return []
    with closing(Store(job.index / job.previous.generation / store.NAME)) as old:
        return list(old.vectors())


def _manifest(job: _Job, folder: Path, passages: int, cache: VectorCache) -> Manifest:
    now = datetime.datetime.now(datetime.UTC)
    digest = database_sha256(folder)
    engines = cache.engines()
    return Manifest(
        schema_version=SCHEMA,
        generation=f"{GENERATION}{now:%Y%m%dT%H%M%S%f}-{digest[:8]}",
        chunker=CHUNKER,
        model=MODEL if engines else None,
        engines=engines,
        dimensions=DIMENSIONS if engines else None,
        documents=fingerprint(job.sources),
        passages=passages,
        database_sha256=digest,
        chromadb=version("chromadb"),
        llama_index_core=version("llama-index-core"),
        built_at=now.isoformat(timespec="seconds"),
    )


def _report(
    places: Places, manifest: Manifest, start: float, *, built: bool, reason: str, embedded: int = 0, notice: str = ""
) -> BuildReport:
    return BuildReport(
        built=built,
        reason=reason,
        index=str(places.index),
        documents=len(manifest.documents),
        passages=manifest.passages,
        embedded=embedded,
        engines=tuple(sorted(manifest.engines)),
        seconds=round(time.perf_counter() - start, 3),
        notice=notice,
    )

"""The files that the library is made of, with the hash of each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from aka.kb.places import Places
from aka.kb.values import Kind


@dataclass(frozen=True)
class Source:
    """One file as read. `label` is its path as shown to people, from the source folder's name on."""

    kind: Kind
    label: str
    data: bytes

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def read_sources(places: Places) -> tuple[Source, ...]:
    """Every document file, sorted by label: `*.md` of the notes and `*.py` of the kernels.

    A README and names that start with `_` or `.` are not documents. Reads everything each time: cheap (300
    documents are measured by benchmarks/kb.py), and time stamps would miss an edit of equal size within one clock tick.
    """
    notes = _read(places.knowledge, "note", ".md") if places.knowledge else ()
    kernels = _read(places.kernels, "kernel", ".py") if places.kernels else ()
    return (*notes, *kernels)


def fingerprint(sources: tuple[Source, ...]) -> dict[str, str]:
    """Label to sha256 of content."""
    return {source.label: source.sha256 for source in sources}


def _read(root: Path, kind: Kind, suffix: str) -> tuple[Source, ...]:
    return tuple(
        Source(kind, f"{root.name}/{path.relative_to(root).as_posix()}", path.read_bytes())
        for path in sorted(_files(root, suffix))
    )


def _files(root: Path, suffix: str) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not name.startswith((".", "_"))]
        for name in names:
            if name.endswith(suffix) and not name.startswith((".", "_", "README")):
                yield Path(folder, name)

"""Where the sources of the library and its index are."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from aka.errors import UsageError

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent


@dataclass(frozen=True)
class Places:
    """Folders of one library. A source folder that this machine lacks is None; `index` may not exist yet."""

    knowledge: Path | None
    kernels: Path | None
    index: Path

    @property
    def has_sources(self) -> bool:
        return self.knowledge is not None or self.kernels is not None


def find_places(*, knowledge: Path | None = None, kernels: Path | None = None, index: Path | None = None) -> Places:
    """The folders given, and for the others the library's own, with the index in the cache if need be.

    A source given by hand has its own index in the cache, so that it never replaces the checkout's. Raises UsageError
    if a folder given by hand does not exist.
    """
    notes = _given(knowledge) if knowledge else _own("knowledge")
    library = _given(kernels) if kernels else _own("reference_kernels")
    if index is None:
        index = _own_index(notes, library) if knowledge or kernels else _default_index()
    return Places(notes, library, index.absolute())


def cache_folder() -> Path:
    """The user's cache folder of `aka` (not created)."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "aka"


def _given(folder: Path) -> Path:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    return folder.resolve()


def _own(name: str) -> Path | None:
    """The library's folder of that name: an installed package carries it, a checkout has it beside the package."""
    installed = PACKAGE / "data" / name
    if installed.is_dir():
        return installed
    return ROOT / name if _in_checkout() and (ROOT / name).is_dir() else None


def _in_checkout() -> bool:
    # A folder called `knowledge` alone may be anybody's, where the package lies in site-packages.
    return (ROOT / "pyproject.toml").is_file() and (ROOT / "knowledge").is_dir()


def _default_index() -> Path:
    beside = ROOT / "index"
    if _in_checkout() and os.access(beside if beside.exists() else ROOT, os.W_OK):
        return beside
    return cache_folder() / "index"


def _own_index(notes: Path | None, library: Path | None) -> Path:
    digest = hashlib.sha256(f"{notes}\n{library}".encode()).hexdigest()[:12]
    return cache_folder() / f"index-{digest}"

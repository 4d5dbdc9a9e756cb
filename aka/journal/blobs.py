"""Content-addressed files of a run: `blobs/<sha256>`, durable before a journal record names them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from aka.errors import JournalCorrupt, UsageError
from aka.journal.files import as_aka_errors, sync_folder, write_atomically

_SHA256 = re.compile(r"[0-9a-f]{64}")


class BlobStore:
    """Bytes by their sha256, under `folder`/blobs (made on the first `put`)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "blobs"

    def put(self, data: bytes) -> str:
        """Store `data` durably and return its sha256 (hex). Raises NoSpace, or UsageError for a read-only folder."""
        sha = hashlib.sha256(data).hexdigest()
        if self._matches(sha):
            return sha
        with as_aka_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self._folder.parent)
        write_atomically(self._folder / sha, data)
        return sha

    def get(self, sha: str) -> bytes:
        """The bytes of that hash. Raises JournalCorrupt if they are missing or have changed."""
        if not _SHA256.fullmatch(sha):
            raise UsageError(f"not a sha256: {sha[:80]!r}")
        path = self._folder / sha
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise JournalCorrupt(f"{path} is missing, though the journal names it") from None
        if hashlib.sha256(data).hexdigest() != sha:
            raise JournalCorrupt(f"{path} has changed: its content no longer has the hash of its name")
        return data

    def _matches(self, sha: str) -> bool:
        path = self._folder / sha
        return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha

"""The journal of a run: one JSON line for each event, synced to the disk before `append` returns."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from aka.errors import NoSpace, UsageError
from aka.journal.blobs import BlobStore
from aka.journal.files import as_aka_errors, give_reserve_back, is_full, sync_folder, take_reserve, write_all
from aka.journal.lock import RunLock
from aka.journal.record import MAX_RECORD_BYTES, Record, to_line
from aka.journal.redact import Redactor
from aka.journal.scan import Scan, scan
from aka.types import Event

_NAME = "journal.jsonl"
_RESERVE = "reserve.bin"
# An event too long for one line keeps its data in a blob, which the line names by this key.
_SPILLED = "$blob"


class JsonlJournal:
    """Implements `aka.protocols.Journal` on `folder`/journal.jsonl.

    Make one with `create` (a new run), `resume` (go on with one) or `read` (look only: no lock, `append` refuses).
    `message` says in one line what `resume` repaired, or is "". Within one session the times of the events advance by
    the monotonic clock, so that their differences are true even when the wall clock is set. One thread writes, and no
    signal handler: a KeyboardInterrupt in `append` loses that event at most, and the journal stays whole.
    """

    def __init__(self, folder: Path, run: str, found: Scan, fd: int | None, lock: RunLock | None) -> None:
        self.folder = folder
        self.run = run
        self.blobs = BlobStore(folder)
        self.message = ""
        self._fd = fd
        self._lock = lock
        self._redactor = Redactor(os.environ)
        self._wall_minus_mono = time.time() - time.monotonic()
        # Each event with the length of the file after it, as one value: an interrupt cannot part them.
        self._log = [(self._event(record), found.good_bytes) for record in found.records]

    @classmethod
    def create(cls, folder: Path, run: str) -> JsonlJournal:
        """Start the journal of a new run in `folder`, made if need be. Sets 16 MiB of disk aside for the end.

        Raises UsageError (the folder cannot be made or written, or holds a run already), Busy or NoSpace.
        """
        try:
            with as_aka_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UsageError(f"not a folder: {folder}") from None
        except OSError as error:
            raise UsageError(f"cannot make the folder {folder}: {error.strerror}") from error
        return cls._open(folder, run, new=True)

    @classmethod
    def resume(cls, folder: Path) -> JsonlJournal:
        """Go on with the run in `folder`; cuts a torn tail off and says so in `message`.

        Raises UsageError (no run there, or read-only), Busy, NoSpace, or JournalCorrupt (the file is kept as it is).
        """
        path = folder / _NAME
        if not path.is_file():
            raise UsageError(f"no run there: {path} does not exist")
        return cls._open(folder, "", new=False)

    @classmethod
    def read(cls, folder: Path) -> JsonlJournal:
        """Look at a run, even while it goes on; a line that is still being written is left out."""
        found = scan(folder / _NAME)
        return cls(folder, _run_of(found, folder), found, None, None)

    @classmethod
    def _open(cls, folder: Path, run: str, *, new: bool) -> JsonlJournal:
        with contextlib.ExitStack() as undo:
            lock = RunLock(folder)
            undo.callback(lock.release)
            found = Scan((), 0, 0) if new else scan(folder / _NAME)
            take_reserve(folder / _RESERVE)
            undo.callback(give_reserve_back, folder / _RESERVE)
            fd = _open_file(folder / _NAME, new=new)
            undo.callback(os.close, fd)
            journal = cls(folder, run or _run_of(found, folder), found, fd, lock)
            journal._cut(found)
            sync_folder(folder)
            undo.pop_all()
        return journal

    def append(self, type: str, data: dict[str, Any]) -> Event:
        """Write one event durably. Secrets in it are redacted; NaN and infinity raise ValueError.

        Raises NoSpace when the disk is full; the reserve is then given back, and this event and a few more still fit.
        """
        if self._fd is None:
            raise UsageError(f"the journal in {self.folder} is open for reading only")
        record = self._record(type, self._redactor.json(data))
        line = to_line(record)
        if len(line) > MAX_RECORD_BYTES:
            whole = json.dumps(record.data, allow_nan=False, separators=(",", ":")).encode("ascii")
            line = to_line(self._record(type, {_SPILLED: self.blobs.put(whole)}))
        event = Event(record.seq, type, json.loads(json.dumps(record.data)), record.t_wall)
        size = self._log[-1][1] if self._log else 0
        full = self._write(self._fd, line, size)
        self._log.append((event, size + len(line)))
        if full is not None:
            raise NoSpace(f"no space left in {self.folder}: record {record.seq} was saved in the reserve") from full
        return event

    def events(self) -> list[Event]:
        return [event for event, _ in self._log]

    def close(self) -> None:
        """Give the lock and the reserve back. A closed journal can still be read."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            give_reserve_back(self.folder / _RESERVE)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> JsonlJournal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _record(self, type: str, data: dict[str, Any]) -> Record:
        mono = time.monotonic()
        return Record(len(self._log), self.run, mono + self._wall_minus_mono, mono, type, data)

    def _event(self, record: Record) -> Event:
        data = record.data
        if data.keys() == {_SPILLED}:
            data = json.loads(self.blobs.get(data[_SPILLED]))
        return Event(record.seq, record.type, data, record.t_wall)

    def _write(self, fd: int, line: bytes, size: int) -> OSError | None:
        """Write `line` at `size`; the error of a full disk is returned if the reserve made room for it after all."""
        try:
            _append_synced(fd, line, size)
        except OSError as error:
            if not is_full(error):
                raise
            if not give_reserve_back(self.folder / _RESERVE):
                raise NoSpace(f"no space left in {self.folder}; the last event was not saved") from error
            with as_aka_errors(self.folder / _NAME):
                _append_synced(fd, line, size)
            return error
        return None

    def _cut(self, found: Scan) -> None:
        if found.torn_bytes and self._fd is not None:
            os.ftruncate(self._fd, found.good_bytes)
            os.fsync(self._fd)
            self.message = (
                f"{self.folder / _NAME}: cut {found.torn_bytes} bytes of an unfinished record after line "
                f"{len(found.records)}; no finished trial was lost"
            )


def _append_synced(fd: int, line: bytes, size: int) -> None:
    # A write that failed or was interrupted may have left the start of a line, or a whole one.
    os.ftruncate(fd, size)
    write_all(fd, line)
    os.fsync(fd)


def _open_file(path: Path, *, new: bool) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if new else 0)
    with as_aka_errors(path):
        try:
            return os.open(path, flags, 0o644)
        except FileExistsError:
            raise UsageError(f"{path.parent} holds a run already: resume it, or choose another folder") from None


def _run_of(found: Scan, folder: Path) -> str:
    return found.records[0].run if found.records else folder.name

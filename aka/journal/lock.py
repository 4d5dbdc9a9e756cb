"""One writer for each run: a lock file held by flock, with the holder's process id written in it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from filelock import FileLock, Timeout

from aka.errors import Busy
from aka.journal.files import as_aka_errors

_NAME = "run.lock"
_PATIENCE_S = 0.2
"""`is_held` takes the lock for a moment to see whether it can: a writer that comes just then waits that out."""


class RunLock:
    """Holds `folder`/run.lock from construction until `release` or the end of the process, however it ends."""

    def __init__(self, folder: Path) -> None:
        """Raises Busy, naming the holder; UsageError if the folder cannot be written."""
        path = folder / _NAME
        # Read first: a filelock before version 4 empties the file when it tries.
        holder = _read(path)
        self._lock = FileLock(path, timeout=_PATIENCE_S, thread_local=False)
        with as_aka_errors(path):
            try:
                self._lock.acquire()
            except Timeout:
                raise Busy(f"the run in {folder} is in use by {_name(_read(path) or holder)}") from None
            # In place, never by rename: the lock belongs to this very file.
            path.write_text(f"{os.getpid()}\n", encoding="ascii")

    def release(self) -> None:
        self._lock.release()


def is_held(folder: Path) -> bool:
    """Whether a living process works on the run in `folder`."""
    try:
        fd = os.open(folder / _NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return ""


def _name(pid: str) -> str:
    return f"process {pid}" if pid.isdecimal() else "another process"

"""What Linux's /proc tells about a tree of processes, and how to end one without leaving a survivor."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")
_HAS_CHILDREN_FILES = Path(f"/proc/self/task/{os.getpid()}/children").exists()


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, zombies left out; [] where there is no /proc."""
    found: list[int] = []
    queue = [pid]
    while queue:
        below = _children(queue.pop())
        found += below
        queue += below
    return [p for p in found if is_running(p)]


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def rss_bytes(pid: int) -> int:
    """Resident memory of `pid` and everything below it; pages that forks share are counted for each."""
    return sum(_rss(p) for p in [pid, *descendants(pid)])


def tasks_of_user(uid: int) -> int:
    """Threads that `uid` runs now, as RLIMIT_NPROC counts them."""
    total = 0
    for folder in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == uid:
                total += len(os.listdir(folder / "task"))
    return total


def kill_below(pid: int, *, patience_s: float = 5.0) -> bool:
    """SIGKILL everything below `pid` until nothing is left; False if something outlived the patience.

    Nothing is left when two listings in a row say so: one can miss a process that changes parents meanwhile.
    """
    end = time.monotonic() + patience_s
    empty = 0
    while empty < 2:
        below = descendants(pid)
        empty = 0 if below else empty + 1
        for p in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(p, signal.SIGKILL)
        if below and time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def _children(pid: int) -> list[int]:
    if not _HAS_CHILDREN_FILES:
        return _children_by_scan(pid)
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as f:
                found += map(int, f.read().split())
    return found


def _children_by_scan(parent: int) -> list[int]:
    """For kernels built without CONFIG_PROC_CHILDREN."""
    return [int(f.name) for f in _PROC.glob("[0-9]*") if _stat(int(f.name))[1:2] == [str(parent)]]


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on: state, parent, process group, ..."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _rss(pid: int) -> int:
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0

"""The child's own part in a clean end: dying with the parent, and, where there is no PID namespace, a small guard.

The guard is the process that the parent started; the worker is its child. Whatever the worker leaves behind, even
processes that moved to another session, becomes the guard's own (PR_SET_CHILD_SUBREAPER) and is killed by it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
from typing import NoReturn

from aka.evaluate import proctree

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def split(folder: str) -> None:
    """Fork: the child returns as the worker, the parent stays as its guard and ends with the worker's own code.

    `folder` is the worker's private one: the guard removes it, because the parent may be gone by then.
    """
    starter = os.getppid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: _leave(143, folder))
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != starter:
        sys.exit("aka worker: the parent died during the start")
    worker = os.fork()
    if worker == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    _watch(worker, folder)


def volunteer_for_oom() -> None:
    """When the machine runs out of memory, the kernel shall take this process and not the parent."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as f:
        f.write("1000")


def _watch(worker: int, folder: str) -> NoReturn:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)  # else the guard would keep the pipes of a dead worker open
    while True:
        pid, status = os.wait()
        if pid == worker:
            code = os.waitstatus_to_exitcode(status)
            _leave(code if code >= 0 else 128 - code, folder)


def _leave(code: int, folder: str) -> NoReturn:
    proctree.kill_below(os.getpid())
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(code)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)

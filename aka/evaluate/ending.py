"""How a worker ends: the errors that say so, and the one way to make sure that nothing is left of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Literal

from aka.errors import AkaError, WorkerDied
from aka.evaluate import proctree

Reason = Literal["exit", "signal", "resource_limit", "log_limit"]
_REAP_S = 0.5


class WorkerEnded(WorkerDied):
    """A worker process ended without an answer. `reason` says how; the caller decides whose fault that was."""

    def __init__(self, message: str, *, reason: Reason, returncode: int | None = None, log: str = "") -> None:
        super().__init__(message, returncode=returncode, log=log)
        self.reason: Reason = reason


class WorkerError(AkaError):
    """An op raised inside the worker, which lives on: the exception's class name, its text and 4 kB of its trace."""

    def __init__(self, kind: str, message: str, trace: str = "") -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message, self.trace = kind, message, trace


def describe(role: str, code: int | None, log: str) -> WorkerEnded:
    """The error for a process that ended with `code` as `subprocess` gives it; None: it has not ended."""
    code = _unshelled(code)
    if code is None:
        return WorkerEnded(f"the {role} worker closed its pipe", reason="exit", log=log)
    if code >= 0:
        return WorkerEnded(f"the {role} worker ended with exit code {code}", reason="exit", returncode=code, log=log)
    reason: Reason = "resource_limit" if code == -signal.SIGXCPU else "signal"
    return WorkerEnded(f"the {role} worker ended by signal {-code}", reason=reason, returncode=code, log=log)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill everything below the process and then itself; it gets a moment to reap its own dead first."""
    if process.poll() is None:
        proctree.kill_below(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_S)
        process.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _unshelled(code: int | None) -> int | None:
    """bubblewrap and the guard pass a death by signal N on as exit code 128 + N, as shells do."""
    return 128 - code if code is not None and 128 < code <= 192 else code

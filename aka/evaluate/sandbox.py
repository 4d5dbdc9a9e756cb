"""Starts worker processes behind the best wall that this machine can put up, and says what that wall lacks."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from aka.errors import WorkerStartFailed
from aka.evaluate import bwrap, proctree
from aka.evaluate.process import Worker
from aka.evaluate.rungs import Rung, environment, filter_fd, landlocked, probe

__all__ = ["Limits", "Rung", "launch", "probe", "start"]

GIB = 1 << 30
_ADDRESS_SLACK_BYTES = 8 * GIB  # thread stacks and libtpu's mappings: address space that is never touched


@dataclass(frozen=True)
class Limits:
    """What one worker may use. `cpu_s` and `wall_s` are per call.

    `processes` counts threads too and is raised to 96 + 32 per core where it is lower: libtpu hangs if it gets too few
    (at 30 on 2 cores, not at 40). `tmp_bytes` holds behind bubblewrap only.
    """

    memory_bytes: int = 8 * GIB
    cpu_s: int = 1200
    wall_s: float = 600.0
    processes: int = 160
    file_bytes: int = 64 << 20
    tmp_bytes: int = 256 << 20
    log_bytes: int = 1 << 20


def launch(role: str, limits: Limits, env: Mapping[str, str]) -> Worker:
    """Start one worker; `env` is added to the small clean environment. Call `ready` or `call` on it next.

    Raises WorkerStartFailed if the process cannot be started, BackendUnavailable as `probe`.
    """
    return start(role, limits, env).result()


def start(role: str, limits: Limits, env: Mapping[str, str]) -> Future[Worker]:
    """As `launch`, without waiting."""
    return _launcher().submit(_launch, probe(), role, limits, dict(env))


@functools.cache
def _launcher() -> ThreadPoolExecutor:
    """One thread for all starts, and it stays: "your parent died" is sent when the *thread* that forked ends."""
    return ThreadPoolExecutor(1, "aka-launcher")


def _launch(rung: Rung, role: str, limits: Limits, env: Mapping[str, str]) -> Worker:
    inner = [sys.executable, "-P", "-s", "-m", "aka.evaluate.worker", "--role", role, "--cpu-s", str(limits.cpu_s)]
    inner += ["--rlimits", json.dumps(_rlimits(limits))]
    if rung.name == "bubblewrap":
        with filter_fd() as fd:
            command = bwrap.command(limits.tmp_bytes, inner, fd)
            return _worker(role, limits, _popen(command, environment("/tmp", env), "/", (fd,)), None)
    folder = tempfile.mkdtemp(prefix="aka-worker-")
    inner += ["--guard", folder]
    if rung.name == "landlock":
        inner += ["--landlock", json.dumps(asdict(landlocked(folder)))]
    return _worker(role, limits, _popen(inner, environment(folder, env), folder), Path(folder))


def _worker(role: str, limits: Limits, process: subprocess.Popen[bytes], folder: Path | None) -> Worker:
    return Worker(
        role,
        process,
        memory_bytes=limits.memory_bytes,
        wall_s=limits.wall_s,
        log_bytes=limits.log_bytes,
        folder=folder,
    )


def _popen(command: list[str], env: dict[str, str], cwd: str, fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=cwd, bufsize=0, start_new_session=True,
            pass_fds=fds,
        )  # fmt: skip
    except OSError as e:
        raise WorkerStartFailed(f"{command[0]} cannot be started: {e}") from e


def _rlimits(limits: Limits) -> dict[str, int]:
    cores = os.cpu_count() or 1
    processes = max(limits.processes, 160, 96 + 32 * cores)
    # An ordinary user's own programs count against the same limit.
    others = 0 if os.getuid() == 0 else proctree.tasks_of_user(os.getuid())
    return {
        "RLIMIT_AS": limits.memory_bytes + _ADDRESS_SLACK_BYTES,
        "RLIMIT_NPROC": processes + others,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": 512,
    }

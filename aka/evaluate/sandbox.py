"""Starts worker processes behind the best wall that this machine can put up, and says what that wall lacks."""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from aka.errors import BackendUnavailable, WorkerStartFailed
from aka.evaluate import bwrap, proctree
from aka.evaluate.process import Worker

GIB = 1 << 30
_NAMES = ("bubblewrap", "rlimits")
_ADDRESS_SLACK_BYTES = 8 * GIB  # thread stacks and libtpu's mappings: address space that is never touched
_PROBE_S = 30
# It exits 0 only where the promises hold: own process ids, no network but loopback, not the superuser.
_PROBE = """
import os, aka
links = [line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]]
raise SystemExit(not (os.getpid() < 20 and set(links) <= {"lo"} and os.getuid() != 0))
"""
_APPARMOR = (
    "this system forbids user namespaces to ordinary programs (Ubuntu's AppArmor does); allow them for bwrap with a"
    " profile in /etc/apparmor.d/bwrap that says `profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }`, then"
    " `sudo systemctl reload apparmor`"
)
_HINTS = (
    ("uid map", _APPARMOR),
    ("RTM_NEWADDR", _APPARMOR),
    ("No permissions to creat", _APPARMOR),
    ("Creating new namespace failed", "this container forbids namespaces (Docker: --security-opt seccomp=unconfined)"),
    ("mount proc", "bubblewrap cannot run inside another sandbox that hides parts of /proc"),
    ("--size", "bubblewrap 0.7 or newer is needed"),
    ("Permission denied", "the interpreter or the aka package is not readable for other users"),
)


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


@dataclass(frozen=True)
class Rung:
    """A way to isolate that was seen to work here. `lost` lists what the wall does not stop."""

    name: str
    lost: tuple[str, ...]
    note: str


_RUNGS = {
    "bubblewrap": Rung("bubblewrap", (), "namespaces, read-only root, no network; the kernel is shared"),
    "rlimits": Rung(
        "rlimits",
        ("files", "network", "other processes and their environment", "size of temporary files"),
        "only a clean environment and resource limits: run nothing here that you would not run yourself",
    ),
}


def probe() -> Rung:
    """The best rung that ran here, or the one that AKA_SANDBOX names. BackendUnavailable if that one cannot run."""
    forced = os.environ.get("AKA_SANDBOX", "").replace("auto", "")
    if forced not in ("", *_NAMES):
        raise BackendUnavailable(f"AKA_SANDBOX={forced} is unknown; choose one of {', '.join(_NAMES)}")
    complaint = _complaint() if forced != "rlimits" else "AKA_SANDBOX asks for it"
    if not complaint:
        return _RUNGS["bubblewrap"]
    if forced == "bubblewrap":
        raise BackendUnavailable(f"bubblewrap cannot isolate here: {complaint}")
    _warn(complaint)
    return Rung("rlimits", _RUNGS["rlimits"].lost, f"{_RUNGS['rlimits'].note} ({complaint})")


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
    folder = None
    if rung.name == "bubblewrap":
        process = _popen(bwrap.command(limits.tmp_bytes, inner), _environment("/tmp", env), "/")
    else:
        folder = Path(tempfile.mkdtemp(prefix="aka-worker-"))
        process = _popen([*inner, "--guard", str(folder)], _environment(str(folder), env), str(folder))
    return Worker(
        role,
        process,
        memory_bytes=limits.memory_bytes,
        wall_s=limits.wall_s,
        log_bytes=limits.log_bytes,
        folder=folder,
    )


def _popen(command: list[str], env: dict[str, str], cwd: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=cwd, bufsize=0, start_new_session=True
        )
    except OSError as e:
        raise WorkerStartFailed(f"{command[0]} cannot be started: {e}") from e


def _environment(home: str, extra: Mapping[str, str]) -> dict[str, str]:
    """All that a worker inherits: nothing of ours passes but what is written here. "{tmp}" in a value of `extra` stands
    for the worker's private temporary folder."""
    fixed = {"PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "JAX_PLATFORMS": "cpu"}
    # The NumPy machine makes many small products, which OpenBLAS's threads only slow down (10 s against 1 s, measured).
    fixed["OPENBLAS_NUM_THREADS"] = "1"
    python = {
        "PYTHONPATH": os.pathsep.join(bwrap.import_path()),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return {**fixed, **python, **{name: value.replace("{tmp}", home) for name, value in extra.items()}}


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


@functools.cache
def _complaint() -> str:
    """Why bubblewrap does not work here, "" if it does; found out by running it once per process."""
    if not shutil.which("bwrap"):
        return "bwrap is not installed (apt install bubblewrap)"
    command = bwrap.command(1 << 20, [sys.executable, "-P", "-s", "-c", _PROBE])
    try:
        done = subprocess.run(
            command, env=_environment("/tmp", {}), capture_output=True, timeout=_PROBE_S, cwd="/", check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return str(e)
    if done.returncode == 0:
        return ""
    text = done.stderr.decode(errors="replace").strip() or "it ran, but did not isolate"
    hint = next((fix for sign, fix in _HINTS if sign in text), "")
    return f"{text[-300:]}{': ' if hint else ''}{hint}"


@functools.cache
def _warn(complaint: str) -> None:
    logging.getLogger("aka.sandbox").warning("NOT SANDBOXED: %s (%s)", _RUNGS["rlimits"].note, complaint)

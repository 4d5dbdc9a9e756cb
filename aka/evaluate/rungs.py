"""The ladder of sandboxes: which walls stand on this machine, found out by running each, and what each lacks.

bubblewrap, then landlock. Below them is `rlimits`, which is no wall: it is used only where it is named, by
AKA_SANDBOX=rlimits, by the setting `sandbox = "rlimits"`, or, where no wall stands, by --unsafe-no-sandbox.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from aka.errors import BackendUnavailable
from aka.evaluate import bwrap, landlock, seccomp
from aka.evaluate.landlock import Wall

WALLS = ("bubblewrap", "landlock")
NO_WALL = "rlimits"
_PROBE_S = 30
# Each exits 0 only where the promises hold. Behind bubblewrap: own process ids, no network but loopback, not the
# superuser, the filter of system calls.
_BEHIND_BUBBLEWRAP = """
import os, socket, aka
links = [line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]]
try:
    socket.socket()
except PermissionError:
    raise SystemExit(not (os.getpid() < 20 and set(links) <= {"lo"} and os.getuid() != 0))
raise SystemExit(1)
"""
# Behind Landlock: nothing of the parent, no file outside, no socket, and the private folder still works.
_BEHIND_LANDLOCK = """
import json, os, socket, sys
from aka.evaluate.landlock import Wall, enter
wall = Wall(**json.loads(sys.argv[1]))
enter(wall)
parent = os.getppid()
outside = (
    lambda: open(f"/proc/{parent}/environ").close(), lambda: os.listdir("/"), lambda: os.kill(parent, 0),
    lambda: open("/etc/passwd").close(), lambda: open(f"{wall.read[0]}/planted", "w").close(), socket.socket,
)
held = 0
for reach in outside:
    try:
        reach()
    except PermissionError:
        held += 1
open(f"{wall.folder}/own", "w").close()
import aka.types
raise SystemExit(held != len(outside) or os.getuid() == 0)
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
class Rung:
    """A way to isolate that was seen to work here. `lost` lists what the wall does not stop."""

    name: str
    lost: tuple[str, ...]
    note: str


def probe() -> Rung:
    """The best wall that ran here, or the rung that AKA_SANDBOX names.

    Raises BackendUnavailable if that one cannot run, or if no wall can and `rlimits` was not named.
    """
    named = os.environ.get("AKA_SANDBOX", "").replace("auto", "")
    if named not in ("", *WALLS, NO_WALL):
        raise BackendUnavailable(f"AKA_SANDBOX={named} is unknown; choose one of {', '.join((*WALLS, NO_WALL))}")
    if named == NO_WALL:
        _warn(f"NOT SANDBOXED: {rung(NO_WALL).note}")
        return rung(NO_WALL)
    if named:
        if why := complaint(named):
            raise BackendUnavailable(f"{named} cannot isolate here: {why}")
        return rung(named)
    if (found := best()) is None:
        whys = "; ".join(f"{name}: {complaint(name)}" for name in WALLS)
        raise BackendUnavailable(
            f"no sandbox works here, so foreign code is not run ({whys}); to run it without one, which only code that"
            " you would run yourself deserves, give --unsafe-no-sandbox or set AKA_SANDBOX=rlimits"
        )
    if found != WALLS[0]:
        _warn(f"the sandbox is {found}: {complaint(WALLS[0])}")
    return rung(found)


def best() -> str | None:
    """The highest wall that stands here, or None."""
    return next((name for name in WALLS if not complaint(name)), None)


def rung(name: str) -> Rung:
    """What a rung is and what it lacks, whether or not it works here."""
    if name == "bubblewrap":
        return Rung(name, (), "namespaces, read-only root, no network, fewer system calls; the kernel is shared")
    if name == "landlock":
        lost = landlock.lost(os.getuid() == 0)
        return Rung(name, lost, "no files, sockets or signals but its own, fewer system calls; the kernel is shared")
    return Rung(
        NO_WALL,
        ("files", "network", "other processes and their environment", "size of temporary files"),
        "only a clean environment and resource limits: run nothing here that you would not run yourself",
    )


@functools.cache
def complaint(name: str) -> str:
    """Why the wall of that name does not stand here, "" if it does; found out by running it once per process."""
    try:
        with _try_bubblewrap() if name == "bubblewrap" else _try_landlock() as (command, environment, fds):
            done = subprocess.run(
                command, env=environment, capture_output=True, timeout=_PROBE_S, cwd="/", check=False, pass_fds=fds
            )
    except (OSError, subprocess.TimeoutExpired, BackendUnavailable) as e:
        return str(e)
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it ran, but did not isolate"]
    text = lines[-1] if name == "landlock" else "\n".join(lines)
    hint = next((fix for sign, fix in _HINTS if sign in text), "")
    return f"{text[-300:]}{': ' if hint else ''}{hint}"


Trial = tuple[list[str], dict[str, str], tuple[int, ...]]


@contextlib.contextmanager
def _try_bubblewrap() -> Iterator[Trial]:
    if not shutil.which("bwrap"):
        raise BackendUnavailable("bwrap is not installed (apt install bubblewrap)")
    inner = [sys.executable, "-P", "-s", "-c", _BEHIND_BUBBLEWRAP]
    with filter_fd() as fd:
        yield bwrap.command(1 << 20, inner, fd), environment("/tmp", {}), (fd,)


@contextlib.contextmanager
def _try_landlock() -> Iterator[Trial]:
    with tempfile.TemporaryDirectory(prefix="aka-probe-", ignore_cleanup_errors=True) as folder:
        wall = json.dumps(asdict(landlocked(folder)))
        yield [sys.executable, "-P", "-s", "-c", _BEHIND_LANDLOCK, wall], environment(folder, {}), ()


def landlocked(folder: str) -> Wall:
    """The wall for a worker whose private folder this is; as root, the folder is handed to the uid that it will have.

    Raises BackendUnavailable where the kernel has no such walls.
    """
    landlock.checked_abi()
    read = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", *map(str, bwrap.roots()))
    if os.getuid() != 0:
        return Wall(read, folder)
    uid = bwrap.spare_uid()
    os.chown(folder, uid, uid)
    return Wall(read, folder, uid)


@contextlib.contextmanager
def filter_fd() -> Iterator[int]:
    """A file with the filter of system calls for bubblewrap, which reads it to its end."""
    fd = os.memfd_create("aka-seccomp")
    try:
        os.write(fd, seccomp.program(alone=True))
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def environment(home: str, extra: Mapping[str, str]) -> dict[str, str]:
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


@functools.cache
def _warn(message: str) -> None:
    logging.getLogger("aka.sandbox").warning("%s", message)

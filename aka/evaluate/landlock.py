"""A wall that a process puts up around itself, where bubblewrap cannot run: Landlock, and a filter of system calls.

Landlock (landlock(7)) takes files, TCP, signals and other processes' innards away from the process and all that it
starts, and needs no rights to do so. ABI 3 (Linux 6.2) is the least that is taken: before it, files could be emptied
through paths that were given for reading. Constants and structures: linux/landlock.h, linux/prctl.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from aka.errors import BackendUnavailable, WorkerStartFailed
from aka.evaluate import seccomp

LEAST_ABI = 3
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on x86_64 and aarch64
_QUERY_ABI, _PATH_BENEATH = 1, 1
_EXECUTE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 2, 1 << 3
_WRITE_FILE, _TRUNCATE, _IOCTL = 1 << 1, 1 << 14, 1 << 15
_MAKE_DEVICES = 1 << 6 | 1 << 11  # of characters, of blocks
_READ = _EXECUTE | _READ_FILE | _READ_FOLDER
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE  # all that a rule for a single file may hold
_TCP_ABI, _IOCTL_ABI, _SCOPE_ABI = 4, 5, 6
_ALL_TCP, _ALL_SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals
_NO_NEW_PRIVS, _PDEATHSIG, _KEEP_CAPS = 38, 1, 8
_CAPABILITY_VERSION = 0x20080522
_READ_ANYTHING = 1 << 2  # CAP_DAC_READ_SEARCH

# What libc, libtpu and XLA ask the kernel about the machine, and the devices that are no devices.
_SYSTEM = ("/sys/devices/system/cpu", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/etc/ld.so.cache")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_pins: list[int] = []


@dataclass(frozen=True)
class Wall:
    """`read`: folders that may be read and run; `folder`: the one that may be written; `uid`: whom to become."""

    read: tuple[str, ...]
    folder: str
    uid: int | None = None


def abi() -> int:
    """Landlock's version in this kernel; 0 where there is none or it is switched off."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(_CREATE_RULESET, None, 0, _QUERY_ABI)))


def checked_abi() -> int:
    """The version, if it will do. Raises BackendUnavailable."""
    version = abi()
    if version < LEAST_ABI:
        have = f"this kernel has ABI {version}" if version else "this kernel has none, or it is switched off"
        raise BackendUnavailable(f"Landlock ABI {LEAST_ABI} (Linux 6.2) is needed; {have}")
    return version


def lost(as_root: bool) -> tuple[str, ...]:
    """What this wall does not stop here."""
    found = ["names, sizes and owners of files", "ids of other processes", "tables of mounts and connections"]
    found.append("size of temporary files")
    if not as_root:
        found.append("the number of processes is counted with your own")
    return tuple(found)


def enter(wall: Wall) -> None:
    """Go behind the wall: this thread, and all that it starts from now on. Call it before there is another thread.

    Raises BackendUnavailable where the kernel cannot do it, WorkerStartFailed if it refuses a part.
    """
    version = checked_abi()
    if wall.uid is not None:
        _become(wall.uid)
    _prctl(_NO_NEW_PRIVS, 1)
    _restrict(wall, version)
    # Below ABI 6 signals are not Landlock's business: then the filter lets them go to this process only.
    seccomp.install(seccomp.program(alone=False, pid=os.getpid() if version < _SCOPE_ABI else None))


def _become(uid: int) -> None:
    """Drop every right of the superuser but to read: the interpreter may lie in a folder of root's own.

    What may be read is up to Landlock then. A change of user cancels the signal at the parent's death.
    """
    _prctl(_KEEP_CAPS, 1)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    sets = struct.pack("=6I", _READ_ANYTHING, _READ_ANYTHING, 0, 0, 0, 0)
    _checked("capset", ctypes.CDLL(None, use_errno=True).capset(header, sets))
    _prctl(_PDEATHSIG, signal.SIGKILL)


def _restrict(wall: Wall, version: int) -> None:
    known = (1 << (16 if version >= _IOCTL_ABI else 15)) - 1
    tcp = _ALL_TCP if version >= _TCP_ABI else 0
    scopes = _ALL_SCOPES if version >= _SCOPE_ABI else 0
    attributes = struct.pack("=3Q", known, tcp, scopes)[: 24 if scopes else 16 if tcp else 8]
    rules = _syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for path in (*wall.read, *_SYSTEM):
            _allow(rules, path, _READ)
        for device in _DEVICES:
            _allow(rules, device, _READ_FILE | _WRITE_FILE)
        _allow(rules, wall.folder, known & ~(_EXECUTE | _MAKE_DEVICES | _IOCTL))
        # The rule holds for the folder's inode, which lives as long as somebody keeps it open.
        _pins.append(os.open("/proc/self/", os.O_PATH | os.O_CLOEXEC))
        _allow(rules, "/proc/self/", _READ_FILE | _READ_FOLDER)
        _syscall(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    """A path that this machine lacks needs no rule."""
    with contextlib.suppress(FileNotFoundError):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            granted = rights if Path(path).is_dir() else rights & _ON_FILES
            _syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", granted, place), 0)
        finally:
            os.close(place)


def _syscall(number: int, *values: bytes | int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    whole = [value if isinstance(value, bytes) else ctypes.c_long(value) for value in values]
    return _checked(f"Landlock (call {number})", libc.syscall(ctypes.c_long(number), *whole))


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(f"prctl {option}", libc.prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))))


def _checked(what: str, result: int) -> int:
    if result < 0:
        raise WorkerStartFailed(f"the kernel refuses {what}: {os.strerror(ctypes.get_errno())}")
    return result

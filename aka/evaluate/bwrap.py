"""The bubblewrap command line: what a worker can see of this machine.

Namespaces for user (or a spare uid when we are root), IPC, PID, net, UTS and cgroup; a root file system that holds
/usr, the interpreter, its site-packages and this package, all read-only and at their own paths; private sized memory
file systems for /tmp and /dev/shm. Measured with bubblewrap 0.8.0; `--size` needs 0.7 or newer.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import aka

# 61001-61183 is left free by Debian (to 59999), systemd's homed (to 60513) and its dynamic users (from 61184).
_UIDS = range(61001, 61184)
_uid_of_next = itertools.count(os.getpid())
_SHM_BYTES = 64 << 20


def command(tmp_bytes: int, inner: list[str], filter_fd: int) -> list[str]:
    """`inner` wrapped in bubblewrap, for this user; `filter_fd` holds the seccomp program and must be passed on. The
    caller gives the environment and the resource limits."""
    base = [
        shutil.which("bwrap") or "bwrap",
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
        "--unshare-cgroup-try",
    ]
    base += ["--hostname", "aka", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    base += ["--seccomp", str(filter_fd)]
    uid = str(spare_uid())
    if os.getuid() != 0:
        return [*base, "--unshare-user", "--uid", uid, "--gid", uid, *_file_system(tmp_bytes), "--", *inner]
    caps = [word for cap in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP") for word in ("--cap-add", cap)]
    drop = ["/usr/bin/setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--no-new-privs"]
    drop += ["--bounding-set=-all", "--inh-caps=-all"]
    return [*base, *caps, *_file_system(tmp_bytes), "--", *drop, *inner]


def spare_uid() -> int:
    """Each worker of ours has a uid of its own, because the kernel counts processes (RLIMIT_NPROC) per uid."""
    return _UIDS[next(_uid_of_next) % len(_UIDS)]


def import_path() -> list[str]:
    """What a worker needs on PYTHONPATH: the folder that holds `aka`, and the site-packages in use here."""
    sites = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages") and Path(p).is_dir()]
    return list(dict.fromkeys([str(_package().parent), *sites]))


def _package() -> Path:
    return Path(aka.__file__).absolute().parent


def _file_system(tmp_bytes: int) -> list[str]:
    args = ["--ro-bind", "/usr", "/usr", *_system_links(), "--perms", "0755", "--dir", "/etc"]
    args += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--proc", "/proc", "--dev", "/dev"]
    for size, folder in ((tmp_bytes, "/tmp"), (_SHM_BYTES, "/dev/shm")):
        args += ["--perms", "1777", "--size", str(size), "--tmpfs", folder]
    made = {Path("/etc"), Path("/usr"), Path("/tmp"), Path("/")}
    # libtpu counts the processors there and aborts if it cannot
    for path in [Path("/sys/devices/system/cpu"), *roots()]:
        args += _parents(path, made)
        args += ["--ro-bind", str(path), str(path)]
    # Both are memory file systems without a size: nobody may fill them.
    return [*args, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]


def _system_links() -> Iterator[str]:
    """/bin, /lib and so on: links into /usr on merged systems, real folders on others."""
    for path in map(Path, ("/bin", "/sbin", "/lib", "/lib32", "/lib64")):
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))


def roots() -> list[Path]:
    """Folders that a worker reads besides /usr: outermost first, none below another, each also under its real path."""
    wanted = {Path(p).absolute() for p in (sys.base_prefix, sys.prefix, *import_path()[1:])} | {_package()}
    wanted |= {path.resolve() for path in wanted}
    kept = [Path("/usr")]
    for path in sorted(wanted, key=lambda p: len(p.parts)):
        if not any(path.is_relative_to(k) for k in kept):
            kept.append(path)
    return kept[1:]


def _parents(path: Path, made: set[Path]) -> list[str]:
    """Folders above a mount point, open to every uid (bubblewrap would make them 0700)."""
    args = []
    for folder in reversed(path.parents):
        if folder not in made:
            made.add(folder)
            args += ["--perms", "0755", "--dir", str(folder)]
    return args

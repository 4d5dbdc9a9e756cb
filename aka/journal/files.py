"""Durable writes: everything here is on the disk when it returns, or raises and leaves the old state."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from aka.errors import NoSpace, UsageError

RESERVE_BYTES = 16 * 2**20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def is_full(error: OSError) -> bool:
    """Whether the disk, or the user's share of it, is used up."""
    return error.errno in _FULL


@contextlib.contextmanager
def as_aka_errors(path: Path) -> Iterator[None]:
    """Turns a full disk into NoSpace, and a folder that cannot be written into UsageError."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise NoSpace(f"no space left to write {path}") from error
        if error.errno in _DENIED:
            raise UsageError(f"cannot write {path}: {os.strerror(error.errno or 0)}") from error
        raise


def write_all(fd: int, data: bytes) -> None:
    """Write every byte: a nearly full disk takes a part and says so only on the next call."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable (a rename or a new file is not, until then)."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, durably: a reader, or a crash, sees the old content or the new.

    Raises NoSpace (the old content stays) or UsageError for a folder that cannot be written.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with as_aka_errors(path):
        try:
            _write_synced(aside, data)
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def _write_synced(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def take_reserve(path: Path) -> None:
    """Set aside RESERVE_BYTES of real blocks, to be given back when the disk is full. Raises NoSpace."""
    with as_aka_errors(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _allocate(fd)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)


def _allocate(fd: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, RESERVE_BYTES)
    else:  # macOS: only written bytes take space
        write_all(fd, bytes(RESERVE_BYTES))
    os.fsync(fd)


def give_reserve_back(path: Path) -> bool:
    """Free the reserve; False if it was given back before."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    sync_folder(path.parent)
    return True

"""How a build touches the disk: one writer, a folder aside, one commit, and errors that a user can act on."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aka.errors import Busy, KnowledgeError, NoSpace
from aka.kb.cache import Progress
from aka.kb.manifest import Manifest, write_manifest

if TYPE_CHECKING:
    from filelock import BaseFileLock

ASIDE = ".building-"
GENERATION = "gen-"


@contextmanager
def writer_lock(index: Path, timeout_s: float, progress: Progress) -> Iterator[None]:
    """Holds the folder's writer lock. Raises Busy after `timeout_s` seconds."""
    from filelock import FileLock, Timeout

    with disk_errors(index):
        index.mkdir(parents=True, exist_ok=True)
        lock = FileLock(index / ".lock")
        try:
            _acquire(lock, timeout_s, progress)
        except Timeout as error:
            raise Busy(f"another process has been building {index} for {timeout_s:g} s") from error
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: BaseFileLock, timeout_s: float, progress: Progress) -> None:
    from filelock import Timeout

    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress("wait for another build", 0, 1)
        lock.acquire(timeout=timeout_s)


@contextmanager
def disk_errors(index: Path) -> Iterator[None]:
    """A full disk as NoSpace, a folder that cannot be written as KnowledgeError."""
    try:
        yield
    except PermissionError as error:
        raise KnowledgeError(f"cannot write the index: {error.strerror}: {error.filename or index}") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise NoSpace(f"no space left for the index in {index}") from error
    except sqlite3.OperationalError as error:
        if "disk is full" not in str(error):
            raise
        raise NoSpace(f"no space left for the index in {index}") from error


@contextmanager
def folder_aside(index: Path) -> Iterator[Path]:
    """A temporary sibling of the generations, gone on leaving unless committed. Sweeps up after crashed builds."""
    for left in index.glob(f"{ASIDE}*"):
        shutil.rmtree(left, ignore_errors=True)
    folder = index / f"{ASIDE}{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def commit(index: Path, folder: Path, manifest: Manifest, previous: Manifest | None) -> None:
    """Makes `folder` the current generation. Keeps the previous one, which a reader may have open; drops the rest."""
    os.rename(folder, index / manifest.generation)
    write_manifest(index, manifest)
    kept = {manifest.generation, previous.generation if previous else ""}
    for generation in index.glob(f"{GENERATION}*"):
        if generation.name not in kept:
            shutil.rmtree(generation, ignore_errors=True)

"""Crashes, real ones: killed writers, two writers at once, a full disk, a read-only disk."""

from __future__ import annotations

import errno
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aka.errors import Busy, NoSpace, UsageError
from aka.journal import BlobStore, JsonlJournal, write_atomically

# Prints the number of each record after `append` returned: from then on the record must survive.
_WRITER = """
import sys, pathlib
from aka.journal import JsonlJournal
folder = pathlib.Path(sys.argv[1])
journal = JsonlJournal.resume(folder) if (folder / "journal.jsonl").exists() else JsonlJournal.create(folder, "r1")
while True:
    print(journal.append("tick", {"text": "x" * 40_000}).seq, flush=True)
"""
# Goes on after each interrupt, wherever in `append` it strikes; one that comes between two appends only counts.
_INTERRUPTED = """
import sys, pathlib, signal
from aka.journal import JsonlJournal
journal = JsonlJournal.create(pathlib.Path(sys.argv[1]), "r1")
armed = False
def strike(*_):
    if armed:
        raise KeyboardInterrupt
    print("caught", len(journal.events()), flush=True)
signal.signal(signal.SIGINT, strike)
print("caught", flush=True)
while len(journal.events()) < 3000:
    try:
        armed = True
        while len(journal.events()) < 3000:
            journal.append("tick", {"text": "x" * 20_000})
    except KeyboardInterrupt:
        armed = False
        print("caught", len(journal.events()), flush=True)
"""
_HOLDER = """
import sys, pathlib
from aka.journal import JsonlJournal
journal = JsonlJournal.create(pathlib.Path(sys.argv[1]), "r1")
print("held", flush=True)
sys.stdin.read()
"""


def _start(code: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_sigkill_at_any_moment_loses_no_acknowledged_record(tmp_path: Path) -> None:
    chance = random.Random(0)
    acknowledged = -1
    for _ in range(20):
        with _start(_WRITER, tmp_path / "run") as writer:
            assert writer.stdout is not None
            acknowledged = int(writer.stdout.readline())
            time.sleep(chance.uniform(0, 0.03))
            writer.kill()
            acknowledged = int((writer.stdout.read().split() or [acknowledged])[-1])
        assert writer.returncode == -signal.SIGKILL
        events = JsonlJournal.read(tmp_path / "run").events()
        assert [event.seq for event in events] == list(range(len(events)))
        assert len(events) > acknowledged
        assert all(event.data == {"text": "x" * 40_000} for event in events)
    assert acknowledged > 20


def _interrupt(writer: subprocess.Popen[str]) -> None:
    """SIGINT, and again on silence: Python drops an interrupt that strikes in a finalizer."""
    assert writer.stdout is not None
    for _ in range(5):
        writer.send_signal(signal.SIGINT)
        if select.select([writer.stdout], [], [], 5)[0]:
            return
    writer.kill()


def test_an_interrupt_in_an_append_leaves_the_journal_whole(tmp_path: Path) -> None:
    chance = random.Random(1)
    with _start(_INTERRUPTED, tmp_path / "run") as writer:
        assert writer.stdout is not None
        for _ in range(60):
            kept = writer.stdout.readline().split()
            assert kept[0] == "caught"
            time.sleep(chance.uniform(0.003, 0.04))
            _interrupt(writer)
        kept = writer.stdout.readline().split()
        writer.kill()
    assert len(JsonlJournal.read(tmp_path / "run").events()) >= int(kept[1]) > 0


def test_a_second_process_is_told_who_holds_the_run(tmp_path: Path) -> None:
    with _start(_HOLDER, tmp_path / "run") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Busy, match=rf"process {holder.pid}\b"):
            JsonlJournal.resume(tmp_path / "run")
        assert JsonlJournal.read(tmp_path / "run").events() == []
        holder.kill()
    with JsonlJournal.resume(tmp_path / "run") as journal:
        assert (tmp_path / "run" / "run.lock").read_text().strip() == str(os.getpid())
        assert journal.append("tick", {}).seq == 0


def _fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(bytes(2**16)):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC


def test_a_full_disk_still_takes_the_last_records(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(18)
    folder = disk / "run"
    journal = JsonlJournal.create(folder, "r1")
    best = disk / "best.py"
    write_atomically(best, b"good kernel")
    count = 0
    with pytest.raises(NoSpace, match="saved in the reserve"):
        while True:
            count += 1
            journal.append("tick", {"text": "x" * 50_000})
    journal.append("finished", {"why": "no space"})
    assert len(JsonlJournal.read(folder).events()) == count + 1
    _fill(disk)
    with pytest.raises(NoSpace, match="not saved"):
        journal.append("tick", {"text": "x" * 60_000})
    for write in (lambda: write_atomically(best, b"x" * 2**20), lambda: BlobStore(folder).put(b"y" * 2**20)):
        with pytest.raises(NoSpace):
            write()
    assert best.read_bytes() == b"good kernel"
    assert [path.name for path in disk.iterdir() if path.name.endswith(".tmp")] == []
    journal.close()
    assert JsonlJournal.read(folder).events()[count].type == "finished"


def test_too_small_a_disk_is_refused_at_the_start(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(8)
    with pytest.raises(NoSpace):
        JsonlJournal.create(disk / "run", "r1")


def test_a_read_only_folder_is_refused_at_the_start(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(40)
    with JsonlJournal.create(disk / "old", "r1") as journal:
        journal.append("tick", {})
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(UsageError, match="cannot write"):
        JsonlJournal.create(disk / "new", "r2")
    with pytest.raises(UsageError, match="cannot write"):
        JsonlJournal.resume(disk / "old")
    assert len(JsonlJournal.read(disk / "old").events()) == 1
    with pytest.raises(UsageError, match="cannot write"):
        write_atomically(disk / "best.py", b"")

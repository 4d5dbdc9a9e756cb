"""Reads a journal file: the good records, and where a torn tail begins. It never writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aka.errors import JournalCorrupt, UsageError
from aka.journal.record import BadRecord, Record, from_line


@dataclass(frozen=True)
class Scan:
    """`good_bytes` is the length of the whole records; `torn_bytes` follow them and were never acknowledged."""

    records: tuple[Record, ...]
    good_bytes: int
    torn_bytes: int


def scan(path: Path) -> Scan:
    """Raises JournalCorrupt naming the line that is damaged, out of order, of another run or of a later version."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"no run there: {path} does not exist") from None
    except IsADirectoryError:
        raise UsageError(f"not a journal but a folder: {path}") from None
    good = _whole_lines(content)
    lines = good.split(b"\n")[:-1]
    records = tuple(_read(path, number, line + b"\n") for number, line in enumerate(lines, start=1))
    for number, record in enumerate(records, start=1):
        _check_place(path, number, record, records[0].run)
    return Scan(records, len(good), len(content) - len(good))


def _whole_lines(content: bytes) -> bytes:
    good = content[: content.rfind(b"\n") + 1]
    last = good.rfind(b"\n", 0, -1) + 1
    # A power cut can leave a hole of zeros in the one record that was not yet synced; a written line has none.
    return good[:last] if b"\0" in good[last:] else good


def _read(path: Path, number: int, line: bytes) -> Record:
    try:
        return from_line(line)
    except BadRecord as error:
        raise JournalCorrupt(f"{path}, line {number}: {error}; the file was left as it is") from error


def _check_place(path: Path, number: int, record: Record, run: str) -> None:
    if record.seq != number - 1:
        raise JournalCorrupt(
            f"{path}, line {number}: record {record.seq} stands where {number - 1} belongs; the file was left as it is"
        )
    if record.run != run:
        raise JournalCorrupt(f"{path}, line {number}: a record of run {record.run!r}, not {run!r}")

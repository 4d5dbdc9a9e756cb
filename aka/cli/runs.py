"""`aka runs`: the runs of the output folder in a table, and two of them side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aka.errors import AkaError, UsageError

if TYPE_CHECKING:
    from aka.report import Facts, Summary

app = typer.Typer(
    invoke_without_command=True,
    help="List the runs of the output folder, newest first. Exit code 1 if there is none.",
    epilog="Example:  aka runs --op softmax --status improved",
)
UNREADABLE = "unreadable"
_COLUMNS = ("run", "op", "chip", "status", "XLA", "best", "speedup", "trials", "begun", "stopped because")
_NARROW_COLUMNS = ("run", "chip", "status", "best", "speedup", "trials", "op")
_WIDE_COLUMNS = 110


@dataclass(frozen=True)
class Unreadable:
    """A folder that is no run, or only half of one: `reason` is one line."""

    run: str
    reason: str


@app.callback()
def runs(
    context: typer.Context,
    op: Annotated[str | None, typer.Option(help="Only ops whose name or file holds this text.")] = None,
    chip: Annotated[str | None, typer.Option(help="Only runs for this chip.")] = None,
    status: Annotated[
        str | None, typer.Option(help="improved, no_improvement, running, interrupted, crashed or unreadable.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder of the runs (default: the setting `out`).")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a run.")] = False,
) -> None:
    from aka.cli import console
    from aka.config import load_settings
    from aka.report import STATUSES

    if context.invoked_subcommand is not None:
        if op or chip or status or folder or json_:
            raise UsageError(f"options of the list don't go with {context.invoked_subcommand}: put its own behind it")
        return
    if status not in (None, UNREADABLE, *STATUSES):
        raise UsageError(f"--status {status!r}: choose one of {', '.join((*STATUSES, UNREADABLE))}")
    root = folder or Path(load_settings({"chip": chip}).out)
    wanted = [row for row in _rows(root, op) if _fits(row, op, chip, status)]
    if json_:
        console.answer_json([_json(row) for row in wanted])
    elif wanted:
        _table(wanted)
    if not wanted:
        console.note(f"no runs in {root}" + (" that fit" if op or chip or status else ""))
        raise typer.Exit(1)


@app.command()
def diff(
    a: Annotated[str, typer.Argument(help="A run: its id, the start of one, its folder, or 'last'.")],
    b: Annotated[str, typer.Argument(help="Another.")],
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Two runs side by side: settings that differ, times, gates that rejected trials, families tried, and the diff of
    their best kernels (without the header of best.py). Exit code 0 whether they differ or not.

    Example: aka runs diff 20261130-2137 last
    """
    from aka.cli import compose, console, side_by_side
    from aka.journal import JsonlJournal
    from aka.report import compare

    facts, rows, codes = [], [], []
    for folder in (compose.run_folder(a), compose.run_folder(b)):
        found, row = _read(folder)
        code = found.best_code
        facts.append(found)
        rows.append(row)
        codes.append(JsonlJournal.read(folder).blobs.get(code).decode() if code else None)
    found_both = compare(facts[0], facts[1], (rows[0], rows[1]), (codes[0], codes[1]))
    if json_:
        console.answer_json(asdict(found_both))
    else:
        side_by_side.show(found_both)


def _rows(root: Path, op: str | None) -> Iterator[Summary | Unreadable]:
    """Newest first; what cannot be read comes last."""
    from aka.journal import run_folders

    readable: list[tuple[float, Summary]] = []
    others: list[Unreadable] = []
    for folder in run_folders(root):
        try:
            facts, row = _read(folder)
        except (AkaError, OSError) as error:
            others.append(Unreadable(folder.name, str(error)))
            continue
        if op is None or op.lower() in f"{row.op} {facts.op_path}".lower():
            readable.append((facts.begun_at, row))
    yield from (row for _, row in sorted(readable, key=lambda found: (found[0], found[1].run), reverse=True))
    yield from others


def _read(folder: Path) -> tuple[Facts, Summary]:
    """Raises UsageError or JournalCorrupt, or OSError for a journal that may not be read."""
    from aka.journal import JsonlJournal, is_held
    from aka.report import gather, summarise

    facts = gather(JsonlJournal.read(folder).events())
    return facts, summarise(facts, folder.name, running=is_held(folder))


def _fits(row: Summary | Unreadable, op: str | None, chip: str | None, status: str | None) -> bool:
    if isinstance(row, Unreadable):
        return status in (None, UNREADABLE) and not op and not chip
    return chip in (None, row.chip) and status in (None, row.status)


def _json(row: Summary | Unreadable) -> dict[str, Any]:
    return asdict(row) if not isinstance(row, Unreadable) else {"status": UNREADABLE, **asdict(row)}


def _table(rows: list[Summary | Unreadable]) -> None:
    """The runs in a table, and below it a line for each folder that could not be read."""
    from aka.cli import console, tables

    wide = tables.columns() >= _WIDE_COLUMNS
    cells = [_cells(row) for row in rows if not isinstance(row, Unreadable)]
    # The last column gives way where the terminal is narrow.
    names = _COLUMNS if wide else _NARROW_COLUMNS
    if cells:
        table = tables.plain(*names)
        for found in cells:
            tables.add(table, *(found[name] for name in names))
        tables.show(table)
    others = [row for row in rows if isinstance(row, Unreadable)]
    if others:
        console.answer("\n".join(console.one_line(f"{row.run}: {UNREADABLE}: {row.reason}") for row in others))


def _cells(row: Summary) -> dict[str, str]:
    from aka.report import words

    times = (words.us(row.baseline_us), words.us(row.best_us), words.times(row.speedup))
    begun = words.ago(row.begun)
    values = (row.run, row.op, row.chip, row.status, *times, str(row.trials), begun, row.stop_reason)
    return dict(zip(_COLUMNS, values, strict=True))

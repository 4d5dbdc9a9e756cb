"""Tables for people, on stdout: as wide as the terminal, or as wide as they need where stdout is a file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from aka.cli import console

if TYPE_CHECKING:
    from rich.table import Table

_FILE_COLUMNS = 400


def plain(*names: str) -> Table:
    """A table without lines. Where it is too wide for the terminal, the last column gives way first."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names[:-1]:
        table.add_column(name, no_wrap=True)
    table.add_column(names[-1])
    return table


def columns() -> int:
    """How wide a table may be."""
    return console.out().width if sys.stdout.isatty() else _FILE_COLUMNS


def add(table: Table, *cells: str) -> None:
    """A row of foreign text, shown as it is on one line: no markup, no escapes."""
    from rich.text import Text

    table.add_row(*(Text(console.one_line(cell), no_wrap=True, overflow="ellipsis") for cell in cells))


def show(table: Table) -> None:
    out = console.out()
    out.width = columns()
    with out.capture() as drawn:
        out.print(table)
    console.answer("\n".join(line.rstrip() for line in drawn.get().splitlines()))

"""Shows a run as it goes, on stderr: a live panel on a terminal, one line for each event elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from aka.cli import console
from aka.cli.progress import Progress
from aka.types import Event

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.panel import Panel


class View(Protocol):
    """Call it with each event as it is journaled; it is a context manager that leaves the terminal as it was."""

    def __call__(self, event: Event) -> None: ...

    def gate(self, index: int, name: str) -> None:
        """The judgement of trial `index` has come to the gate `name`."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_view(
    total_trials: int, minutes: float, json: bool, *, past: Iterable[Event] = (), elapsed_s: float = 0.0
) -> View:
    """A live panel if stderr is a terminal and no JSON was asked for, else plain lines.

    On a resume, `past` are the events so far (taken in silently) and `elapsed_s` the time that they took.
    """
    progress = Progress(total_trials, minutes, elapsed_s)
    for event in past:
        progress.on_event(event)
    terminal = sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    return LiveView(progress) if terminal and not json else LineView(progress)


class LineView:
    """One line for each event; gates pass in silence."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __call__(self, event: Event) -> None:
        console.note(self._progress.on_event(event))

    def gate(self, index: int, name: str) -> None:
        self._progress.on_gate(index, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


class LiveView:
    """A panel that is drawn anew four times a second, and replaced by a last line at the end."""

    def __init__(self, progress: Progress) -> None:
        from rich.live import Live

        self._progress = progress
        self._live = Live(
            console=console.err(),
            get_renderable=self._panel,
            transient=True,
            redirect_stdout=False,
            refresh_per_second=4,
        )

    def __call__(self, event: Event) -> None:
        line = self._progress.on_event(event)
        if event.type in ("dropout", "best", "interrupted", "finished"):
            self._live.console.print(line, markup=False)

    def gate(self, index: int, name: str) -> None:
        self._progress.on_gate(index, name)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def _panel(self) -> Panel:
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        rows = Table.grid(padding=(0, 2))
        for name, value in self._rows():
            rows.add_row(Text(name, style="dim"), value)
        return Panel(rows, title=Text(self._progress.title), title_align="left")

    def _rows(self) -> list[tuple[str, RenderableType]]:
        from rich.text import Text

        run = self._progress
        rows = [
            ("XLA", run.baseline or "not known yet"),
            ("best", run.best),
            ("now", run.now),
            ("budget", run.left),
            ("trials", run.outcomes),
            *(("" if place else "last", line) for place, line in enumerate(run.last)),
        ]
        # Text, not str: what a candidate or a compiler wrote must not be taken for markup.
        cut: list[tuple[str, RenderableType]] = [
            (name, Text(value, overflow="ellipsis", no_wrap=True)) for name, value in rows
        ]
        return [*cut, ("read", Text(run.retrieved or "nothing yet"))]

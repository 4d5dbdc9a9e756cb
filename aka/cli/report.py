"""`aka report`: what a run found and how, as Markdown or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[str, typer.Argument(help="A run: its id, the start of one, its folder, or 'last'.")],
    out: Annotated[Path | None, typer.Option(help="Write it to this file instead of stdout.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object: result, trials, improvements.")] = False,
) -> None:
    """Tell a run: times by shape, how the best kernel was found (with the diff of each improvement), trials, failures
    by gate, dropout, what was retrieved, how to repeat it. A run that is going on or was interrupted is told so far.

    Example: aka report last --out softmax.md
    """
    from aka.cli import compose, console
    from aka.journal import JsonlJournal, is_held, write_atomically
    from aka.report import gather, markdown, run_json

    folder = compose.run_folder(run)
    journal, running = JsonlJournal.read(folder), is_held(folder)
    events = journal.events()
    if json_:
        found = run_json(gather(events), folder.name, running=running)
        text = json.dumps(found, allow_nan=False, indent=2, ensure_ascii=False)
    else:
        text = markdown(events, journal.blobs, running=running).rstrip("\n")
    if out is None:
        console.answer(text)
        return
    with console.for_file(out):
        write_atomically(out, f"{text}\n".encode())
    console.answer(str(out))

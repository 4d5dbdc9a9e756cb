"""Where runs live and how a person names one: an id, the unique start of one, a path, or "last"."""

from __future__ import annotations

import difflib
import os
import secrets
import time
from pathlib import Path

from aka.errors import UsageError
from aka.journal.record import MAX_RECORD_BYTES, BadRecord, from_line

_JOURNAL = "journal.jsonl"


def runs_root(given: Path | str | None = None) -> Path:
    """The folder of all runs: `given`, else `runs` in the current folder."""
    return Path(given) if given is not None else Path("runs")


def new_run_id() -> str:
    """`YYYYMMDD-HHMMSS-xxxx`: the time in UTC, so that ids sort by age, and four random hex digits."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def run_folders(root: Path) -> list[Path]:
    """Every folder under `root` that is not hidden, those that hold no run (or half of one) too.

    Raises UsageError for a folder that may not be read.
    """
    try:
        if not root.is_dir():
            return []
        return sorted(folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    except PermissionError as error:
        raise UsageError(f"cannot read the folder of runs {root}: {error.strerror}") from error


def run_ids(root: Path) -> list[str]:
    """Ids of the runs under `root`, oldest first: by the time of their first event, not by name alone, since a run
    may have been given any name."""
    found = [folder for folder in run_folders(root) if (folder / _JOURNAL).is_file()]
    return [folder.name for folder in sorted(found, key=lambda folder: (_begun_at(folder), folder.name))]


def _begun_at(folder: Path) -> float:
    """Wall clock of the first event, in seconds; 0 if there is none that can be read."""
    try:
        with (folder / _JOURNAL).open("rb") as journal:
            return from_line(journal.readline(MAX_RECORD_BYTES + 1)).t_wall
    except (OSError, BadRecord):
        return 0.0


def find_run(text: str, root: Path | None = None) -> Path:
    """The folder of the run that `text` names. Raises UsageError that lists the nearest ids."""
    root = runs_root(root)
    ids = run_ids(root)
    if text == "last" and ids:
        return root / ids[-1]
    if text in ids:
        return root / text
    # os.path, because a name that is too long is no run, and no error either
    if text and os.path.isfile(Path(text) / _JOURNAL):
        return Path(text)
    matches = [run for run in ids if text and run.startswith(text)]
    if len(matches) == 1:
        return root / matches[0]
    raise UsageError(_explain(text, root, ids, matches))


def _explain(text: str, root: Path, ids: list[str], matches: list[str]) -> str:
    if not ids:
        return f"no run {text!r}: there are no runs in {root}"
    if matches:
        return f"{text!r} is the start of {len(matches)} runs in {root}: {_list(matches)}"
    near = difflib.get_close_matches(text, ids, n=3, cutoff=0.4)
    return f"no run {text!r} in {root}; " + (
        f"the nearest: {_list(near)}" if near else f"the latest: {_list(ids[::-1])}"
    )


def _list(ids: list[str]) -> str:
    return ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")

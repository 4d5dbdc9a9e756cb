"""Where runs live and how a person names one: an id, the unique start of one, a path, or "last"."""

from __future__ import annotations

import difflib
import secrets
import time
from pathlib import Path

from aka.errors import UsageError

_JOURNAL = "journal.jsonl"


def runs_root(given: Path | str | None = None) -> Path:
    """The folder of all runs: `given`, else `runs` in the current folder."""
    return Path(given) if given is not None else Path("runs")


def new_run_id() -> str:
    """`YYYYMMDD-HHMMSS-xxxx`: the time in UTC, so that ids sort by age, and four random hex digits."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def run_ids(root: Path) -> list[str]:
    """Ids of the runs under `root`, oldest first."""
    if not root.is_dir():
        return []
    return sorted(folder.name for folder in root.iterdir() if (folder / _JOURNAL).is_file())


def find_run(text: str, root: Path | None = None) -> Path:
    """The folder of the run that `text` names. Raises UsageError that lists the nearest ids."""
    root = runs_root(root)
    ids = run_ids(root)
    if text == "last" and ids:
        return root / ids[-1]
    if text in ids:
        return root / text
    if text and (Path(text) / _JOURNAL).is_file():
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

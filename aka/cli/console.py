"""The one place that writes to the terminal: answers to stdout, everything else to stderr.

rich is imported when a console is made, so that `aka --help` does not pay for it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aka.errors import AkaError, UsageError

if TYPE_CHECKING:
    from rich.console import Console


def out() -> Console:
    """For answers."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    """For progress and warnings."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False)


def one_line(text: object) -> str:
    """`text` without line breaks, terminal escapes and hidden characters: it may come from anywhere."""
    from aka.report import words

    return " ".join(words.clean(str(text)).split())


def note(text: object) -> None:
    """One line on stderr."""
    print(one_line(text), file=sys.stderr, flush=True)


def fail(error: AkaError) -> int:
    """Say on one line of stderr what is wrong; returns the exit code."""
    note(f"aka: {error}")
    return error.exit_code


def answer(text: str) -> None:
    """An answer for people."""
    print(text, flush=True)


def answer_json(value: Any) -> None:
    """An answer for programs: one strict JSON value; NaN and infinity raise ValueError before anything is printed."""
    print(json.dumps(value, allow_nan=False, indent=2, ensure_ascii=False), flush=True)


@contextlib.contextmanager
def for_file(path: Path) -> Iterator[None]:
    """A file that a person named and that cannot be written is bad input: UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error

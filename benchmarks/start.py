"""How soon `aka` answers: its help, and a search of the library, each as a new process with a warm page cache.

Run `python benchmarks/start.py` on a quiet machine; it prints one Markdown table. Exit code 1 if a limit is missed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import machine

AKA = Path(sys.executable).with_name("aka")
RUNS = 5
QUERY, NOTE = "scoped vmem oom", "c03"
HELP_LIMIT_S, SEARCH_LIMIT_S = 0.4, 2.5


def main() -> None:
    """Measure and print."""
    first = json.loads(_output("kb", "search", QUERY, "--json"))[0]["id"]  # builds the index if need be
    rows = [("aka --help", _median("--help"), HELP_LIMIT_S)]
    rows.append((f'aka kb search "{QUERY}"', _median("kb", "search", QUERY), SEARCH_LIMIT_S))
    print(f"{machine.line()}\n\n| command, median of {RUNS} | time | limit |\n|---|---|---|")
    for what, seconds, limit in rows:
        print(f"| `{what}` | {machine.shown(seconds)} | {limit} s |")
    print(f"\nFirst answer: {first}, {'the right note' if first == NOTE else f'not {NOTE}'}.")
    sys.exit(first != NOTE or any(seconds > limit for _, seconds, limit in rows))


def _output(*arguments: str) -> str:
    return subprocess.run([AKA, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def _median(*arguments: str) -> float:
    """The first call warms the page cache and does not count."""
    _output(*arguments)
    return statistics.median(_seconds(*arguments) for _ in range(RUNS))


def _seconds(*arguments: str) -> float:
    start = time.perf_counter()
    _output(*arguments)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()

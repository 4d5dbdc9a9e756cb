"""A search before a table, with real files, that is killed again and again by the process that forks it.

Run as a program: `killed_search.py FOLDER KILLS SEED`. It prints one JSON object with what it saw; `wrong` must be
empty. A fresh process does it, because a fork of one with threads may hang.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from standins import CHIP, WORKLOAD, ListProposer, ListRetriever, TableEvaluator

from aka.journal import JsonlJournal, write_atomically
from aka.search.budget import Budget
from aka.search.dropout import Dropout
from aka.search.loop import Search
from aka.types import Event

TRIALS = 2000
TIMES = random.Random(7)
TABLE: dict[int, float | str] = {
    b: "incorrect" if TIMES.random() < 0.3 else 100 * TIMES.random() ** 0.1 for b in range(TRIALS)
}
"""Improvements stay possible until late: most times are near the baseline's."""


class Told:
    """The journal; each trial is told to the parent when `append` has returned: from then on it must survive."""

    def __init__(self, journal: JsonlJournal, pipe: int) -> None:
        self._journal, self._pipe = journal, pipe

    def append(self, type: str, data: dict[str, Any]) -> Event:
        event = self._journal.append(type, data)
        if type == "trial":
            os.write(self._pipe, f"{data['index']}\n".encode())
        return event

    def events(self) -> list[Event]:
        return self._journal.events()


def live(folder: Path, pipe: int, trials: int) -> None:
    """Begin or take up the run and search until killed, or until `trials` are made."""
    known = (folder / "journal.jsonl").exists()
    journal = JsonlJournal.resume(folder) if known else JsonlJournal.create(folder, "killed")

    def publish(trial: Any, baseline: object) -> str:
        text = f"{trial.candidate.params['b']}\n"
        write_atomically(folder / "best.py", text.encode())
        return text

    search = Search(
        workload=WORKLOAD, chip=CHIP, proposer=ListProposer(range(TRIALS)), evaluator=TableEvaluator(TABLE),
        retriever=ListRetriever(), journal=Told(journal, pipe), store=journal.blobs, budget=Budget(trials, 60.0),
        dropout=Dropout("off"), publish=publish, retract=lambda: (folder / "best.py").unlink(missing_ok=True),
    )  # fmt: skip
    with journal:
        if known:
            search.replay(journal.events())
        search.run()


def forked(folder: Path, trials: int, killed_after: tuple[int, float] | None) -> tuple[bool, int]:
    """(whether it was killed, the last trial that it told of; -1 for none). `killed_after` so many trials, and seconds
    after them; None lets it end by itself.
    Raises ChildProcessError if the search itself fails."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(out)
            live(folder, into, trials)
            code = 0
        finally:
            os._exit(code)
    os.close(into)
    told = b""
    if killed_after is not None:
        while told.count(b"\n") < killed_after[0] and (part := os.read(out, 1 << 16)):
            told += part
        time.sleep(killed_after[1])
        os.kill(child, signal.SIGKILL)
    while part := os.read(out, 1 << 16):
        told += part
    os.close(out)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise ChildProcessError("the search failed")
    lines = told.split(b"\n")[:-1]
    return os.WIFSIGNALED(status), int(lines[-1]) if lines else -1


def accepted(events: list[Event]) -> list[int]:
    """The bests of the run in order, by its trials alone: accepted, and faster than all before."""
    found: list[int] = []
    for event in events:
        b = event.data["candidate"]["params"]["b"] if event.type == "trial" else -1
        judged = event.type == "trial" and event.data["evaluation"]["timings"]
        if judged and float(TABLE[b]) * 1.02 <= 100 and (not found or float(TABLE[b]) < float(TABLE[found[-1]])):
            found.append(b)
    return found


def faults(folder: Path, told: int, ended: bool) -> list[str]:
    """What is wrong with the folder after a death: a lost trial, one that is there twice, a best that is none."""
    if not (folder / "journal.jsonl").exists():
        return []
    events = JsonlJournal.read(folder).events()
    made = [e.data["index"] for e in events if e.type == "trial"]
    wrong = [] if made == list(range(len(made))) else [f"trials {made}"]
    wrong += [f"trial {told} was told of and is lost"] if told >= len(made) else []
    path, bests = folder / "best.py", accepted(events)
    best = int(path.read_text()) if path.exists() else None
    # Between the trial and its file a death leaves the one before, until the run is taken up again.
    allowed = [*([None] if len(bests) < 2 else []), *bests[-2:]] if not ended else bests[-1:] or [None]
    return [*wrong, *([] if best in allowed else [f"best.py holds {best}, the best are {bests[-2:]}"])]


def main(folder: Path, kills: int, seed: int) -> None:
    chance, killed, told, wrong = random.Random(seed), 0, -1, []
    for _ in range(kills):
        dead, last = forked(folder, TRIALS, (chance.randrange(4), chance.uniform(0.0, 0.03)))
        killed, told = killed + dead, max(told, last)
        wrong += faults(folder, told, ended=False)
    made = sum(e.type == "trial" for e in JsonlJournal.read(folder).events())
    forked(folder, made + 5, None)
    wrong += faults(folder, made + 4, ended=True)
    events = JsonlJournal.read(folder).events()
    passed_over = sum("crashed_evaluator" in json.dumps(e.data) for e in events if e.type == "trial")
    told_of = {"killed": killed, "trials": made, "bests": len(accepted(events)), "passed_over": passed_over}
    print(json.dumps({**told_of, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

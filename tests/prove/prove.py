"""`make prove`: the judge against machine-made mutants of every reference kernel, and against random honest kernels.

It goes on where it was stopped: answers are kept in a ledger under build/prove, by hashes of the judge, the kernel and
the mutant. When all are there it writes table.json beside this file and docs/proof.md. `--jobs` processes share the
work, each with a judge of its own.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import artifacts  # noqa: E402
import hashes  # noqa: E402
import writing  # noqa: E402
from court import court  # noqa: E402
from faces import faces, listed  # noqa: E402
from honest import examples  # noqa: E402
from ledger import Ledger  # noqa: E402
from trials import COUNTED, Trials  # noqa: E402

LEDGER = HERE.parents[1] / "build" / "prove"
HONEST = 300


def main() -> int:
    """0 when the table is written, 1 when the work was not finished."""
    given = _arguments()
    artifacts.set_environment()
    if given.part:
        _work(given)
        return 0
    parts = [f"{i}/{given.jobs}" for i in range(given.jobs)]
    wanted = [f"--{name}={getattr(given, name)}" for name in ("mutants", "honest", "ledger", "only")]
    children = [subprocess.Popen([sys.executable, __file__, "--part", part, *wanted]) for part in parts]
    ended = [child.wait() for child in children]
    if any(ended):
        return 1
    if given.only == "both":
        judge = hashes.of_judge()
        trials = Trials(None, Ledger(given.ledger, "table"), judge)  # type: ignore[arg-type]
        answers = list(_answers(trials, given, 0, 1))
        writing.write(answers, judge, datetime.date.today().isoformat())
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=COUNTED, help="mutants that count, of each kernel")
    parser.add_argument("--honest", type=int, default=HONEST)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", choices=("both", "mutants", "honest"), default="both")
    parser.add_argument("--ledger", type=Path, default=LEDGER)
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def _work(given: argparse.Namespace) -> None:
    number, jobs = map(int, given.part.split("/"))
    begun = time.monotonic()
    with court() as judge:
        trials = Trials(judge, Ledger(given.ledger, f"{given.only}-{number}"), hashes.of_judge())
        for done, answer in enumerate(_answers(trials, given, number, jobs), 1):
            spent = time.monotonic() - begun
            print(f"{given.part} {spent:6.0f} s {done:4d} {answer['id']}: {answer['verdict']}", flush=True)


def _answers(trials: Trials, given: argparse.Namespace, number: int, jobs: int) -> Iterator[dict[str, Any]]:
    """Every `jobs`-th kernel's mutants and honest example, from the `number`-th on."""
    if given.only != "honest":
        for made in listed()[number::jobs]:
            yield trials.original(faces(made.file)[0])
            yield from trials.mutants_of(made.file, given.mutants)
    if given.only != "mutants":
        for example in examples(given.honest)[number::jobs]:
            yield trials.honest(example)


if __name__ == "__main__":
    sys.exit(main())

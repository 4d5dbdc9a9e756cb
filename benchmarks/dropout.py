"""Does dropout reach the better region of an op whose first region is a local optimum? Prints one Markdown table.

Run `python benchmarks/dropout.py [SEEDS [TRIALS [PATIENCE]]]`. The times are those of
`tests/search/data/matmul_f32_v6e.json`, recorded once by the real compiler and meter (`benchmarks/landscape.py`); the
loop, the proposer and the tuner are real.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "search"))

import replay

from aka.search.dropout import Mode
from aka.search.loop import Search

TABLE, BETTER = "matmul_f32_v6e.json", 0.9
DEFAULTS = (10, 9, 4)


def main() -> None:
    """Measure and print."""
    seeds, trials, patience = (int(v) for v in (*sys.argv[1:], *DEFAULTS[len(sys.argv) - 1 :]))
    table = replay.load(TABLE)
    better = table.better(BETTER)
    print(f"{len(table.points)} points, {len(better)} of them at most {BETTER:.0%} of the first one's time;")
    print(f"budget: {trials} trials; patience: {patience}; seeds: {seeds}\n")
    print("| dropout | reached the better region | median trial at which | mean best, of the first one's time |")
    print("|---|---|---|---|")
    for mode in get_args(Mode):
        made = [replay.search(table, mode, seed, trials, patience=patience) for seed in range(seeds)]
        print(_row(table, better, mode, made))


def _row(table: replay.Table, better: set[tuple[str, str]], mode: Mode, made: list[Search]) -> str:
    found = [at for search in made if (at := replay.found_at(search, better)) is not None]
    first = table.points[table.first]
    assert isinstance(first, float)
    best = [min(t.evaluation.us for t in search.trials if t.evaluation.us is not None) for search in made]
    share = statistics.mean(best) / first
    median = f"{statistics.median(found):g}" if found else "–"
    return f"| {mode} | {len(found)} of {len(made)} | {median} | {share:.0%} |"


if __name__ == "__main__":
    main()

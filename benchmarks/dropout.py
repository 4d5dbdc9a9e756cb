"""Does dropout reach the better region of an op whose first region is a local optimum? Prints one Markdown table.

Run `python benchmarks/dropout.py [SEEDS] [TRIALS]`. The times are those of `tests/search/data/matmul_f32_v6e.json`,
recorded once by the real compiler and meter (`benchmarks/landscape.py`); the loop, the proposer and the tuner are real.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "search"))

import replay

from aka.search.dropout import Mode

TABLE, BETTER = "matmul_f32_v6e.json", 0.9


def main() -> None:
    """Measure and print."""
    seeds, trials = (int(v) for v in (*sys.argv[1:], *("10", "20")[len(sys.argv) - 1 :]))
    table = replay.load(TABLE)
    better = table.better(BETTER)
    print(f"{len(table.points)} points, {len(better)} of them at most {BETTER:.0%} of the first one's time;")
    print(f"budget: {trials} trials; seeds: {seeds}\n")
    print("| dropout | reached the better region | median trial at which | mean best, of the first one's time |")
    print("|---|---|---|---|")
    for mode in get_args(Mode):
        print(_row(table, better, mode, seeds, trials))


def _row(table: replay.Table, better: set[tuple[str, str]], mode: Mode, seeds: int, trials: int) -> str:
    made = [replay.search(table, mode, seed, trials) for seed in range(seeds)]
    found = [at for search in made if (at := replay.found_at(search, better)) is not None]
    best = [min(t.evaluation.us for t in search.trials if t.evaluation.us is not None) for search in made]
    share = statistics.mean(best) / float(table.points[table.first])  # type: ignore[arg-type]
    median = f"{statistics.median(found):g}" if found else "–"
    return f"| {mode} | {len(found)} of {seeds} | {median} | {share:.0%} |"


if __name__ == "__main__":
    main()

"""A search replayed on a table: the real loop and the real offline proposer, with times that were recorded once.

`benchmarks/landscape.py` records such tables by the real compiler and meter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standins import CHIP, WORKLOAD, DictStore, ListJournal

from aka.propose.catalog import OfflineProposer
from aka.propose.tuner import key
from aka.search.budget import Budget
from aka.search.dropout import Dropout, Mode
from aka.search.loop import Search
from aka.types import (
    Binding,
    Bindings,
    Candidate,
    Evaluation,
    GateResult,
    Passage,
    ReferenceKernel,
    Space,
    Templates,
    Timing,
    Workload,
)

DATA = Path(__file__).parent / "data"
SOURCE = """
def reference(x):
    return x


def search_space(shapes, chip):
    return {}


def kernel(x, **blocks):
    return x
"""


@dataclass(frozen=True)
class Table:
    """Spaces of kernels, and what each of their points takes: microseconds, or the gate that refused it."""

    baseline_us: float
    spaces: dict[str, dict[str, list[Any]]]
    points: dict[tuple[str, str], float | GateResult]

    def better(self, than: float) -> set[tuple[str, str]]:
        """The points that take at most this share of the time of the first one tried."""
        start = self.points[self.first]
        assert isinstance(start, float)
        return {at for at, value in self.points.items() if isinstance(value, float) and value <= than * start}

    @property
    def first(self) -> tuple[str, str]:
        """The point that is tried first: the defaults of the first kernel."""
        kernel, space = next(iter(self.spaces.items()))
        return kernel, key({name: values[0] for name, values in space.items()})

    def neighbours(self) -> list[float | GateResult]:
        """What the points take that differ from the first one in one parameter."""
        kernel, space = next(iter(self.spaces.items()))
        start = {name: values[0] for name, values in space.items()}
        changed = ({**start, name: value} for name, values in space.items() for value in values[1:])
        return [self.points[kernel, key(params)] for params in changed]


def load(name: str) -> Table:
    data = json.loads((DATA / name).read_text())
    points: dict[tuple[str, str], float | GateResult] = {}
    for row in data["rows"]:
        refused = None if "us" in row else GateResult(row["gate"], False, 0.0, row["code"], row["message"])
        points[row["kernel"], key(row["params"])] = refused or row["us"]
    return Table(data["baseline_us"], data["spaces"], points)


@dataclass
class TablePlanner:
    table: Table

    def bind(self, workload: Workload, kernels: Sequence[ReferenceKernel]) -> Bindings:
        return Bindings(tuple(Binding(k.id, (0,), {}) for k in kernels), {})

    def space(self, workload: Workload, kernel: ReferenceKernel, binding: Binding) -> Space:
        return Space(self.table.spaces[kernel.id])

    def templates(self, workload: Workload) -> Templates:
        return Templates((), {})


@dataclass
class TableJudge:
    """Answers like the real judge: refused, accepted with a time, or rejected for being slower than the best."""

    table: Table

    def baseline(self, workload: Workload) -> Evaluation:
        return self._timed("baseline", self.table.baseline_us, GateResult("baseline", True, 0.0))

    def evaluate(
        self, workload: Workload, candidate: Candidate, *, final: bool = False, bar_us: float | None = None
    ) -> Evaluation:
        value = self.table.points[candidate.origin.partition(":")[2], key(candidate.params)]
        if isinstance(value, GateResult):
            return Evaluation(candidate.id, "v5e", (value,))
        slow = bar_us is not None and value >= bar_us
        return self._timed(candidate.id, value, GateResult("performance", not slow, 0.0, "slower" if slow else None))

    def _timed(self, candidate_id: str, us: float, gate: GateResult) -> Evaluation:
        timing = Timing("v5e", WORKLOAD.primary.label, us, "estimated", "exact loop")
        return Evaluation(candidate_id, "v5e", (gate,), (timing,))

    def close(self) -> None: ...


@dataclass
class TableLibrary:
    table: Table

    def search(
        self, query: str, *, k: int = 5, kind: str | None = None, chip: str | None = None, exclude: Sequence[str] = ()
    ) -> list[Passage]:
        ids = [i for i in self.table.spaces if kind == "kernel" and i not in exclude]
        return [Passage(i, i, "kernel", i, "", "", 1.0, "") for i in ids[:k]]

    def kernel(self, doc_id: str) -> ReferenceKernel:
        source = f"{SOURCE}\n\nNAME = {doc_id!r}\n"
        return ReferenceKernel(doc_id, "table", doc_id, "x:f[n] -> f[n]", {}, ("v5e",), source)


def build(
    table: Table, mode: Mode, seed: int, trials: int, *, patience: int = 8, journal: ListJournal | None = None,
    store: DictStore | None = None,
) -> Search:  # fmt: skip
    """A run with the settings that `aka optimize` has by default, but for those that are given."""
    library = TableLibrary(table)
    return Search(
        workload=WORKLOAD, chip=CHIP, proposer=OfflineProposer(TablePlanner(table), library.kernel),
        evaluator=TableJudge(table), retriever=library, journal=journal or ListJournal(), store=store or DictStore(),
        budget=Budget(trials, 10.0), dropout=Dropout(mode, 0.5, patience, 0.03, seed),
        publish=lambda trial, baseline: "", retract=lambda: None, seed=seed,
    )  # fmt: skip


def search(table: Table, mode: Mode, seed: int, trials: int, *, patience: int = 8) -> Search:
    """A run that has ended."""
    made = build(table, mode, seed, trials, patience=patience)
    made.run()
    return made


def found_at(made: Search, better: set[tuple[str, str]]) -> int | None:
    """The trial that first reached one of these points, or None."""
    places = [(t.candidate.origin.partition(":")[2], key(t.candidate.params)) for t in made.trials]
    return next((i for i, place in enumerate(places) if place in better), None)

"""A run in one row, and two runs side by side."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from aka.report.facts import Facts
from aka.report.story import difference

IMPROVED, NO_IMPROVEMENT, RUNNING, INTERRUPTED, CRASHED = STATUSES = (
    "improved", "no_improvement", "running", "interrupted", "crashed",
)  # fmt: skip
"""`crashed`: no process works on the run, and nothing in its journal says that it came to an end."""


@dataclass(frozen=True)
class Summary:
    """Times are geometric means over the shapes; `source` says whether they are estimated or measured. Before a run
    has finished, `best_us` is that of the best so far and `stop_reason` is "". `begun` is ISO 8601, in UTC."""

    run: str
    op: str
    chip: str
    status: str
    source: str
    baseline_us: float | None
    best_us: float | None
    speedup: float | None
    trials: int
    begun: str
    stop_reason: str


@dataclass(frozen=True)
class Difference:
    """A setting that differs; None where a run does not have it."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True)
class Comparison:
    """Two runs. The counts are of trials: those that a gate rejected, by gate, and all, by family. `code` is the
    unified diff of the best kernels, "" if they are the same, None if a run has none."""

    a: Summary
    b: Summary
    settings: tuple[Difference, ...]
    gates_a: dict[str, int]
    gates_b: dict[str, int]
    families_a: dict[str, int]
    families_b: dict[str, int]
    same_op: bool
    code: str | None


def summarise(facts: Facts, run: str, *, running: bool) -> Summary:
    """`run` is what the run is called where it lies; `running` says that a process holds its lock."""
    result = facts.result
    timings = facts.baseline.timings if facts.baseline else ()
    best_us = result.best_us if result else (facts.best.evaluation.us if facts.best else None)
    return Summary(
        run=run,
        op=facts.workload.name,
        chip=facts.chip,
        status=status(facts, running=running),
        source=result.source if result else (timings[0].source if timings else "estimated"),
        baseline_us=facts.baseline.us if facts.baseline else None,
        best_us=best_us,
        speedup=result.speedup if result else facts.best_speedup,
        trials=len(facts.trials),
        begun=datetime.datetime.fromtimestamp(facts.begun_at, datetime.UTC).isoformat(timespec="seconds"),
        stop_reason=result.stop_reason if result else "",
    )


def status(facts: Facts, *, running: bool) -> str:
    """One of STATUSES."""
    if facts.result is not None:
        return facts.result.status
    if running:
        return RUNNING
    return INTERRUPTED if facts.last_event == "interrupted" else CRASHED


def compare(a: Facts, b: Facts, rows: tuple[Summary, Summary], sources: tuple[str | None, str | None]) -> Comparison:
    """`rows` are the summaries of `a` and `b`, `sources` the code of their best kernels."""
    return Comparison(
        a=rows[0],
        b=rows[1],
        settings=_differences(_settings(a), _settings(b)),
        gates_a=a.gates,
        gates_b=b.gates,
        families_a=a.families,
        families_b=b.families,
        same_op=a.workload.source_hash == b.workload.source_hash,
        code=_code(rows, sources),
    )


def _code(rows: tuple[Summary, Summary], sources: tuple[str | None, str | None]) -> str | None:
    before, after = sources
    if before is None or after is None:
        return None
    return difference(before, after, f"{rows[0].run}/best.py", f"{rows[1].run}/best.py")


def _settings(facts: Facts) -> dict[str, Any]:
    """What a run was told and what it ran on, by name."""
    versions = {f"version of {name}": version for name, version in facts.versions.items()}
    return {"chip": facts.chip, "seed": facts.seed, **facts.settings, "sandbox": facts.sandbox, **versions}


def _differences(a: dict[str, Any], b: dict[str, Any]) -> tuple[Difference, ...]:
    names = dict.fromkeys([*a, *b])
    return tuple(Difference(name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name))

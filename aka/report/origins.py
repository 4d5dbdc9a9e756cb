"""Where kernels came from, side by side: the user's starting kernel, the library, templates, and XLA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aka.report.facts import Facts
from aka.types import Trial


@dataclass(frozen=True)
class Row:
    """The fastest of the trials of one origin. Times are None where none of them has one; `verdict` is then that of the
    last. `starting` is the speedup over the starting kernel as it was given."""

    name: str
    trials: int
    verdict: str
    us: float | None
    xla: float | None
    starting: float | None


def compare(facts: Facts) -> tuple[Row, ...]:
    """One row for each origin; empty unless the op's file has a starting kernel that was tried."""
    given = [t for t in facts.trials if t.candidate.origin == "starting"][:1]
    if not given:
        return ()
    start_us = given[0].evaluation.us
    return tuple(_row(name, trials, facts, start_us) for name, trials in _groups(facts, given[0]) if trials)


def _groups(facts: Facts, given: Trial) -> Iterator[tuple[str, list[Trial]]]:
    def of(test: Callable[[str], bool]) -> list[Trial]:
        return [t for t in facts.trials if t is not given and test(t.candidate.origin)]

    yield "the starting kernel as it was given", [given]
    yield "the starting kernel, tuned", of(lambda origin: origin == "starting")
    yield "kernels of the library", of(lambda origin: origin.startswith("catalog:"))
    yield "fusion templates", of(lambda origin: origin.startswith("template:"))


def _row(name: str, trials: list[Trial], facts: Facts, start_us: float | None) -> Row:
    """A kernel that was only slower than the best has a time too, though its values were not compared."""
    timed = [t for t in trials if t.evaluation.us is not None]
    fastest = min(timed, key=lambda t: t.evaluation.us or 0.0) if timed else trials[-1]
    us, baseline = fastest.evaluation.us, facts.baseline.us if facts.baseline else None
    return Row(
        name=name,
        trials=len(trials),
        verdict=fastest.evaluation.verdict,
        us=us,
        xla=baseline / us if baseline and us else None,
        starting=start_us / us if start_us and us else None,
    )

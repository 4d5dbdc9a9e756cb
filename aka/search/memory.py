"""What the search remembers: one record per trial, some of them masked by optimization dropout, none ever deleted."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from aka.types import MemoryRecord, Trial

HARD_CONSTRAINTS = frozenset({"compile_error", "static_reject", "unsupported_feature", "forbidden_primitive"})
"""Reason codes that name a limit of the compiler or the rules; such a pitfall stays true in a fresh context."""
_FIGURES = re.compile(r"\d[\d.,]*")


def record(trial: Trial) -> MemoryRecord:
    """The record of a finished trial; its pitfall is the failing gate's sentence."""
    failed = trial.evaluation.failed
    made = trial.candidate
    return MemoryRecord(
        trial=trial.index,
        family=made.family,
        binding=made.binding,
        params=made.params,
        outcome=trial.evaluation.verdict,
        us=trial.evaluation.us,
        pitfall=failed.message if failed else "",
        piece=made.is_piece,
    )


def protect(records: Iterable[MemoryRecord], best: int | None) -> list[MemoryRecord]:
    """Mark what dropout must keep: the best (before there is one, the fastest), the latest success, and one pitfall of
    each hard constraint. Failures of one kernel whose sentences differ in figures only are one constraint: that one
    block is too large closes no region.
    """
    made = list(records)
    timed = [r for r in made if r.us is not None and not r.piece]
    # Before there is a best, what was only slower than XLA is the nearest thing to a success.
    successes = timed if best is None else [r for r in timed if r.outcome == "ACCEPT"]
    fastest = min(successes, key=lambda r: r.us or 0.0).trial if successes else None
    kept = {best if best is not None else fastest, successes[-1].trial if successes else None}
    seen: set[tuple[str, str]] = set()
    for r in made:
        constraint = (r.binding, _FIGURES.sub("#", r.pitfall))
        if r.outcome in HARD_CONSTRAINTS and constraint not in seen:
            seen.add(constraint)
            kept.add(r.trial)
    return [replace(r, protected=r.trial in kept) for r in made]


def choose_masked(records: Sequence[MemoryRecord], fraction: float, seed: int) -> tuple[int, ...]:
    """A seeded random `fraction` of the unprotected, unmasked records, as trial indices in order."""
    pool = [r.trial for r in records if not r.protected and not r.masked]
    return tuple(sorted(random.Random(seed).sample(pool, round(fraction * len(pool)))))


def unmasked(records: Sequence[MemoryRecord]) -> tuple[MemoryRecord, ...]:
    return tuple(r for r in records if not r.masked)

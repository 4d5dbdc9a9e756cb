"""Budgets that hold: trials in all (not additional ones after a resume) and minutes of work, on the monotonic clock.

The minutes include the final check: a trial that would leave no time for it is not begun.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from aka.types import Trial

FINAL_SHARE = 1.5
"""What the final check may take, as a multiple of the longest trial that passed every gate: it compares more."""
WHOLE_SHARE = 0.15
"""What it may take besides to run the kernel at its production shapes, as a share of all minutes."""
WHOLE_MOST_S = 300.0


@dataclass
class Budget:
    """`spent_s` is what earlier sessions of the same run have used."""

    max_trials: int
    max_minutes: float
    spent_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _start: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._start = self.clock()

    @property
    def elapsed_s(self) -> float:
        return self.spent_s + self.clock() - self._start

    @property
    def whole_s(self) -> float:
        """What is kept for the finalist's production shapes."""
        return min(WHOLE_MOST_S, WHOLE_SHARE * 60 * self.max_minutes)

    def exhausted(self, trials: Sequence[Trial]) -> str | None:
        """Why no trial may begin now, or None."""
        if len(trials) >= self.max_trials:
            return f"budget of {self.max_trials} trials used"
        left_s = 60 * self.max_minutes - self.elapsed_s
        if left_s <= 0:
            return f"budget of {self.max_minutes:g} minutes used"
        whole_s = self.whole_s if any(t.evaluation.accepted for t in trials) else 0.0
        if left_s < expected_s(trials) + whole_s:
            return f"budget of {self.max_minutes:g} minutes: too little is left for a trial and the final check"
        return None


def expected_s(trials: Sequence[Trial]) -> float:
    """Seconds of one more trial, as long as the mean so far, and of a final check; 0 if nothing is known yet. Where
    nothing has passed, both are taken to be as long as most trials were: one whose schedule took the compiler a minute
    and more says little about the others."""
    if not trials:
        return 0.0
    passed = [t.seconds for t in trials if t.evaluation.accepted]
    if not passed:
        return (1 + FINAL_SHARE) * median(t.seconds for t in trials)
    return fmean(t.seconds for t in trials) + FINAL_SHARE * max(passed)

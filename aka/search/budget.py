"""Budgets that hold: trials in all (not additional ones after a resume) and minutes of work, on the monotonic clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


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

    def exhausted(self, trials: int) -> str | None:
        """Why the search must stop now, or None."""
        if trials >= self.max_trials:
            return f"budget of {self.max_trials} trials used"
        if self.elapsed_s >= 60 * self.max_minutes:
            return f"budget of {self.max_minutes:g} minutes used"
        return None

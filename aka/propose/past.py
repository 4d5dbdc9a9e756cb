"""What the offline proposer was told of: every trial of the run, masked or not. No code is ever tried twice."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from aka.propose import tuner
from aka.types import Trial


class Past:
    """Trials in order. `masked` are the indices that dropout hides; `fresh_since` is the index at which the last fresh
    start began, 0 before any."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        self.masked: set[int] = set()
        self.fresh_since = 0
        self._codes: set[str] = set()
        self._tried: dict[str, set[str]] = {}

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._codes.add(fingerprint(trial.candidate.code))
        self._tried.setdefault(trial.candidate.binding, set()).add(tuner.key(trial.candidate.params))

    def tried(self, key: str) -> set[str]:
        """The parameters (keys) with which an arm was tried."""
        return self._tried.get(key, set())

    def points(self, key: str) -> list[Mapping[str, Any]]:
        """Where an arm was tried; failures that are masked no longer count."""
        return [t.candidate.params for t in self.of(key)]

    @property
    def has_template(self) -> bool:
        return any(t.candidate.origin.startswith(("template:", "piece:")) for t in self.trials)

    def has(self, code: str) -> bool:
        return fingerprint(code) in self._codes

    def of(self, key: str) -> list[Trial]:
        """The trials of an arm; failures that are masked are left out."""
        known = (t for t in self.trials if t.index not in self.masked or not t.evaluation.fault)
        return [t for t in known if t.candidate.binding == key]

    def best_us(self, key: str) -> float | None:
        return min((us for t in self.of(key) if (us := t.evaluation.us) is not None), default=None)

    def best_params(self, key: str) -> Mapping[str, Any] | None:
        """The parameters of an arm's best time, or None if it has none."""
        timed = [t for t in self.of(key) if t.evaluation.us is not None]
        return min(timed, key=lambda t: t.evaluation.us or 0.0).candidate.params if timed else None

    def best_id(self, key: str) -> str | None:
        """The candidate with the best time of an arm, or None if none of its trials has one."""
        timed = [t for t in self.trials if t.candidate.binding == key and t.evaluation.us is not None]
        return min(timed, key=lambda t: t.evaluation.us or 0.0).candidate.id if timed else None

    def repairs_behind(self, trial: Trial) -> int:
        """How many repairs in a row have led to this trial: a repair's parent is a candidate that failed."""
        failed = {t.candidate.id: t for t in self.trials if t.evaluation.fault}
        count = 0
        while trial.candidate.parent in failed:
            trial, count = failed[trial.candidate.parent], count + 1
        return count

    def starts(self) -> int:
        """Trials since the last fresh start that are not repairs."""
        return sum(t.index >= self.fresh_since and not self.repairs_behind(t) for t in self.trials)


def fingerprint(code: str) -> str:
    """What a file does, without its docstring and layout: kernels of two origins may be the same program."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return code
    body = tree.body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return ast.dump(ast.Module(body, []))

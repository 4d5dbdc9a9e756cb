"""Gathers what a report needs from the events of a run; a run that is not finished gives what there is so far."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aka.errors import JournalCorrupt, UsageError
from aka.types import Candidate, Evaluation, Event, RunResult, ShapeResult, Trial, Workload, decode


@dataclass(frozen=True)
class Reset:
    """One dropout, and what came of it: the number of trials until the next, and the best accepted time of those."""

    generation: int
    trigger: str
    mode: str
    seed: int
    masked: tuple[int, ...]
    fresh: bool
    trials: int
    best_us: float | None


@dataclass(frozen=True)
class Look:
    """One look into the library: (document id, title, score) of each passage, best first."""

    generation: int
    query: str
    passages: tuple[tuple[str, str, float], ...]


@dataclass(frozen=True)
class Failures:
    """All trials with one reason code; `example` is the first."""

    code: str
    indices: tuple[int, ...]
    example: Trial


@dataclass(frozen=True)
class Facts:
    """A run, told. Candidates come without code; `best_code` is the sha256 of the best one's."""

    workload: Workload
    chip: str
    seed: int
    settings: dict[str, Any]
    versions: dict[str, str]
    sandbox: str
    op_path: str
    baseline: Evaluation | None
    trials: tuple[Trial, ...]
    best: Trial | None
    best_code: str | None
    final: Evaluation | None
    resets: tuple[Reset, ...]
    looks: tuple[Look, ...]
    sessions: int
    result: RunResult | None

    @property
    def failures(self) -> list[Failures]:
        """Rejected trials by reason code, the most frequent first."""
        groups: dict[str, list[Trial]] = {}
        for trial in self.trials:
            if not trial.evaluation.accepted:
                groups.setdefault(trial.evaluation.verdict, []).append(trial)
        found = [Failures(code, tuple(t.index for t in group), group[0]) for code, group in groups.items()]
        return sorted(found, key=lambda failures: (-len(failures.indices), failures.code))

    @property
    def best_speedup(self) -> float | None:
        return self.speedup(self.best) if self.best else None

    def speedup(self, trial: Trial) -> float | None:
        """The baseline's time over an accepted trial's, geometric means over the shapes."""
        theirs = self.baseline.us if self.baseline else None
        ours = trial.evaluation.us if trial.evaluation.accepted else None
        return theirs / ours if theirs is not None and ours is not None else None

    @property
    def shapes(self) -> tuple[ShapeResult, ...]:
        """Times by shape: the result's, or before the run is finished those of the best so far."""
        if self.result is not None:
            return self.result.shapes
        ours = {timing.shape: timing for timing in self.best.evaluation.timings} if self.best else {}
        return tuple(
            ShapeResult(
                theirs.shape,
                theirs.us,
                ours[theirs.shape].us if theirs.shape in ours else None,
                theirs.us / ours[theirs.shape].us if theirs.shape in ours else None,
                ours[theirs.shape].confidence if theirs.shape in ours else "",
                theirs.confidence,
            )
            for theirs in (self.baseline.timings if self.baseline else ())
        )


def gather(events: Sequence[Event]) -> Facts:
    """Raises UsageError for a run that never began, JournalCorrupt for events that do not fit their types."""
    if not events or events[0].type != "run_started":
        raise UsageError("this run was stopped before it began: there is nothing to report")
    try:
        return _gather(events)
    except (KeyError, TypeError, ValueError) as error:
        raise JournalCorrupt(f"the journal holds an event that does not fit its type: {error!r}"[:500]) from error


def _gather(events: Sequence[Event]) -> Facts:
    start = events[0].data
    names = ("chip", "seed", "settings", "versions", "sandbox", "op_path")
    trials = {event.data["index"]: _trial(event.data) for event in events if event.type == "trial"}
    finals = {e.data["candidate_id"]: _evaluation(e.data) for e in events if e.type == "final_check"}
    best = _best(events, finals)
    baselines = [_evaluation(event.data) for event in events if event.type == "baseline"]
    return Facts(
        workload=decode(Workload, start["workload"]),
        **{name: start[name] for name in names},
        baseline=baselines[-1] if baselines else None,
        trials=tuple(trials[index] for index in sorted(trials)),
        best=trials.get(best["trial"]) if best else None,
        best_code=best["code"] if best else None,
        final=finals.get(best["candidate_id"]) if best else None,
        resets=_resets(events),
        looks=tuple(_look(event.data) for event in events if event.type == "retrieved"),
        sessions=1 + sum(event.type == "resumed" for event in events),
        result=_result(events),
    )


def _evaluation(data: dict[str, Any]) -> Evaluation:
    return decode(Evaluation, data["evaluation"])


def _trial(data: dict[str, Any]) -> Trial:
    return Trial(data["index"], decode(Candidate, data["candidate"]), _evaluation(data), data["seconds"])


def _best(events: Sequence[Event], finals: dict[str, Evaluation]) -> dict[str, Any] | None:
    """The last best that no final check has rejected."""
    rejected = {candidate_id for candidate_id, evaluation in finals.items() if not evaluation.accepted}
    made = [event.data for event in events if event.type == "best"]
    return next((data for data in reversed(made) if data["candidate_id"] not in rejected), None)


def _result(events: Sequence[Event]) -> RunResult | None:
    ends = [event for event in events if event.type in ("finished", "resumed")]
    return decode(RunResult, ends[-1].data["result"]) if ends and ends[-1].type == "finished" else None


def _look(data: dict[str, Any]) -> Look:
    passages = tuple((passage["doc_id"], passage["title"], passage["score"]) for passage in data["passages"])
    return Look(data["generation"], data["query"], passages)


def _resets(events: Sequence[Event]) -> tuple[Reset, ...]:
    places = [place for place, event in enumerate(events) if event.type == "dropout"]
    return tuple(
        _reset(events[place].data, events[place + 1 : end]) for place, end in itertools.pairwise([*places, len(events)])
    )


def _reset(data: dict[str, Any], after: Sequence[Event]) -> Reset:
    judged = [_evaluation(event.data) for event in after if event.type == "trial"]
    times = [evaluation.us for evaluation in judged if evaluation.accepted and evaluation.us is not None]
    fields = {**data, "masked": tuple(data["masked"])}
    return Reset(**fields, trials=len(judged), best_us=min(times, default=None))

"""Gathers what a report needs from the events of a run; a run that is not finished gives what there is so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aka.errors import JournalCorrupt, UsageError
from aka.report import story
from aka.report.story import Look, Reset, Step
from aka.types import Candidate, Evaluation, Event, RunResult, ShapeResult, Trial, Workload, decode

SLOWER = "performance, for being no faster than the best or XLA"


@dataclass(frozen=True)
class Failures:
    """All trials that one gate rejected with one reason code; `example` is the first. No gate at all is ""."""

    gate: str
    code: str
    indices: tuple[int, ...]
    example: Trial


@dataclass(frozen=True)
class Facts:
    """A run, told. Candidates come without code; `best_code` is the sha256 of the best one's.

    `begun_at` is the wall clock at the first event, in seconds; `last_event` is the type of the last.
    """

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
    steps: tuple[Step, ...]
    resets: tuple[Reset, ...]
    looks: tuple[Look, ...]
    sessions: int
    begun_at: float
    last_event: str
    result: RunResult | None

    @property
    def failures(self) -> list[Failures]:
        """Rejected trials by gate and reason code, the most frequent first."""
        groups: dict[tuple[str, str], list[Trial]] = {}
        for trial in self.trials:
            if not (trial.evaluation.accepted or trial.evaluation.slower):
                groups.setdefault((failed_gate(trial), trial.evaluation.verdict), []).append(trial)
        found = [Failures(*key, tuple(t.index for t in group), group[0]) for key, group in groups.items()]
        return sorted(found, key=lambda failures: (-len(failures.indices), failures.gate, failures.code))

    @property
    def gates(self) -> dict[str, int]:
        """How many trials each gate rejected, the most frequent first. Those that were only slower than the best are
        counted apart, as SLOWER."""
        judged = [trial for trial in self.trials if not trial.evaluation.accepted]
        return dict(Counter(SLOWER if t.evaluation.slower else failed_gate(t) for t in judged).most_common())

    @property
    def families(self) -> dict[str, int]:
        """How many trials each family of kernels had, the most frequent first."""
        return dict(Counter(t.candidate.family or t.candidate.origin for t in self.trials).most_common())

    def trial(self, index: int) -> Trial | None:
        return next((trial for trial in self.trials if trial.index == index), None)

    @property
    def walls(self) -> tuple[str, ...]:
        """The rungs of the sandbox that the run has stood on: where it began, and where each trial was judged."""
        return tuple(dict.fromkeys((self.sandbox, *(t.evaluation.sandbox or self.sandbox for t in self.trials))))

    @property
    def best_speedup(self) -> float | None:
        return self.speedup(self.best) if self.best else None

    def speedup(self, trial: Trial) -> float | None:
        """The baseline's time over an accepted trial's, geometric means over the shapes; None for a part of the op."""
        theirs = self.baseline.us if self.baseline else None
        ours = trial.evaluation.us if trial.evaluation.accepted and not trial.candidate.is_piece else None
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


def failed_gate(trial: Trial) -> str:
    """The gate that rejected a trial, or ""."""
    failed = trial.evaluation.failed
    return failed.gate if failed else ""


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
    names = ("chip", "seed", "sandbox", "op_path")
    trials = {event.data["index"]: _trial(event.data) for event in events if event.type == "trial"}
    finals = {e.data["candidate_id"]: _evaluation(e.data) for e in events if e.type == "final_check"}
    best = _best(events, finals)
    baselines = [_evaluation(event.data) for event in events if event.type == "baseline"]
    return Facts(
        workload=decode(Workload, start["workload"]),
        **{name: start[name] for name in names},
        settings=dict(start["settings"]),
        versions=dict(start["versions"]),
        baseline=baselines[-1] if baselines else None,
        trials=tuple(trials[index] for index in sorted(trials)),
        best=trials.get(best["trial"]) if best else None,
        best_code=best["code"] if best else None,
        final=finals.get(best["candidate_id"]) if best else None,
        steps=story.steps(events),
        resets=story.resets(events),
        looks=tuple(story.look(event.data) for event in events if event.type == "retrieved"),
        sessions=1 + sum(event.type == "resumed" for event in events),
        begun_at=events[0].t_wall,
        last_event=events[-1].type,
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

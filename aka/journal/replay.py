"""Folds the events of a run into the state in which it stands: what a resume starts from."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from aka.errors import JournalCorrupt, UsageError
from aka.journal.blobs import BlobStore
from aka.types import Candidate, Evaluation, Event, RunResult, Trial, Workload, decode

T = TypeVar("T")


@dataclass(frozen=True)
class Best:
    """The best kernel so far: `code` is the candidate's source, `file` the whole of best.py, both blobs' sha256."""

    trial: int
    candidate_id: str
    us: float
    speedup: float
    code: str
    file: str


@dataclass(frozen=True)
class Dropout:
    """One reset of the search: which trials were masked, and whether the context was made afresh."""

    generation: int
    trigger: str
    mode: str
    seed: int
    masked: tuple[int, ...]
    fresh: bool


@dataclass(frozen=True)
class Retrieval:
    """One look into the library: the ids of the documents that came back, best first."""

    generation: int
    query: str
    doc_ids: tuple[str, ...]


@dataclass(frozen=True)
class RunState:
    """A run as its journal tells it.

    `trials` are in the order of their indices, their candidates with code. `unfinished` maps the index of a trial that
    was started and has no result to the number of times that it was started: once is redone, twice is to be skipped.
    `masked` joins what all dropouts masked; `generation` is that of the last one, 0 before any. `elapsed_s` adds up
    the sessions, each from its first event to its last, by the monotonic clock.
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
    best: Best | None
    unfinished: dict[int, int]
    dropouts: tuple[Dropout, ...]
    retrievals: tuple[Retrieval, ...]
    final_checks: tuple[tuple[str, Evaluation], ...]
    finished: RunResult | None
    elapsed_s: float

    @property
    def generation(self) -> int:
        return self.dropouts[-1].generation if self.dropouts else 0

    @property
    def masked(self) -> frozenset[int]:
        return frozenset(index for dropout in self.dropouts for index in dropout.masked)


def fold(events: Sequence[Event], blobs: BlobStore) -> RunState:
    """Raises UsageError if the run ended before it began, JournalCorrupt for an event that does not fit its type."""
    if not events or events[0].type != "run_started":
        raise UsageError("this run was stopped before it began, and has nothing to resume or show: start a new one")
    checks = tuple(_checked(event, _final_check) for event in _of(events, "final_check"))
    trials = {event.data.get("index"): _checked(event, _trial, blobs) for event in _of(events, "trial")}
    return RunState(
        **_checked(events[0], _start),
        baseline=_last(events, "baseline", _baseline),
        trials=tuple(sorted(trials.values(), key=lambda trial: trial.index)),
        best=_best(events, {candidate_id for candidate_id, evaluation in checks if not evaluation.accepted}),
        unfinished=_unfinished(events),
        dropouts=tuple(_checked(event, _dropout) for event in _of(events, "dropout")),
        retrievals=tuple(_checked(event, _retrieval) for event in _of(events, "retrieved")),
        final_checks=checks,
        finished=_finished(events),
        elapsed_s=_elapsed_s(events),
    )


def _start(data: dict[str, Any]) -> dict[str, Any]:
    names = ("chip", "seed", "settings", "versions", "sandbox", "op_path")
    return {"workload": decode(Workload, data["workload"]), **{name: data[name] for name in names}}


def _baseline(data: dict[str, Any]) -> Evaluation:
    return decode(Evaluation, data["evaluation"])


def _trial(data: dict[str, Any], blobs: BlobStore) -> Trial:
    code = blobs.get(data["code"]).decode()
    candidate = replace(decode(Candidate, data["candidate"]), code=code)
    return Trial(data["index"], candidate, decode(Evaluation, data["evaluation"]), data["seconds"])


def _best(events: Sequence[Event], rejected: set[str]) -> Best | None:
    """The last best that no final check has rejected."""
    made = [_checked(event, lambda data: Best(**_known(Best, data))) for event in _of(events, "best")]
    return next((best for best in reversed(made) if best.candidate_id not in rejected), None)


def _dropout(data: dict[str, Any]) -> Dropout:
    return Dropout(**{**_known(Dropout, data), "masked": tuple(data["masked"])})


def _known(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    """What `kind` has a field for: an event may say more than is needed here."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in data.items() if name in names}


def _retrieval(data: dict[str, Any]) -> Retrieval:
    return Retrieval(data["generation"], data["query"], tuple(passage["doc_id"] for passage in data["passages"]))


def _final_check(data: dict[str, Any]) -> tuple[str, Evaluation]:
    return data["candidate_id"], decode(Evaluation, data["evaluation"])


def _finished(events: Sequence[Event]) -> RunResult | None:
    """The result, unless the run was taken up again after it."""
    ends = [event for event in events if event.type in ("finished", "resumed")]
    if not ends or ends[-1].type == "resumed":
        return None
    return _checked(ends[-1], lambda data: decode(RunResult, data["result"]))


def _unfinished(events: Sequence[Event]) -> dict[int, int]:
    done = {event.data["index"] for event in _of(events, "trial")}
    starts = Counter(_checked(event, _index) for event in _of(events, "trial_started"))
    return {index: times for index, times in sorted(starts.items()) if index not in done}


def _index(data: dict[str, Any]) -> int:
    return int(data["index"])


def _elapsed_s(events: Sequence[Event]) -> float:
    starts = [0, *(place for place, event in enumerate(events) if event.type == "resumed"), len(events)]
    sessions = (events[first:end] for first, end in itertools.pairwise(starts) if end > first)
    return sum(session[-1].t_wall - session[0].t_wall for session in sessions)


def _of(events: Sequence[Event], type: str) -> Iterator[Event]:
    return (event for event in events if event.type == type)


def _last(events: Sequence[Event], type: str, make: Callable[[dict[str, Any]], T]) -> T | None:
    found = list(_of(events, type))
    return _checked(found[-1], make) if found else None


def _checked(event: Event, make: Callable[..., T], *more: Any) -> T:
    try:
        return make(event.data, *more)
    except (KeyError, TypeError, ValueError) as error:
        raise JournalCorrupt(f"event {event.seq} ({event.type}) does not fit its type: {error!r}"[:500]) from error

"""How a search went, from its events: the improvements of the best, the dropout resets, the looks into the library."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aka.types import Candidate, Evaluation, Event, decode


@dataclass(frozen=True)
class Look:
    """One look into the library: (document id, title, score) of each passage, best first."""

    generation: int
    query: str
    passages: tuple[tuple[str, str, float], ...]

    def rank(self, doc_id: str) -> int | None:
        """The place of that document, from 1."""
        ids = [found for found, _, _ in self.passages]
        return ids.index(doc_id) + 1 if doc_id in ids else None


@dataclass(frozen=True)
class Step:
    """One change of the best: to trial `trial`, whose source is the blob `code`; `before` is the step that it replaced.

    `look` is the latest look into the library at that time. `demoted` says that the best before had failed its final
    check, so that this is the runner-up and no improvement.
    """

    trial: int
    code: str
    us: float
    speedup: float | None
    before: Step | None
    look: Look | None
    generation: int
    demoted: bool


@dataclass(frozen=True)
class Reset:
    """One dropout, and what came of it until the next: the trials made, those accepted and the fastest of these.

    `before_us` and `after_us` are the times of the best kernel at the reset and at the next (None: there was none).
    """

    generation: int
    trigger: str
    mode: str
    seed: int
    masked: tuple[int, ...]
    fresh: bool
    trials: tuple[int, ...]
    accepted: tuple[int, ...]
    fastest: int | None
    fastest_us: float | None
    before_us: float | None
    after_us: float | None

    @property
    def improved(self) -> bool:
        return self.after_us is not None and (self.before_us is None or self.after_us < self.before_us)


def look(data: dict[str, Any]) -> Look:
    """Of the data of a `retrieved` event."""
    passages = tuple((passage["doc_id"], passage["title"], passage["score"]) for passage in data["passages"])
    return Look(data["generation"], data["query"], passages)


def steps(events: Sequence[Event]) -> tuple[Step, ...]:
    """Every change of the best, in order."""
    return tuple(_steps(events))


def _steps(events: Sequence[Event]) -> Iterator[Step]:
    last: Step | None = None
    seen: Look | None = None
    generation, demoted = 0, False
    for event in events:
        data = event.data
        if event.type == "retrieved":
            seen = look(data)
        elif event.type == "dropout":
            generation = data["generation"]
        elif event.type == "final_check":
            demoted = not decode(Evaluation, data["evaluation"]).accepted
        elif event.type == "best" and (last is None or data["code"] != last.code):
            last = Step(data["trial"], data["code"], data["us"], data["speedup"], last, seen, generation, demoted)
            demoted = False
            yield last


def resets(events: Sequence[Event]) -> tuple[Reset, ...]:
    """Every dropout, with what it yielded."""
    places = [place for place, event in enumerate(events) if event.type == "dropout"]
    spans = itertools.pairwise([*places, len(events)])
    return tuple(_reset(events[:place], events[place].data, events[place + 1 : end]) for place, end in spans)


def _reset(earlier: Sequence[Event], data: dict[str, Any], later: Sequence[Event]) -> Reset:
    judged = {e.data["index"]: decode(Evaluation, e.data["evaluation"]) for e in later if e.type == "trial"}
    times = {index: e.us for index, e in judged.items() if e.accepted and e.us is not None}
    fastest = min(times, key=times.__getitem__, default=None)
    before = _best_us(earlier)
    return Reset(
        **{name: data[name] for name in ("generation", "trigger", "mode", "seed", "fresh")},
        masked=tuple(data["masked"]),
        trials=tuple(judged),
        accepted=tuple(index for index, evaluation in judged.items() if evaluation.accepted),
        fastest=fastest,
        fastest_us=times.get(fastest) if fastest is not None else None,
        before_us=before,
        after_us=_best_us(later) or before,
    )


def _best_us(events: Sequence[Event]) -> float | None:
    found = [event.data["us"] for event in events if event.type == "best"]
    return found[-1] if found else None


def document_of(candidate: Candidate) -> str:
    """The id of the reference kernel that a candidate was made from, or ""."""
    kind, _, name = candidate.origin.partition(":")
    return name if kind == "catalog" else ""


def difference(before: str, after: str, before_name: str, after_name: str) -> str:
    """The unified diff of two sources; "" if they are equal."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), before_name, after_name, lineterm="")
    return "\n".join(lines)

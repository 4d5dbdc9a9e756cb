"""What a watcher of a run is told: one line for each event, and the state that the live view draws."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from aka.cli.console import one_line
from aka.report import words
from aka.types import Evaluation, Event, Workload, decode

Data = dict[str, Any]
CHOOSING, FINAL = "choosing the next candidate", "checking the best again on fresh inputs"


class Progress:
    """Folds the events of a run, one by one. `elapsed_s` is the time that earlier sessions spent."""

    def __init__(self, total_trials: int, minutes: float, elapsed_s: float = 0.0) -> None:
        self.total_trials = total_trials
        self.minutes = minutes
        self.title = "aka"
        self.baseline = ""
        self.best = "none yet"
        self.current = "starting"
        self.gate = ""
        self.retrieved = ""
        self.done = 0
        self.slower = 0
        self.rejected: Counter[str] = Counter()
        self.generation = 0
        self.last: deque[str] = deque(maxlen=5)
        self._begun = time.monotonic() - elapsed_s
        self._since = time.monotonic()
        self._current_index: int | None = None
        self._tried: dict[int, str] = {}
        self._roofline: dict[int, float] = {}

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    @property
    def now(self) -> str:
        """What is being done, at which gate, and for how long."""
        gate = f", at the {self.gate} gate" if self.gate else ""
        return f"{self.current}{gate} ({time.monotonic() - self._since:.0f} s)"

    @property
    def left(self) -> str:
        """What is left of the budget."""
        minutes = max(0.0, self.minutes - self.elapsed_s / 60)
        trials = max(0, self.total_trials - self.done)
        return f"{trials} of {self.total_trials} trials and {minutes:.1f} of {self.minutes:g} minutes left"

    @property
    def outcomes(self) -> str:
        """How many trials were accepted, were only slower than the best, or were rejected by each gate."""
        rejected = ", ".join(f"{count} at {gate}" for gate, count in self.rejected.most_common())
        generation = f"; generation {self.generation} after dropout" if self.generation else ""
        accepted = self.done - self.slower - self.rejected.total()
        slower = f"{self.slower} slower than the best, " if self.slower else ""
        return f"{accepted} accepted, {slower}rejected: {rejected or 'none'}{generation}"

    def on_gate(self, index: int, name: str) -> None:
        if self._current_index is None and self.done:
            self._begin(FINAL)
        if index == self._current_index or self.current == FINAL:
            self.gate = one_line(name)

    def _begin(self, what: str) -> None:
        if self.current != what:
            self.current, self.gate, self._since = what, "", time.monotonic()

    def on_event(self, event: Event) -> str:
        """Take the event in; returns the line about it."""
        tell = _TELLERS.get(event.type)
        return one_line(tell(self, event.data) if tell else event.type)

    def _started(self, data: Data) -> str:
        workload = decode(Workload, data["workload"])
        count = len(workload.shapes)
        self._begin("timing XLA's version of the op")
        self.title = one_line(f"{workload.name} on {data['chip']}")
        wall = words.wall(data["sandbox"])
        told = f"{self.title}: {count} shape{'' if count == 1 else 's'}, sandbox {wall}, seed {data['seed']}"
        self.title += words.unwalled(data["sandbox"])
        return told

    def _baseline(self, data: Data) -> str:
        evaluation = decode(Evaluation, data["evaluation"])
        source = evaluation.timings[0].source if evaluation.timings else "estimated"
        confidence = ", ".join(sorted({timing.confidence for timing in evaluation.timings}))
        self._begin("looking into the library")
        self.baseline = one_line(f"{words.us(evaluation.us)} ({source}, {confidence})")
        return f"baseline under XLA: {self.baseline}"

    def _retrieved(self, data: Data) -> str:
        self._begin(CHOOSING)
        self.retrieved = one_line(", ".join(passage["doc_id"] for passage in data["passages"]) or "nothing")
        return f"retrieved: {self.retrieved}"

    def _trial_started(self, data: Data) -> str:
        index = data["index"]
        self._current_index = index
        self._tried[index] = one_line(f"{data['family'] or data['origin']} {words.params(data['params'])}")
        self._begin(one_line(f"{self._name(index)}: {self._tried[index]}"))
        return self.current

    def _trial(self, data: Data) -> str:
        evaluation = decode(Evaluation, data["evaluation"])
        index, outcome = data["index"], one_line(_outcome(evaluation, data["speedup"]))
        self.done += 1
        self._current_index = None
        self._begin(CHOOSING)
        if evaluation.slower:
            self.slower += 1
        elif evaluation.fault is not None:
            self.rejected[evaluation.fault.gate] += 1
        if evaluation.profiles:
            self._roofline[index] = min(profile.roofline_fraction for profile in evaluation.profiles)
        self.last.append(f"{index}: {self._tried.get(index, '')}: {outcome}")
        return f"{self._name(index)}: {outcome}"

    def _best(self, data: Data) -> str:
        index = data["trial"]
        found = f"{words.us(data['us'])}, {words.times(data['speedup'])} (trial {index})"
        roofline = f", {self._roofline[index]:.0%} of the roofline" if index in self._roofline else ""
        tried = f": {self._tried[index]}" if index in self._tried else ""
        self.best = f"{found}{roofline}{tried}"
        return f"best so far: {found}"

    def _dropout(self, data: Data) -> str:
        self.generation = data["generation"]
        fresh = ", fresh context" if data["fresh"] else ""
        return f"dropout {data['generation']}: {data['trigger']}; masked trials: {len(data['masked'])}{fresh}"

    def _final_check(self, data: Data) -> str:
        self._begin(CHOOSING)
        return f"final check of {data['candidate_id']}: {_outcome(decode(Evaluation, data['evaluation']), None)}"

    def _interrupted(self, data: Data) -> str:
        self._begin("stopping")
        return f"interrupted by {data['signal']}"

    def _resumed(self, data: Data) -> str:
        mark = words.unwalled(data.get("sandbox", ""))
        self.title = self.title.removesuffix(mark) + mark
        return f"resumed after event {data['from_seq']}{mark}"

    def _finished(self, data: Data) -> str:
        result = data["result"]
        self._begin("done")
        gain = f", {words.times(result['speedup'])}" if result["speedup"] is not None else ""
        return f"finished: {result['status']}{gain}{words.unwalled(result.get('sandbox', ''))}; {result['stop_reason']}"

    def _name(self, index: int) -> str:
        return f"trial {index} ({index + 1} of {self.total_trials})"


def _outcome(evaluation: Evaluation, speedup: float | None) -> str:
    if evaluation.accepted:
        time_us = f" {words.us(evaluation.us)}" if evaluation.us is not None else ""
        return f"{evaluation.verdict}{time_us}" + (f", {words.times(speedup)}" if speedup is not None else "")
    failed = evaluation.failed
    return evaluation.verdict if failed is None else f"{evaluation.verdict} at {failed.gate}: {failed.message[:200]}"


_TELLERS: dict[str, Callable[[Progress, Data], str]] = {
    "run_started": Progress._started,
    "baseline": Progress._baseline,
    "retrieved": Progress._retrieved,
    "trial_started": Progress._trial_started,
    "trial": Progress._trial,
    "best": Progress._best,
    "dropout": Progress._dropout,
    "final_check": Progress._final_check,
    "interrupted": Progress._interrupted,
    "resumed": Progress._resumed,
    "finished": Progress._finished,
}

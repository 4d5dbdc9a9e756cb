"""What a watcher of a run is told: one line for each event, and the state that the live view draws."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from aka.cli.console import one_line
from aka.report import words
from aka.types import Evaluation, Event, Workload, decode

Data = dict[str, Any]


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
        self.last: deque[str] = deque(maxlen=5)
        self._begun = time.monotonic() - elapsed_s
        self._current_index: int | None = None

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    def on_gate(self, index: int, name: str) -> None:
        if index == self._current_index or self._current_index is None:
            self.gate = one_line(name)

    def on_event(self, event: Event) -> str:
        """Take the event in; returns the line about it."""
        tell = _TELLERS.get(event.type)
        return one_line(tell(self, event.data) if tell else event.type)

    def _started(self, data: Data) -> str:
        workload = decode(Workload, data["workload"])
        count = len(workload.shapes)
        self.title = one_line(f"{workload.name} on {data['chip']}")
        return f"{self.title}: {count} shape{'' if count == 1 else 's'}, sandbox {data['sandbox']}, seed {data['seed']}"

    def _baseline(self, data: Data) -> str:
        evaluation = decode(Evaluation, data["evaluation"])
        source = evaluation.timings[0].source if evaluation.timings else "estimated"
        confidence = ", ".join(sorted({timing.confidence for timing in evaluation.timings}))
        self.baseline = one_line(f"{words.us(evaluation.us)} ({source}, {confidence})")
        return f"baseline under XLA: {self.baseline}"

    def _retrieved(self, data: Data) -> str:
        self.retrieved = one_line(", ".join(passage["doc_id"] for passage in data["passages"]) or "nothing")
        return f"retrieved: {self.retrieved}"

    def _trial_started(self, data: Data) -> str:
        self._current_index, self.gate = data["index"], ""
        what = f"{data['family'] or data['origin']} {words.params(data['params'])}"
        self.current = one_line(f"{self._name(data['index'])}: {what}")
        return self.current

    def _trial(self, data: Data) -> str:
        evaluation = decode(Evaluation, data["evaluation"])
        self.done += 1
        self._current_index, self.gate = None, ""
        self.current = "choosing the next candidate"
        line = one_line(f"{self._name(data['index'])}: {_outcome(evaluation, data['speedup'])}")
        self.last.append(line)
        return line

    def _best(self, data: Data) -> str:
        self.best = f"{words.us(data['us'])}, {words.times(data['speedup'])} (trial {data['trial']})"
        return f"best so far: {self.best}"

    def _dropout(self, data: Data) -> str:
        fresh = ", fresh context" if data["fresh"] else ""
        return f"dropout {data['generation']}: {data['trigger']}; masked trials: {len(data['masked'])}{fresh}"

    def _final_check(self, data: Data) -> str:
        self.current = "final check"
        return f"final check of {data['candidate_id']}: {_outcome(decode(Evaluation, data['evaluation']), None)}"

    def _interrupted(self, data: Data) -> str:
        self.current = "stopping"
        return f"interrupted by {data['signal']}"

    def _resumed(self, data: Data) -> str:
        return f"resumed after event {data['from_seq']}"

    def _finished(self, data: Data) -> str:
        result = data["result"]
        self.current = "done"
        gain = f", {words.times(result['speedup'])}" if result["speedup"] is not None else ""
        return f"finished: {result['status']}{gain}; {result['stop_reason']}"

    def _name(self, index: int) -> str:
        return f"trial {index} ({index + 1} of {self.total_trials})"


def _outcome(evaluation: Evaluation, speedup: float | None) -> str:
    if evaluation.accepted:
        time_us = f" {words.us(evaluation.us)}" if evaluation.us is not None else ""
        return f"{evaluation.verdict}{time_us}" + (f", {words.times(speedup)}" if speedup is not None else "")
    failed = next((gate for gate in evaluation.gates if not gate.passed), None)
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

"""The measure-revise loop: retrieve, propose, judge, remember; on a stall, dropout; at the end, verify the best again.

Everything that decides is passed in, everything that happens is journaled, and a resume replays the journal: what is
not in it did not happen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from aka.protocols import Evaluator, Journal, Proposer, Retriever
from aka.search import memory
from aka.search.budget import Budget
from aka.search.dropout import Dropout, Reset
from aka.search.outcome import faster, regressions, speedup
from aka.types import (
    Brief,
    Candidate,
    Chip,
    Evaluation,
    Event,
    GateResult,
    MemoryRecord,
    Passage,
    Profile,
    Trial,
    Workload,
    decode,
    encode,
)

KERNELS, NOTES = 12, 6
"""Documents of one look into the library. Kernels are tried for their binding, which decides: a search by words puts
the right one eighth for a softmax whose file is called op.py."""
MAX_STARTS = 2
"""A trial that was started this often without an end brings the machinery down: it is recorded, not tried again."""


class Store(Protocol):
    """Keeps texts by content hash (the journal's blobs)."""

    def put(self, data: bytes) -> str: ...
    def get(self, digest: str) -> bytes: ...


@dataclass
class Search:
    """One run. `publish` writes best.py for a trial and returns the hash of the file, `retract` removes it;
    `early_stop` is the fraction of the roofline at which nothing worth having is left; `piece` reads the workload file
    of a part of the op."""

    workload: Workload
    chip: Chip
    proposer: Proposer
    evaluator: Evaluator
    retriever: Retriever
    journal: Journal
    store: Store
    budget: Budget
    dropout: Dropout
    publish: Callable[[Trial, Evaluation], str]
    retract: Callable[[], None]
    min_gain: float = 0.03
    early_stop: float = 0.95
    seed: int = 0
    piece: Callable[[Workload, str], Workload] | None = None
    trials: list[Trial] = field(default_factory=list)
    records: list[MemoryRecord] = field(default_factory=list)
    best: Trial | None = None
    rejected_finals: set[str] = field(default_factory=set)
    baseline: Evaluation | None = None
    generation: int = 0
    _since: int = 0
    _passages: tuple[Passage, ...] = ()
    _shown: dict[str, None] = field(default_factory=dict)
    _starts: dict[int, int] = field(default_factory=dict)

    def run(self) -> str:
        """Search until the budget ends, the roofline is near, or nothing is left to try; returns why it stopped."""
        if self.baseline is None:
            self.baseline = self.evaluator.baseline(self.workload)
            self.journal.append("baseline", {"evaluation": encode(self.baseline)})
        while True:
            stop = self._search()
            if self.best is None or self._verified(self.best):
                return stop

    def _search(self) -> str:
        while True:
            reason = self.budget.exhausted(self.trials) or self._near_roofline()
            if reason:
                return reason
            candidate = self._next()
            if candidate is None:
                return "nothing left to try"
            self._try(candidate)

    def _next(self) -> Candidate | None:
        """A candidate; after a dropout if the search has stalled. Where nothing is left in this context, the library is
        read on, and a dropout would bring nothing."""
        candidate = self._proposed()
        trigger = self.dropout.stall(self.trials, self._since)
        if candidate is None or trigger is None:
            return candidate
        self._reset(trigger)
        return self._proposed()

    def _proposed(self) -> Candidate | None:
        candidate = self.proposer.propose(self._brief())
        while candidate is None and self._read_on():
            candidate = self.proposer.propose(self._brief())
        return candidate

    def _near_roofline(self) -> str | None:
        if self.best is None or not self.best.evaluation.profiles:
            return None
        fraction = min(map(self._nearness, self.best.evaluation.profiles))
        return f"best kernel at {fraction:.0%} of the roofline" if fraction >= self.early_stop else None

    def _nearness(self, profile: Profile) -> float:
        """The fraction of the roofline; of memory's alone where the kernel needs less arithmetic than the op as it is
        written (skipped blocks, a recurrence in chunks), whose FLOP bound nothing then."""
        if profile.roofline_fraction <= 1:
            return profile.roofline_fraction
        case = {c.label: c for c in self.workload.shapes}.get(profile.shape, self.workload.primary)
        return 1e6 * case.min_bytes / self.chip.hbm_bytes_per_s / profile.estimated_us

    def _brief(self) -> Brief:
        if not self._passages:
            self._retrieve()
        assert self.baseline is not None and self.baseline.us is not None
        return Brief(
            workload=self.workload,
            chip=self.chip,
            baseline_us=self.baseline.us,
            best=self.best,
            memory=memory.unmasked(self.records),
            passages=self._passages,
            generation=self.generation,
            seed=self.seed,
            trial=len(self.trials),
            shown=tuple(self._shown),
        )

    def _retrieve(self) -> None:
        """Kernels by what the op is, notes by what the last profile or failure says; what earlier contexts saw is left
        out unless nothing else is there."""
        kernels = self._search_library(describe(self.workload), "kernel", KERNELS)
        notes = self._search_library(symptoms(self.trials, self.workload), "note", NOTES)
        self._show((*kernels, *notes))

    def _read_on(self) -> bool:
        """The library's next kernels beside those of this context; False when it has no others."""
        query = describe(self.workload)
        found = self.retriever.search(query, k=KERNELS, kind="kernel", chip=self.chip.name, exclude=set(self._shown))
        if found:
            self._show(tuple(found))
        return bool(found)

    def _show(self, passages: tuple[Passage, ...]) -> None:
        self._passages += passages
        self._shown |= dict.fromkeys(p.doc_id for p in passages)
        shown = [{"doc_id": p.doc_id, "title": p.title, "score": round(p.score, 4)} for p in passages]
        data = {"generation": self.generation, "query": describe(self.workload), "passages": shown}
        self.journal.append("retrieved", data)

    def _search_library(self, query: str, kind: str, count: int) -> list[Passage]:
        found = self.retriever.search(query, k=count, kind=kind, chip=self.chip.name, exclude=set(self._shown))
        return found or self.retriever.search(query, k=count, kind=kind, chip=self.chip.name)

    def _try(self, candidate: Candidate) -> None:
        index = len(self.trials)
        self._starts[index] = self._starts.get(index, 0) + 1
        started = {
            "index": index, "candidate_id": candidate.id, "origin": candidate.origin, "family": candidate.family,
            "params": candidate.params, "plan": candidate.plan, "code": self.store.put(candidate.code.encode()),
        }  # fmt: skip
        self.journal.append("trial_started", started)
        begun = self.budget.clock()
        crashed = self._starts[index] > MAX_STARTS
        evaluation = _crashed(candidate, self.chip) if crashed else self._judged(candidate)
        trial = Trial(index, candidate, evaluation, round(self.budget.clock() - begun, 3))
        self.journal.append("trial", self._trial_data(trial))
        self._remember(trial)

    def _judged(self, candidate: Candidate) -> Evaluation:
        """A piece by its own part of the op, and by the time of the whole: one that alone takes as long is hopeless."""
        bar_us = self._bar()
        workload = self.piece(self.workload, candidate.op) if self.piece and candidate.op else self.workload
        return self.evaluator.evaluate(workload, candidate, bar_us=bar_us)

    def _bar(self) -> float | None:
        """The time to beat: the best kernel's, else XLA's. The first trial is compared whatever its time is: it is the
        user's own kernel, or the one that was expected to do best."""
        if self.best is not None:
            return self.best.evaluation.us
        return self.baseline.us if self.baseline is not None and self.trials else None

    def _trial_data(self, trial: Trial) -> dict[str, Any]:
        return {
            "index": trial.index,
            "candidate": encode(replace(trial.candidate, code="", op="")),
            "code": self.store.put(trial.candidate.code.encode()),
            "evaluation": encode(trial.evaluation),
            "seconds": trial.seconds,
            "speedup": None if trial.candidate.is_piece else speedup(self.baseline, trial.evaluation),
        }

    def _remember(self, trial: Trial) -> None:
        self.trials.append(trial)
        self.proposer.observe(trial)
        self.records.append(memory.record(trial))
        if self._improves(trial):
            self.best = trial
            self._publish(trial)
        self.records = memory.protect(self.records, self.best.index if self.best else None)

    def _publish(self, trial: Trial | None) -> None:
        if trial is None:
            self.retract()
            return
        assert self.baseline is not None
        file = self.publish(trial, self.baseline)
        data = {
            "trial": trial.index, "candidate_id": trial.candidate.id, "us": trial.evaluation.us,
            "speedup": speedup(self.baseline, trial.evaluation),
            "code": self.store.put(trial.candidate.code.encode()), "file": file,
        }  # fmt: skip
        self.journal.append("best", data)

    def _improves(self, trial: Trial) -> bool:
        """Accepted, faster than the baseline by min_gain, on no shape slower by over 2%, and faster than the best."""
        evaluation = trial.evaluation
        gain = None if trial.candidate.is_piece else speedup(self.baseline, evaluation)
        if gain is None or gain < 1 + self.min_gain or trial.candidate.id in self.rejected_finals:
            return False
        assert self.baseline is not None
        return not regressions(self.baseline, evaluation) and faster(evaluation, self.best)

    def _verified(self, best: Trial) -> bool:
        """The finalist on held-out shapes and fresh seeds. If it fails, the runner-up becomes the best and the search
        goes on within its budget."""
        evaluation = self.evaluator.evaluate(self.workload, best.candidate, final=True)
        data = {"candidate_id": best.candidate.id, "evaluation": encode(evaluation)}
        self.journal.append("final_check", data)
        if evaluation.accepted:
            return True
        self._demote(best.candidate.id)
        self._publish(self.best)
        return False

    def _demote(self, candidate_id: str) -> None:
        self.rejected_finals.add(candidate_id)
        self.best = None
        for trial in sorted(self.trials, key=lambda t: t.evaluation.us or float("inf")):
            if self._improves(trial):
                self.best = trial
                return

    def _reset(self, trigger: str) -> None:
        reset = self.dropout.reset(self.records, self.generation + 1, trigger)
        self.journal.append("dropout", reset.__dict__ | {"masked": list(reset.masked)})
        self._apply(reset)

    def _apply(self, reset: Reset) -> None:
        hidden = set(reset.masked)
        self.records = [replace(r, masked=r.masked or r.trial in hidden) for r in self.records]
        self.generation, self._since, self._passages = reset.generation, len(self.trials), ()
        self.proposer.reset(reset.generation, reset.masked, reset.fresh)

    def replay(self, events: Sequence[Event]) -> None:
        """Bring the search to where a journal ended; the proposer is told everything again, in order."""
        for event in events:
            if event.type == "baseline":
                self.baseline = decode(Evaluation, event.data["evaluation"])
            elif event.type == "trial_started":
                self._starts[event.data["index"]] = self._starts.get(event.data["index"], 0) + 1
            elif event.type == "trial":
                self._replay_trial(event.data)
            elif event.type == "dropout":
                self._apply(Reset(**{**event.data, "masked": tuple(event.data["masked"])}))
            elif event.type == "final_check" and not decode(Evaluation, event.data["evaluation"]).accepted:
                self._demote(event.data["candidate_id"])
            elif event.type == "interrupted":  # the user's doing, and no mark against the trial that was cut short
                self._starts.pop(len(self.trials), None)
        # What the present generation has seen it sees again.
        earlier = [e for e in events if e.type == "retrieved" and e.data["generation"] < self.generation]
        self._shown = dict.fromkeys(p["doc_id"] for e in earlier for p in e.data["passages"])
        self._restore_best(next((e.data["candidate_id"] for e in reversed(events) if e.type == "best"), None))

    def _replay_trial(self, data: dict[str, Any]) -> None:
        code = self.store.get(data["code"]).decode()
        candidate = replace(decode(Candidate, data["candidate"]), code=code)
        trial = Trial(data["index"], candidate, decode(Evaluation, data["evaluation"]), data["seconds"])
        self.trials.append(trial)
        self.proposer.observe(trial)
        if self._improves(trial):
            self.best = trial
        self.records.append(memory.record(trial))
        self.records = memory.protect(self.records, self.best.index if self.best else None)

    def _restore_best(self, journaled: str | None) -> None:
        """best.py is written again from the journal, which wins over whatever lies in the folder; `journaled` is the
        candidate that it last called the best, which a crash may have kept from being the true one."""
        if self.best is not None and self.best.candidate.id == journaled:
            assert self.baseline is not None
            self.publish(self.best, self.baseline)
        else:
            self._publish(self.best)


def _crashed(candidate: Candidate, chip: Chip) -> Evaluation:
    text = f"the judge itself went down {MAX_STARTS} times while it judged this candidate"
    gate = GateResult("machinery", False, 0.0, "crashed_evaluator", text)
    return Evaluation(candidate.id, chip.name, (gate,))


def describe(workload: Workload) -> str:
    """The retrieval query for kernels: the op's name and primitives, its arrays, and its own first lines."""
    primitives = " ".join(list(workload.primitives)[:16])
    return f"{workload.name} {' '.join(workload.argument_names)} {primitives} {workload.primary.inputs}"


def symptoms(trials: Sequence[Trial], workload: Workload) -> str:
    """The retrieval query for notes: the last failure's words, else what bounds the last profile, else the op."""
    for trial in reversed(trials):
        fault = trial.evaluation.fault
        if fault is not None:
            return f"{fault.code} {fault.message}"[:400]
        if trial.evaluation.profiles:
            return f"{trial.evaluation.profiles[0].bound} bound {workload.name}"
    return f"make {workload.name} faster"

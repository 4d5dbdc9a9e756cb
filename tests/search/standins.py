"""Stand-ins for the search's collaborators: a table of times instead of a judge, lists instead of files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aka.types import (
    ArraySpec,
    Brief,
    Candidate,
    Chip,
    Evaluation,
    Event,
    GateResult,
    Passage,
    Profile,
    ShapeCase,
    Signature,
    Timing,
    Trial,
    Workload,
)

ROW = Signature((ArraySpec((256, 512), "float32"),), {"tuple": [0]})
OUT = Signature((ArraySpec((256, 512), "float32"),), 0)
CASE = ShapeCase("rows=256", {}, ROW, OUT, 0.0, 2 * 4 * 256 * 512, {"config:rows": 256})
WORKLOAD = Workload("toy", "toy.py", "def workload(x): return x", (CASE,), (CASE,), {"exp": 1}, (), ("x",))
CHIP = Chip("v5e", "TPU v5 lite", "v5e:2x2", 1, 1.5e9, {"bfloat16": 197e12}, 2**34, 819e9, 2**27, 2**24, 2**20, True)


def gates(code: str | None) -> tuple[GateResult, ...]:
    if code is None:
        return (GateResult("correctness", True, 0.0),)
    return (GateResult("correctness", False, 0.0, code, f"because {code}"),)


def profiled(*fractions: float) -> tuple[Profile, ...]:
    """A profile for each shape, at these fractions of the roofline."""
    return tuple(
        Profile("v5e", f"shape {i}", "estimated", "exact loop", 50.0, None, 0, "hbm", f, {}, None, None, None)
        for i, f in enumerate(fractions)
    )


SLOWER = (GateResult("performance", False, 0.0, "slower", "the best has less"),)


@dataclass
class TableEvaluator:
    """Judges by table: parameters' "b" -> microseconds, or a reason code. `finals` overrides the second look; `bars`
    are the times that it was given to beat, which it rejects by only if it is `strict`."""

    table: dict[int, float | str]
    baseline_us: float = 100.0
    finals: dict[int, str] = field(default_factory=dict)
    judged: list[int] = field(default_factory=list)
    bars: list[float | None] = field(default_factory=list)
    strict: bool = False
    profiles: dict[int, tuple[Profile, ...]] = field(default_factory=dict)
    interrupt_at: int | None = None

    def baseline(self, workload: Workload) -> Evaluation:
        timing = Timing("v5e", workload.primary.label, self.baseline_us, "estimated", "exact loop")
        return Evaluation("baseline", "v5e", gates(None), (timing,))

    def evaluate(
        self, workload: Workload, candidate: Candidate, *, final: bool = False, bar_us: float | None = None
    ) -> Evaluation:
        b = candidate.params["b"]
        if self.interrupt_at is not None and len(self.judged) == self.interrupt_at:
            raise KeyboardInterrupt
        if not final:
            self.judged.append(b)
            self.bars.append(bar_us)
        value = self.finals.get(b, self.table[b]) if final else self.table[b]
        if isinstance(value, str):
            return Evaluation(candidate.id, "v5e", gates(value))
        timing = Timing("v5e", workload.primary.label, value, "estimated", "exact loop")
        slow = self.strict and bar_us is not None and value >= bar_us
        return Evaluation(candidate.id, "v5e", SLOWER if slow else gates(None), (timing,), self.profiles.get(b, ()))

    def close(self) -> None:
        self.judged.clear()


@dataclass
class ListProposer:
    """Proposes b = 0, 1, 2, … of a list, leaving out what it was told of."""

    order: Sequence[int]
    name: str = "list"
    told: list[int] = field(default_factory=list)
    resets: list[tuple[int, tuple[int, ...], bool]] = field(default_factory=list)
    briefs: list[Brief] = field(default_factory=list)

    def propose(self, brief: Brief) -> Candidate | None:
        self.briefs.append(brief)
        left = [b for b in self.order if b not in self.told]
        if not left:
            return None
        return Candidate(f"def workload(x): return x  # {left[0]}", f"b={left[0]}", "list", params={"b": left[0]})

    def observe(self, trial: Trial) -> None:
        self.told.append(trial.candidate.params["b"])

    def reset(self, generation: int, masked: Sequence[int], fresh: bool) -> None:
        self.resets.append((generation, tuple(masked), fresh))


@dataclass
class ListRetriever:
    """Documents d0, d1, … in order, honouring `exclude`."""

    count: int = 20

    def search(
        self, query: str, *, k: int = 5, kind: str | None = None, chip: str | None = None, exclude: Iterable[str] = ()
    ) -> list[Passage]:
        ids = [f"{kind}{i}" for i in range(self.count) if f"{kind}{i}" not in set(exclude)]
        return [Passage(i, i, kind or "note", i, "", "", 1.0, "") for i in ids[:k]]  # type: ignore[arg-type]


@dataclass
class ListJournal:
    lines: list[Event] = field(default_factory=list)

    def append(self, type: str, data: dict[str, Any]) -> Event:
        event = Event(len(self.lines), type, data)
        self.lines.append(event)
        return event

    def events(self) -> list[Event]:
        return list(self.lines)

    def of(self, type: str) -> list[dict[str, Any]]:
        return [e.data for e in self.lines if e.type == type]


@dataclass
class DictStore:
    texts: dict[str, bytes] = field(default_factory=dict)

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.texts[digest] = data
        return digest

    def get(self, digest: str) -> bytes:
        return self.texts[digest]

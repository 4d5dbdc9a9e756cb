"""The judge without a device: an `aka.protocols.Evaluator` made of the compiler, the NumPy machine and the meter."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from aka.evaluate import sandbox, weak
from aka.evaluate.client import PlannerClient
from aka.evaluate.correctness import Checker
from aka.evaluate.judgement import Judgement
from aka.evaluate.patience import Patience
from aka.evaluate.performance import Meter
from aka.evaluate.pool import Pool
from aka.evaluate.references import References
from aka.types import Candidate, Chip, Evaluation, GateResult, Timing, Workload

TRIAL_S = 240.0
"""Seconds for one judgement but a final one, whose candidate has shown already that it can be judged in time."""
WHOLE_S = 300.0
"""Seconds for the production shapes of a finalist where nothing else limits them."""
CHECK_S = 600.0
"""Seconds for a candidate that comes from nowhere and is judged like a final one."""


class OfflineJudge:
    """`static_gate=False` is for tests only: it shows that the other walls hold without the first one. `whole_s` is
    what a final judgement may spend on the production shapes as they are."""

    def __init__(
        self, pool: Pool, client: PlannerClient, chip: Chip, *, static_gate: bool = True, trial_s: float = TRIAL_S
    ) -> None:
        self._pool, self._client, self._chip = pool, client, chip
        self._static_gate, self._trial_s = static_gate, trial_s
        self._compiled: dict[str, float] = {}
        self._meter = Meter(pool, client, chip)
        self._checkers: dict[tuple[str, bool], Checker] = {}
        self.whole_s = WHOLE_S
        self.progress: Callable[[str], None] = lambda gate: None

    def baseline(self, workload: Workload) -> Evaluation:
        """The op's own times under XLA on the chip: a lower bound wherever the meter is unsure."""
        profiles = tuple(self._meter.baseline(workload, case) for case in workload.shapes)
        timings = tuple(
            Timing(self._chip.name, case.label, p.estimated_us, p.source, p.confidence)
            for case, p in zip(workload.shapes, profiles, strict=True)
        )
        gate = GateResult("baseline", True, 0.0)
        return Evaluation("baseline", self._chip.name, (gate,), timings, profiles, sandbox.probe().name)

    def evaluate(
        self, workload: Workload, candidate: Candidate, *, final: bool = False, bar_us: float | None = None
    ) -> Evaluation:
        return self._judge(workload, candidate, final=final, bar_us=bar_us)

    def check(self, workload: Workload, candidate: Candidate) -> Evaluation:
        """Everything that a finalist has to stand, for a candidate that nobody has seen before."""
        return self._judge(workload, candidate, final=True, limit_s=CHECK_S)

    def profile(self, workload: Workload, candidate: Candidate) -> Evaluation:
        """Everything but the correctness gate: times and profiles of a kernel that somebody wants to look at."""
        return self._judge(workload, candidate, skipped=frozenset({"correctness"}))

    def _judge(
        self, workload: Workload, candidate: Candidate, *, final: bool = False, bar_us: float | None = None,
        skipped: frozenset[str] = frozenset(), limit_s: float | None = None,
    ) -> Evaluation:  # fmt: skip
        judgement = Judgement(
            pool=self._pool, client=self._client, checker=self._checker(workload, final), meter=self._meter,
            workload=workload, chip=self._chip, candidate=candidate, final=final, bar_us=bar_us, whole_s=self.whole_s,
            static_gate=self._static_gate, skipped=skipped, progress=self.progress, compiled=self._compiled,
            patience=Patience(limit_s if final else self._trial_s),
        )  # fmt: skip
        return judgement.run(sandbox.probe().name)

    def admit(self, workload: Workload) -> Workload:
        """The workload with its weaknesses named. WorkloadError if no kernel could be judged by it."""
        return weak.named(workload, self._checker(workload, final=False).references)

    def _checker(self, workload: Workload, final: bool) -> Checker:
        """One set of secret inputs for a run's trials, and another for its finalists."""
        key = (workload.source_hash, final)
        if key not in self._checkers:
            references = References(self._pool, self._client, workload, secrets.randbits(128))
            self._checkers[key] = Checker(self._pool, references)
        return self._checkers[key]

    def close(self) -> None:
        self._pool.close()

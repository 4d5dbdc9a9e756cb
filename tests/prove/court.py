"""The judge of the proof: the product's own gates, but nothing is timed and the secret inputs have a fixed seed."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from artifacts import CHIP

from aka.cli import compose
from aka.evaluate import sandbox
from aka.evaluate.correctness import Checker
from aka.evaluate.judgement import Judgement
from aka.evaluate.patience import Patience
from aka.evaluate.performance import Meter
from aka.evaluate.pool import Pool, Worker
from aka.evaluate.references import References
from aka.types import Candidate, Evaluation, Profile, ShapeCase, Workload
from aka.workload.read import SourceFile

TRIAL_S = 240.0
EXPORTER_S = 60.0


class Untimed(Meter):
    """Leaves the performance gate out: no mutant is to be rejected for its time, and none is accepted for it."""

    def profile(self, artifact: bytes, case: ShapeCase, timeout_s: float = 0.0) -> Profile:
        return Profile(CHIP, case.label, "estimated", "not timed", math.inf, None, 0, "", 0.0, {}, None, None, None)

    def end(self) -> None:
        return None


class OneExporter:
    """A pool whose exporter serves several candidates, for a minute: all of them are ours, and to start a process for
    each costs more than to judge it. Everything else is the pool's own."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._until = pool, time.monotonic() + EXPORTER_S
        self.keep, self.renew = pool.keep, pool.renew

    @contextlib.contextmanager
    def borrow(self, role: str) -> Iterator[Worker]:
        if time.monotonic() > self._until:
            self._pool.renew(role)
            self._until = time.monotonic() + EXPORTER_S
        yield self._pool.keep(role)


class Court:
    """Judges candidates by workloads given as text; one set of inputs and references for each workload."""

    def __init__(self, bench: compose.Bench) -> None:
        self._bench = bench
        self._pool: Any = OneExporter(bench.pool)
        self._meter = Untimed(bench.pool, bench.client, bench.chip)
        self._known: dict[str, tuple[Workload, Checker]] = {}

    def judge(self, op: str, name: str, code: str) -> Evaluation:
        """The evaluation of `code` by the workload in `op`, a file that would be called `name`.py."""
        workload, checker = self._admitted(op, name)
        judgement = Judgement(
            pool=self._pool, client=self._bench.client, checker=checker, meter=self._meter, workload=workload,
            chip=self._bench.chip, candidate=Candidate(code, "as made", "prove"), final=False,
            patience=Patience(TRIAL_S),
        )  # fmt: skip
        return judgement.run(sandbox.probe().name)

    def _admitted(self, op: str, name: str) -> tuple[Workload, Checker]:
        if op not in self._known:
            workload = self._bench.client.describe(SourceFile(Path(f"{name}.py"), op, frozenset()))
            seed = int.from_bytes(hashlib.sha256(op.encode()).digest()[:16], "big")
            references = References(self._bench.pool, self._bench.client, workload, seed)
            self._known = {op: (workload, Checker(self._bench.pool, references))}
        return self._known[op]


@contextlib.contextmanager
def court() -> Iterator[Court]:
    with compose.bench(CHIP) as bench:
        yield Court(bench)

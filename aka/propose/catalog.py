"""The offline proposer: bind retrieved reference kernels to the workload, then tune their parameters.

It needs no model and no device. Verification decides, not names: a kernel binds only if its reference computes the
workload, and the judge then tries the result like any other candidate.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aka.errors import WorkloadError
from aka.propose import tuner
from aka.propose.render import render
from aka.types import Binding, Bindings, Brief, Candidate, MemoryRecord, ReferenceKernel, Space, Trial, Workload

ORIGIN = "catalog:"
EXPLORE = 0.25
"""Share of proposals that go to another binding than the best one."""


class Planner(Protocol):
    """Answers from the sandbox where reference kernels are run."""

    def bind(self, workload: Workload, kernels: Sequence[ReferenceKernel]) -> Bindings: ...
    def space(self, workload: Workload, kernel: ReferenceKernel, binding: Binding) -> Space: ...


@dataclass(frozen=True)
class Arm:
    """One bound kernel, with what can be tuned about it."""

    kernel: ReferenceKernel
    binding: Binding
    space: Space


class OfflineProposer:
    """Implements `aka.protocols.Proposer`. `refused` tells why retrieved kernels did not bind."""

    name = "offline"

    def __init__(self, planner: Planner, library: Callable[[str], ReferenceKernel | None]) -> None:
        self._planner = planner
        self._library = library
        self._arms: dict[str, Arm] = {}
        self._looked_at: set[str] = set()
        self._tried: dict[str, set[str]] = {}
        self._used: dict[str, None] = {}
        self._fresh_since = 0
        self._last = -1
        self.refused: dict[str, str] = {}

    def observe(self, trial: Trial) -> None:
        made = trial.candidate
        self._tried.setdefault(made.binding, set()).add(tuner.key(made.params))
        self._last = trial.index
        if made.origin.startswith(ORIGIN):
            self._used[made.origin.removeprefix(ORIGIN)] = None

    def reset(self, generation: int, masked: Sequence[int], fresh: bool) -> None:
        """Masked records no longer reach the tuner (the brief leaves them out); a fresh start also hides everything
        but the present generation from it, so that it samples elsewhere before it models again."""
        if fresh:
            self._fresh_since = self._last + 1

    def propose(self, brief: Brief) -> Candidate | None:
        """Each new binding's defaults first; then mostly the fastest binding's next parameters."""
        self._bind_new(brief)
        for arm in self._arms.values():
            if arm.binding.key not in self._tried:
                return self._candidate(arm, arm.space.tuned, brief, "defaults")
        for arm in self._order(brief):
            params = tuner.next_params(
                arm.space.space,
                [r for r in brief.memory if r.binding == arm.binding.key and r.trial >= self._fresh_since],
                self._tried[arm.binding.key],
                baseline_us=brief.baseline_us,
                seed=brief.seed * 1_000_003 + brief.trial,
            )
            if params is not None:
                return self._candidate(arm, params, brief, "tuned")
        return None

    def _bind_new(self, brief: Brief) -> None:
        """Kernels of the passages, and those that a resumed run has used: a later retrieval leaves them out."""
        retrieved = (p.doc_id for p in brief.passages if p.kind == "kernel")
        ids = [i for i in dict.fromkeys([*self._used, *retrieved]) if i not in self._looked_at]
        kernels = [k for k in map(self._library, ids) if k is not None and brief.chip.name in k.chips]
        self._looked_at |= set(ids)
        if not kernels:
            return
        answer = self._planner.bind(brief.workload, kernels)
        self.refused |= answer.refused
        by_id = {k.id: k for k in kernels}
        for binding in answer.bindings:
            self._add_arm(brief.workload, by_id[binding.kernel], binding)

    def _add_arm(self, workload: Workload, kernel: ReferenceKernel, binding: Binding) -> None:
        try:
            space = self._planner.space(workload, kernel, binding)
        except WorkloadError as error:
            self.refused[kernel.id] = f"has no search space at these shapes: {error}"
            return
        if empty := [name for name, values in space.space.items() if not values]:
            self.refused[kernel.id] = f"has no values for {', '.join(empty)} at these shapes"
            return
        self._arms[binding.key] = Arm(kernel, binding, space)

    def _order(self, brief: Brief) -> list[Arm]:
        """The fastest binding first, now and then another one. Seeded by run and trial."""
        chance = random.Random(brief.seed * 7_919 + brief.trial)
        arms = sorted(self._arms.values(), key=lambda a: _best_us(brief.memory, a.binding.key))
        if len(arms) > 1 and chance.random() < EXPLORE:
            arms.insert(0, arms.pop(chance.randrange(1, len(arms))))
        return arms

    def _candidate(self, arm: Arm, params: dict[str, Any], brief: Brief, how: str) -> Candidate:
        best = brief.best.candidate.id if brief.best else None
        settings = ", ".join(f"{k}={v}" for k, v in params.items())
        return Candidate(
            code=render(arm.kernel, arm.binding, params, brief.workload),
            plan=f"{arm.kernel.title}: {how} {settings}",
            origin=ORIGIN + arm.kernel.id,
            parent=best,
            family=arm.kernel.family,
            binding=arm.binding.key,
            params=params,
        )


def _best_us(records: Sequence[MemoryRecord], binding: str) -> float:
    return min((r.us for r in records if r.binding == binding and r.us is not None), default=float("inf"))

"""The offline proposer: bind kernels to the workload, write templates from it, then tune the best of them.

It needs no model and no device. Verification decides, not names: a kernel binds only if its reference computes the
workload, and the judge then tries the result like any other candidate.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aka.propose import chain, explore, population, repair, tuner
from aka.propose.arms import STARTING, Arm, Arms, Planner
from aka.propose.past import Past
from aka.types import Brief, Candidate, MemoryRecord, ReferenceKernel, Trial

FRESH_STARTS = 4
"""Trials of a fresh start that go where nothing was tried, before the tuner models again."""


@dataclass(frozen=True)
class Move:
    """A candidate that could be made: `how` begins its plan."""

    arm: Arm
    params: Mapping[str, Any]
    how: str
    parent: str | None


class OfflineProposer:
    """Implements `aka.protocols.Proposer`. `branches` are kept at once; `refused` tells why retrieved kernels did not
    bind and why templates do not fit."""

    name = "offline"

    def __init__(
        self, planner: Planner, library: Callable[[str], ReferenceKernel | None], *, branches: int = 3
    ) -> None:
        self._arms = Arms(planner, library)
        self._past = Past()
        self._width = branches

    @property
    def refused(self) -> dict[str, str]:
        return self._arms.refused

    def observe(self, trial: Trial) -> None:
        self._past.add(trial)

    def reset(self, generation: int, masked: Sequence[int], fresh: bool) -> None:
        """Masked failures no longer keep their region closed, and masked records no longer reach the tuner (the brief
        leaves them out). A fresh start goes where nothing was tried, and hides earlier generations from the tuner."""
        self._past.masked |= set(masked)
        if fresh:
            self._past.fresh_since = len(self._past.trials)

    def propose(self, brief: Brief) -> Candidate | None:
        """The first move whose program has not been tried: repairs of the last failure, defaults of new arms, starts
        elsewhere after a reset, and then the parameters that the tuner advises."""
        self._arms.look(brief)
        if self._past.has_template:  # of a run that is resumed
            self._arms.open_templates(brief)
        moves = itertools.chain(self._repairs(brief), self._defaults(brief), self._starts(brief), self._tuned(brief))
        for move in moves:
            code = move.arm.write(move.params)
            if not self._past.has(code):
                return _candidate(move, code)
        return None

    def _repairs(self, brief: Brief) -> Iterator[Move]:
        """Only of a promising failure: in an arm that is a branch, or has no success yet."""
        last = self._past.trials[-1] if self._past.trials else None
        gate = last.evaluation.fault if last else None
        arm = self._arms.get(last.candidate.binding) if last else None
        if last is None or gate is None or arm is None or not self._promising(last, brief):
            return
        depth, params = self._past.repairs_behind(last), last.candidate.params
        found = repair.changes(gate, params, arm.space) if depth < repair.MAX_REPAIRS else iter(())
        if depth == 0 and params == arm.tuned:
            found = itertools.chain(found, repair.named(gate, params, arm.space))
        for why, changed in found:
            yield Move(arm, changed, f"repair of trial {last.index}: {why}", last.candidate.id)

    def _promising(self, trial: Trial, brief: Brief) -> bool:
        if trial.index < self._past.fresh_since or trial.index in self._past.masked:
            return False
        times = list(population.best_times(brief.memory))
        return trial.candidate.binding not in times[self._width :]

    def _defaults(self, brief: Brief) -> Iterator[Move]:
        yield from self._first_tries(brief)
        self._arms.open_templates(brief)
        yield from self._first_tries(brief)

    def _first_tries(self, brief: Brief) -> Iterator[Move]:
        for arm in self._arms.in_order():
            if not self._past.tried(arm.key):
                pieces = self._arms.pieces(arm)
                yield from self._chained(arm, pieces, brief) if pieces else [Move(arm, arm.tuned, "defaults", None)]

    def _chained(self, arm: Arm, pieces: Sequence[Arm], brief: Brief) -> Iterator[Move]:
        """A template of several kernels: each alone, then all with the best of each. Both only as long as those that
        have a time take less than the best kernel so far: what is slower than that needs tuning first."""
        best = brief.best.evaluation.us if brief.best else None
        if arm.between_us + chain.best_us(pieces, self._past) >= (best or brief.baseline_us):
            return
        for piece in pieces:
            if not self._past.tried(piece.key):
                yield Move(piece, piece.tuned, "defaults", None)
        if not chain.closed(pieces, self._past):
            yield Move(arm, chain.together(pieces, self._past), "the best of each kernel", None)

    def _starts(self, brief: Brief) -> Iterator[Move]:
        """Far from what was tried: of the best arm and of the others in turn, these first in every other generation."""
        place = self._past.starts()
        if not self._past.fresh_since or place >= FRESH_STARTS:
            return
        seed = _seed(brief)
        for arm in _rotated(self._ranked(brief), place, brief.generation):
            known = [r for r in brief.memory if r.binding == arm.key]
            taken = functools.partial(self._taken, arm)
            for params in explore.farthest(arm.space, self._past.points(arm.key), known, seed, taken):
                yield Move(arm, params, "fresh start", self._past.best_id(arm.key))

    def _tuned(self, brief: Brief) -> Iterator[Move]:
        """Within this generation's memory: the arm whose turn it is, and others only where its grid is used up."""
        memory = [r for r in brief.memory if r.trial >= self._past.fresh_since]
        keys = [a.key for a in self._ranked(brief)]
        tried = {k: self._tries(k) for k in keys}
        chance, times = random.Random(_seed(brief)), population.best_times(memory)
        own = next((a.key for a in self._arms.in_order() if a.group == STARTING), None)
        turns = population.order(keys, times, tried.__getitem__, self._width, chance, own)
        for arm in filter(None, map(self._arms.get, turns)):
            pieces = self._arms.pieces(arm)
            if pieces:
                yield from self._chained(arm, pieces, brief)
            for one in [*chain.slowest_first(pieces, self._past), arm]:
                if (params := self._next(one, memory, brief)) is not None:
                    yield Move(one, params, "tuned", self._past.best_id(one.key))

    def _tries(self, key: str) -> int:
        """Of an arm, its kernels alone included."""
        arm = self._arms.get(key)
        pieces = self._arms.pieces(arm) if arm is not None else ()
        return len(self._past.tried(key)) + sum(len(self._past.tried(p.key)) for p in pieces)

    def _next(self, arm: Arm, memory: Sequence[MemoryRecord], brief: Brief) -> dict[str, Any] | None:
        return tuner.next_params(
            arm.space,
            [r for r in memory if r.binding == arm.key],
            self._past.tried(arm.key),
            baseline_us=brief.baseline_us,
            seed=_seed(brief),
            same=lambda params: self._past.has(arm.write(params)),
        )

    def _taken(self, arm: Arm, params: Mapping[str, Any]) -> bool:
        return tuner.key(params) in self._past.tried(arm.key)

    def _ranked(self, brief: Brief) -> list[Arm]:
        """The arms that are alive, the fastest first, those without a time last."""
        times = list(population.best_times(brief.memory))
        alive = [a for a in self._arms.in_order() if not population.dropped(brief.memory, a.key)]
        return sorted(alive, key=lambda a: times.index(a.key) if a.key in times else len(times))


def _rotated(arms: Sequence[Arm], place: int, generation: int) -> list[Arm]:
    """The best arm at every other place, and between its turns one of the others after another."""
    others = list(arms[1:])
    if not others:
        return list(arms)
    turn, first = divmod(place + generation - 1, 2)
    others = others[turn % len(others) :] + others[: turn % len(others)]
    return [arms[0], *others] if first == 0 else [*others, arms[0]]


def _candidate(move: Move, code: str) -> Candidate:
    settings = ", ".join(f"{k}={v}" for k, v in move.params.items())
    about = f"{move.arm.title}: {move.how}" if not move.how.startswith("repair") else f"{move.how}; {move.arm.title}:"
    return Candidate(
        code=code,
        plan=f"{about} {settings}".strip(),
        origin=move.arm.origin,
        parent=move.parent,
        family=move.arm.family,
        binding=move.arm.key,
        params=dict(move.params),
        op=move.arm.op,
    )


def _seed(brief: Brief) -> int:
    return brief.seed * 1_000_003 + brief.trial

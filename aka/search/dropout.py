"""Optimization dropout: on a stall, mask part of what the search has learned and start a fresh context.

A context made of many failures argues for more of the same. The controller only decides; the loop journals its
decision and tells the proposer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from aka.search import memory
from aka.types import MemoryRecord, Trial

Mode = Literal["off", "mask", "fresh", "both"]
SAME_GATE_RUN = 4
"""A run of this many failures at one gate is a stall, even before `patience` trials are over."""


@dataclass(frozen=True)
class Reset:
    """One dropout decision. `generation` counts from 1; `masked` are trial indices."""

    generation: int
    trigger: str
    mode: Mode
    seed: int
    masked: tuple[int, ...]
    fresh: bool


@dataclass(frozen=True)
class Dropout:
    """`min_gain` is the relative improvement of the best that counts, `patience` the trials without one that make a
    stall, `fraction` the share of unprotected records that a reset masks."""

    mode: Mode = "both"
    fraction: float = 0.5
    patience: int = 8
    min_gain: float = 0.03
    seed: int = 0

    def stall(self, trials: Sequence[Trial], since: int) -> str | None:
        """Why the search has stalled, looking only at trials from index `since` on (the last reset), or None."""
        recent = [t for t in trials if t.index >= since]
        if self.mode == "off" or not recent:
            return None
        gain = last_gain(trials, self.min_gain)
        idle = sum(not t.candidate.is_piece for t in trials if t.index > max(gain, since - 1))
        if idle >= self.patience:
            return f"no gain of {self.min_gain:.0%} in {idle} trials"
        faults = [t.evaluation.fault for t in recent[-SAME_GATE_RUN:]]
        tail = [fault.gate if fault else None for fault in faults]
        if len(tail) == SAME_GATE_RUN and tail[0] is not None and len(set(tail)) == 1:
            return f"{SAME_GATE_RUN} failures in a row at the {tail[0]} gate"
        return None

    def reset(self, records: Sequence[MemoryRecord], generation: int, trigger: str) -> Reset:
        """The decision for generation `generation`: seeded, so that a replay gives the same mask."""
        seed = self.seed * 1_000_003 + generation
        masked = memory.choose_masked(records, self.fraction, seed) if self.mode in ("mask", "both") else ()
        return Reset(generation, trigger, self.mode, seed, masked, fresh=self.mode in ("fresh", "both"))


def last_gain(trials: Sequence[Trial], min_gain: float) -> int:
    """Index of the last trial that improved the best time so far by `min_gain`, or -1. What was rejected for its time
    alone has one: before there is a best kernel it may come nearer to XLA's."""
    best, index = None, -1
    for trial in trials:
        us = None if trial.candidate.is_piece else trial.evaluation.us
        if us is not None and (best is None or us <= best * (1 - min_gain)):
            best, index = us, trial.index
    return index

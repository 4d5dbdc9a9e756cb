"""The seams of the search. `cli/` builds the real ones and passes them in; tests pass stand-ins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from aka.types import Brief, Candidate, Evaluation, Event, Passage, Trial, Workload


class Proposer(Protocol):
    """Writes the next candidate. Deterministic given the brief's seed and the trials it has been told of."""

    name: str

    def propose(self, brief: Brief) -> Candidate | None:
        """The next candidate, or None when it has nothing more to try in this generation."""
        ...

    def observe(self, trial: Trial) -> None:
        """Learn from a finished trial (its own, or one replayed from the journal on resume)."""
        ...

    def reset(self, generation: int, masked: Sequence[int], fresh: bool) -> None:
        """A dropout: the trials of these indices are hidden from now on; `fresh` asks for a start elsewhere."""
        ...


class Evaluator(Protocol):
    """Judges a candidate on the chip that it was built for."""

    def baseline(self, workload: Workload) -> Evaluation:
        """The reference's own times under XLA: a lower bound wherever the meter is unsure."""
        ...

    def evaluate(
        self, workload: Workload, candidate: Candidate, *, final: bool = False, bar_us: float | None = None
    ) -> Evaluation:
        """All gates in order, stopping at the first failure. `final` adds held-out shapes and a fresh seed.

        `bar_us` is the time to beat, of the best kernel so far or of XLA (`Evaluation.us`). A candidate that compiles
        and isn't faster may be rejected at the gate "performance" with the code "slower", whatever its values are:
        nobody needs them compared.
        """
        ...

    def close(self) -> None: ...


class Retriever(Protocol):
    """Looks passages up in the library."""

    def search(
        self, query: str, *, k: int = 5, kind: str | None = None, chip: str | None = None, exclude: Iterable[str] = ()
    ) -> list[Passage]:
        """The k best passages, best first; `kind` is "note" or "kernel"; `exclude` holds document ids."""
        ...


class Journal(Protocol):
    """Append-only record of a run: what is not in it did not happen."""

    def append(self, type: str, data: dict[str, Any]) -> Event:
        """Write one event durably (fsync) before returning."""
        ...

    def events(self) -> list[Event]: ...

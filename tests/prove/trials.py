"""One mutant or one honest kernel before the judge, answered from the ledger where it is known."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import artifacts
import hashes
from court import Court
from faces import Face, faces, source_of
from honest import Example
from ledger import Ledger
from mutants import Mutant, chosen, mutants

from aka.types import Evaluation

ACCEPTED, AS_ORIGINAL = "ACCEPT", "like its original"
COUNTED = 15
"""Mutants that count, of each kernel that has so many."""
BEFORE = frozenset({"static", "export"})
"""A mutant that one of these gates refuses was never a program for the TPU: it doesn't count as rejected."""


@dataclass(frozen=True)
class Trials:
    """Asks the judge what the ledger doesn't know. `judge` is the hash of the judge's sources."""

    court: Court
    ledger: Ledger
    judge: str

    def mutants_of(self, file: str, count: int = COUNTED) -> Iterator[dict[str, Any]]:
        """Answers on mutants of a kernel in a fixed order, until `count` of them counted or there are no more."""
        made = mutants(file, source_of(file))
        counted = 0
        for mutant in chosen(made, len(made)):
            answer = self._held_to_original(self.mutant(mutant))
            counted += answer["counts"]
            yield answer
            if counted == count:
                return

    def _held_to_original(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Where the kernel itself is rejected, a mutant that falls on the same ground does not count."""
        if not answer["counts"]:
            return answer
        face = next(f for f in faces(answer["file"]) if f.name == answer["face"])
        original = self.original(face)
        if original["verdict"] == ACCEPTED or _ground(original) != _ground(answer):
            return answer
        return {**answer, "counts": False, "verdict": AS_ORIGINAL}

    def mutant(self, mutant: Mutant) -> dict[str, Any]:
        key = hashes.of("mutant", self.judge, *_identity(mutant))
        if key in self.ledger.known:
            return self.ledger.known[key]
        about = {"kind": "mutant", "id": mutant.id, "file": mutant.file, "operator": mutant.operator}
        face = self._face(mutant)
        if face is None:
            return self.ledger.add(key, **about, counts=False, verdict=artifacts.EQUAL)
        if face == artifacts.STILLBORN:
            return self.ledger.add(key, **about, counts=False, verdict=artifacts.STILLBORN)
        return self._judged(key, about, mutant, face)

    def _judged(self, key: str, about: dict[str, Any], mutant: Mutant, first: str) -> dict[str, Any]:
        """At the `first` face, and where it is accepted at the further ones: what is edited may be idle at some."""
        about |= {"was": mutant.was, "now": mutant.now}
        answer = {"counts": False, "verdict": artifacts.STILLBORN}
        for face in itertools.dropwhile(lambda f: f.name != first, faces(mutant.file)):
            if face.name == first or _difference(mutant, face) is None:
                evaluation = self.court.judge(face.op, face.name, face.candidate(mutant.source))
                counts = evaluation.gates[-1].gate not in BEFORE
                answer = {"face": face.name, "counts": counts, **_told(evaluation)}
                if not evaluation.accepted:
                    break
        return self.ledger.add(key, **about, **answer)

    def _face(self, mutant: Mutant) -> str | None:
        """The first face at which the mutant is another program; None if it is at none, STILLBORN if it is none."""
        key = hashes.of("face", metadata.version("jax"), *_identity(mutant))
        if key not in self.ledger.known:
            self.ledger.add(key, kind="face", id=mutant.id, face=_differing(mutant))
        found: str | None = self.ledger.known[key]["face"]
        return found

    def honest(self, example: Example) -> dict[str, Any]:
        """A right kernel, which must be accepted. The id is a hash of what was judged."""
        name = hashes.of(example.op, example.code)
        key = hashes.of("honest", self.judge, name)
        if key not in self.ledger.known:
            evaluation = self.court.judge(example.op, example.kind, example.code)
            self.ledger.add(key, kind="honest", id=f"{example.kind}:{name}", form=example.kind, **_told(evaluation))
        return self.ledger.known[key]

    def original(self, face: Face) -> dict[str, Any]:
        """The kernel itself, which must be accepted, or its mutants say nothing."""
        key = hashes.of("original", self.judge, hashes.of_text(face.op), face.call)
        if key not in self.ledger.known:
            evaluation = self.court.judge(face.op, face.name, face.candidate(source_of(face.file)))
            self.ledger.add(key, kind="original", id=face.name, file=face.file, **_told(evaluation))
        return self.ledger.known[key]


def _ground(answer: dict[str, Any]) -> str:
    """The gate, and the shape and the family of inputs, at which it was rejected."""
    return f"{answer['gate']} {answer['message'].partition('(at ')[2]}"


def _told(evaluation: Evaluation) -> dict[str, Any]:
    gate = evaluation.gates[-1]
    seconds = round(sum(g.seconds for g in evaluation.gates), 2)
    return {"verdict": evaluation.verdict, "gate": gate.gate, "message": gate.message[:400], "seconds": seconds}


def _differing(mutant: Mutant) -> str | None:
    for face in faces(mutant.file):
        found = _difference(mutant, face)
        if found != artifacts.EQUAL:
            return found or face.name
    return None


def _difference(mutant: Mutant, face: Face) -> str | None:
    return artifacts.difference(face.op, face.candidate(source_of(mutant.file)), face.candidate(mutant.source))


def _identity(mutant: Mutant) -> tuple[str, ...]:
    return mutant.id, mutant.now, _matter(mutant.file)


@functools.cache
def _matter(file: str) -> str:
    """A hash over the kernel and all that its faces make of it."""
    return hashes.of(hashes.of_text(source_of(file)), *(hashes.of_text(f.op) + f.call for f in faces(file)))

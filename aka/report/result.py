"""The JSON of a run: its result (what `aka optimize --json` prints and `result.json` holds), and all that was tried."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from aka.report import words
from aka.report.facts import Facts
from aka.report.summary import summarise
from aka.types import RunResult, Trial, encode


def result_json(result: RunResult) -> dict[str, Any]:
    """The fields of RunResult, in its order; times in microseconds, None where there is none. A sandbox that is no wall
    is marked."""
    fields: dict[str, Any] = encode(result)
    return fields | {"sandbox": words.wall(result.sandbox)}


def run_json(facts: Facts, run: str, *, running: bool) -> dict[str, Any]:
    """The row of the run, its result (None until it is finished), trials, improvements, resets and retrievals."""
    return {
        **asdict(summarise(facts, run, running=running)),
        "result": result_json(facts.result) if facts.result else None,
        "trials": [_trial(facts, trial) for trial in facts.trials],
        "improvements": [
            {"trial": s.trial, "us": s.us, "speedup": s.speedup, "generation": s.generation, "code": s.code}
            for s in facts.steps
        ],
        "resets": [asdict(reset) | {"improved": reset.improved} for reset in facts.resets],
        "retrieved": [
            {
                "generation": look.generation,
                "query": look.query,
                "documents": [doc_id for doc_id, _, _ in look.passages],
            }
            for look in facts.looks
        ],
    }


def _trial(facts: Facts, trial: Trial) -> dict[str, Any]:
    made, evaluation = trial.candidate, trial.evaluation
    failed = evaluation.failed
    return {
        "index": trial.index, "candidate_id": evaluation.candidate_id, "origin": made.origin, "family": made.family,
        "params": made.params, "plan": made.plan, "verdict": evaluation.verdict,
        "gate": failed.gate if failed else None, "message": failed.message if failed else "", "us": evaluation.us,
        "speedup": facts.speedup(trial), "seconds": trial.seconds,
    }  # fmt: skip

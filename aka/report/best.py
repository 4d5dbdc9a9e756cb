"""best.py: the best kernel as a file that stands alone on jax, with a header that says what it is worth."""

from __future__ import annotations

from collections.abc import Mapping

from aka.report import words
from aka.types import Evaluation, Trial, Workload


def best_source(
    trial: Trial, baseline: Evaluation, workload: Workload, *, run: str, versions: Mapping[str, str]
) -> str:
    """The candidate's code under a comment header: workload, chip, times with their source, versions, run."""
    evaluation = trial.evaluation
    before = {t.shape: t.us for t in baseline.timings}
    lines = [
        f"Best kernel that aka found for {workload.name} (run {run}, trial {trial.index}).",
        f"{trial.candidate.plan}",
        *(
            f"{t.shape}: {t.us:.1f} us {t.source} for {t.chip} ({t.confidence}); XLA {before[t.shape]:.1f} us"
            for t in evaluation.timings
        ),
        "hardware: "
        + ("unverified" if any(t.source == "estimated" for t in evaluation.timings) else "verified")
        + words.unwalled(evaluation.sandbox),
        "versions: " + ", ".join(f"{k} {v}" for k, v in versions.items()),
    ]
    header = "\n".join(f"# {' '.join(line.split())}" for line in lines)
    return f"{header}\n{trial.candidate.code}"

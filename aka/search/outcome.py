"""What counts as faster, as a regression, and as the result of a run."""

from __future__ import annotations

from collections.abc import Mapping

from aka.types import Chip, Evaluation, RunResult, ShapeResult, Timing, Trial

UNSURE = "data-dependent control flow"
MAX_REGRESSION = 0.02
"""No scored shape may get slower than the baseline by more than this share."""


def speedup(baseline: Evaluation | None, evaluation: Evaluation) -> float | None:
    """Baseline time over the candidate's, geometric means over the shapes; None unless the candidate was accepted."""
    if baseline is None or baseline.us is None or evaluation.us is None or not evaluation.accepted:
        return None
    return baseline.us / evaluation.us


def regressions(baseline: Evaluation, evaluation: Evaluation) -> list[str]:
    """Labels of the shapes that are slower than the baseline by more than MAX_REGRESSION."""
    before = {t.shape: t.us for t in baseline.timings}
    return [t.shape for t in evaluation.timings if t.us > before[t.shape] * (1 + MAX_REGRESSION)]


def faster(evaluation: Evaluation, best: Trial | None) -> bool:
    """Whether an accepted evaluation beats the best trial so far. Estimates and measurements are never ranked against
    each other: a different source never wins. Nor does a time that hangs on data which the meter does not know: it may
    be far too low, and a speedup must never be inflated."""
    if any(t.confidence == UNSURE for t in evaluation.timings):
        return False
    if best is None:
        return True
    theirs, ours = best.evaluation.timings[0].source, evaluation.timings[0].source
    assert evaluation.us is not None and best.evaluation.us is not None
    return ours == theirs and evaluation.us < best.evaluation.us


def result(
    *, chip: Chip, baseline: Evaluation, best: Trial | None, trials: int, stop_reason: str, best_path: str | None,
    run: str, sandbox: str, versions: Mapping[str, str], weak: tuple[str, ...],
) -> RunResult:  # fmt: skip
    """The answer of a run; `hardware` is "unverified" unless the times were measured on a device."""
    evaluation = best.evaluation if best else None
    rows = [_row(t, evaluation) for t in baseline.timings]
    source = (evaluation or baseline).timings[0].source
    assert baseline.us is not None
    return RunResult(
        status="improved" if best else "no_improvement",
        chip=chip.name,
        source=source,
        confidence=_weakest(evaluation or baseline),
        hardware="verified" if source == "measured" else "unverified",
        baseline_us=baseline.us,
        best_us=evaluation.us if evaluation else None,
        speedup=speedup(baseline, evaluation) if evaluation else None,
        roofline_fraction=min((p.roofline_fraction for p in evaluation.profiles), default=None) if evaluation else None,
        shapes=tuple(rows),
        trials=trials,
        stop_reason=stop_reason,
        best_path=best_path if best else None,
        run=run,
        sandbox=sandbox,
        versions=dict(versions),
        weak=weak,
    )


def _row(before: Timing, evaluation: Evaluation | None) -> ShapeResult:
    after = next((t for t in evaluation.timings if t.shape == before.shape), None) if evaluation else None
    return ShapeResult(
        label=before.shape,
        baseline_us=before.us,
        best_us=after.us if after else None,
        speedup=before.us / after.us if after else None,
        confidence=after.confidence if after else before.confidence,
        baseline_confidence=before.confidence,
    )


_ORDER = ("exact loop", "extrapolated", "bundle count", "data-dependent control flow", "lower bound", "floor")


def _weakest(evaluation: Evaluation) -> str:
    kinds = [t.confidence for t in evaluation.timings]
    return max(kinds, key=lambda c: _ORDER.index(c) if c in _ORDER else len(_ORDER))

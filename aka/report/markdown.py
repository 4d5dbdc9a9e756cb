"""The report of a run as one Markdown page, verdict first."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from aka.report import origins, words
from aka.report.facts import Facts, gather
from aka.report.story import Step, difference, document_of
from aka.types import Evaluation, Event

if TYPE_CHECKING:
    from jinja2 import Template

_FLAGS = ("proposer", "max_trials", "max_minutes", "dropout")
_CONFIDENCE = {
    "exact loop": "the compiler's own cycle count of the whole kernel",
    "extrapolated": "cycles of a few grid steps, carried on to the full grid",
    "bundle count": "counted from the instruction bundles, without the compiler's cycle simulation",
    "floor": "no cycles known: the time that HBM traffic and arithmetic need at the very least",
    "data-dependent control flow": "the trip counts depend on the data, so the cycles are a guess",
}


class Blobs(Protocol):
    """Where the source of a kernel is looked up by its sha256."""

    def get(self, sha: str) -> bytes: ...


@dataclass(frozen=True)
class Improvement:
    """A step, told: `diff` against the source of the best before, or else `source` whole; neither if the page has the
    source elsewhere. `rank` is the place of the kernel's document among what was retrieved."""

    step: Step
    plan: str
    document: str
    rank: int | None
    diff: str
    source: str


def markdown(events: Sequence[Event], blobs: Blobs, *, running: bool = False) -> str:
    """The page. Works for a run that is not finished too, and says so; `running` if a process works on it now.

    Raises UsageError for a run that never began, JournalCorrupt for events or blobs that are damaged.
    """
    facts = gather(events)
    source = blobs.get(facts.best_code).decode() if facts.best_code else None
    return _template().render(
        facts=facts,
        running=running,
        improvements=[_improvement(facts, step, blobs) for step in facts.steps],
        origins=origins.compare(facts),
        headline=_headline(facts),
        label=_label(facts),
        command=reproduce(facts),
        best_source=source,
        confidence=[(name, _CONFIDENCE[name]) for name in _confidences(facts)],
        profiles=_in_words(facts, facts.best.evaluation if facts.best else None),
        baseline_profiles=_in_words(facts, facts.baseline),
    )


def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("aka.report", "templates")
    pages = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    filters = (words.us, words.times, words.count, words.params, words.inline, words.wall, words.code, words.block)
    pages.filters |= {function.__name__: function for function in filters}
    return pages.get_template("run.md.j2")


def _improvement(facts: Facts, step: Step, blobs: Blobs) -> Improvement:
    trial = facts.trial(step.trial)
    document = document_of(trial.candidate) if trial else ""
    source = blobs.get(step.code).decode()
    diff = ""
    if step.before is not None:
        names = f"trial {step.before.trial}", f"trial {step.trial}"
        diff = difference(blobs.get(step.before.code).decode(), source, *names)
    return Improvement(
        step=step,
        plan=trial.candidate.plan if trial else "",
        document=document,
        rank=step.look.rank(document) if step.look else None,
        diff=diff,
        source="" if step.before is not None or step.code == facts.best_code else source,
    )


def _headline(facts: Facts) -> str:
    """The verdict in one sentence, without its label."""
    result = facts.result
    if result is not None and result.status == "no_improvement":
        return "no kernel was found that beats XLA"
    if result is not None:
        return f"{words.times(result.speedup)} over XLA"
    gain = facts.best_speedup
    return (
        f"not finished; the best so far is {words.times(gain)} over XLA" if gain else "not finished, no improvement yet"
    )


def _label(facts: Facts) -> str:
    """The source of the times, and whether foreign code ran without a wall."""
    return _source(facts) + "".join(words.unwalled(wall) for wall in facts.walls)


def _source(facts: Facts) -> str:
    if facts.result is not None:
        return words.label(facts.result.source, facts.chip, facts.result.hardware)
    timings = facts.baseline.timings if facts.baseline else ()
    measured = bool(timings) and timings[0].source == "measured"
    return (
        words.label("measured", facts.chip, facts.chip)
        if measured
        else words.label("estimated", facts.chip, "unverified")
    )


def _in_words(facts: Facts, evaluation: Evaluation | None) -> list[tuple[str, str]]:
    profiles = evaluation.profiles if evaluation else ()
    return [(profile.shape, words.profile_words(profile, facts.workload)) for profile in profiles]


def _confidences(facts: Facts) -> list[str]:
    """The confidence words that the table of shapes uses, in the order of trust."""
    used = {word for shape in facts.shapes for word in (shape.confidence, shape.baseline_confidence)}
    return [word for word in _CONFIDENCE if word in used]


def reproduce(facts: Facts) -> str:
    """The command that repeats the run."""
    parts = ["aka", "optimize", facts.op_path, "--chip", facts.chip, "--seed", str(facts.seed)]
    for name in _FLAGS:
        if name in facts.settings:
            parts += [f"--{name.replace('_', '-')}", str(facts.settings[name])]
    return shlex.join(parts)

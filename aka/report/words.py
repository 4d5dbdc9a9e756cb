"""Turns figures into words and keeps foreign text from breaking a page: the filters of the templates."""

from __future__ import annotations

import datetime
import re
from typing import Any

from aka.types import Profile, Source, Workload

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
# Controls, zero-width and bidirectional marks: they hide text from the reader.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~])")
_BOUNDS = {"hbm": "the bandwidth of HBM", "compute": "the peak of the matrix and vector units", "cycles": "its cycles"}
UNSANDBOXED = "unsandboxed"
_WEAK = {
    "bundle count": "from bundle counts",
    "data-dependent control flow": "without knowing its loop counts",
    "floor": "as a lower bound",
}


def us(value: float | None) -> str:
    """Microseconds for people: four digits, in the unit that fits."""
    if value is None:
        return "–"
    if value >= 1e6:
        return f"{value / 1e6:.4g} s"
    return f"{value / 1e3:.4g} ms" if value >= 1e3 else f"{value:.4g} µs"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}x"


def count(number: int, noun: str) -> str:
    """The number and its noun, in the plural where it must be."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ago(moment: str, now: datetime.datetime | None = None) -> str:
    """How long ago an ISO 8601 time with its zone was, in the one unit that fits."""
    passed = (now or datetime.datetime.now(datetime.UTC)) - datetime.datetime.fromisoformat(moment)
    seconds = max(0, int(passed.total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"


def size(count: float | None) -> str:
    """Bytes for people, in binary units."""
    if count is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def params(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "–"


def clean(text: str) -> str:
    """`text` without terminal escapes and hidden characters; line breaks and tabs stay."""
    return _HIDDEN.sub("", _ESCAPES.sub("", text))


def inline(text: object) -> str:
    """Foreign text on one line of Markdown, shown as it is."""
    return _MARKDOWN.sub(r"\\\1", " ".join(clean(str(text)).split())) or "–"


def code(text: object) -> str:
    """Foreign text as inline code, in a table too."""
    line = " ".join(clean(str(text)).split()).replace("|", "\\|")
    if not line:
        return "–"
    ticks = _fence(line, 1)
    return f"{ticks}{line}{ticks}" if ticks == "`" else f"{ticks} {line} {ticks}"


def block(text: str, language: str = "", limit: int = 0) -> str:
    """Foreign text as a fenced block that its content cannot close; at most `limit` characters of it, if given."""
    text = clean(text).rstrip("\n")
    if limit and len(text) > limit:
        text = text[:limit] + "\n[cut]"
    ticks = _fence(text, 3)
    return f"{ticks}{language}\n{text}\n{ticks}"


def _fence(text: str, least: int) -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * (max(least, longest + 1) if longest else least)


def label(source: Source, chip: str, hardware: str) -> str:
    """The honest label of a time: never an estimate that passes for a measurement."""
    if source == "measured":
        return f"measured on {hardware}"
    return f"estimated for {chip}, hardware: {hardware}"


def wall(sandbox: str) -> str:
    """The rung of the sandbox that a result came from; the one that is no wall is called so."""
    return f"{sandbox} ({UNSANDBOXED})" if sandbox == "rlimits" else sandbox


def unwalled(sandbox: str) -> str:
    """What to add to a label: nothing, unless foreign code ran without a wall."""
    return f", {UNSANDBOXED}" if sandbox == "rlimits" else ""


def basis(source: Source, confidence: str) -> str:
    """The source of a time and, where that is weaker than the compiler's simulated cycles, what it rests on."""
    return f"{source} {_WEAK[confidence]}" if confidence in _WEAK else source


def profile_words(profile: Profile, workload: Workload) -> str:
    """One profile as a sentence or two; the minimum of HBM bytes is the workload's own."""
    parts = [
        f"limited by {_BOUNDS.get(profile.bound, f'the {profile.bound} unit')}, "
        f"at {profile.roofline_fraction:.0%} of the roofline",
        _traffic(profile, workload),
        f"{profile.cycles:,.0f} cycles" if profile.cycles is not None else "cycles unknown",
        _slots(profile.slots),
        _spills(profile),
        f"{size(profile.vmem_bytes)} of VMEM" if profile.vmem_bytes is not None else "",
    ]
    return "; ".join(part for part in parts if part) + "."


def _traffic(profile: Profile, workload: Workload) -> str:
    moved = f"{size(profile.hbm_bytes)} of HBM traffic"
    least = next((case.min_bytes for case in workload.shapes if case.label == profile.shape), 0)
    if not least:
        return moved
    ratio = profile.hbm_bytes / least
    return f"{moved}, {ratio:.2f}x the least ({size(least)}: each input read and each output written once)"


def _slots(slots: dict[str, float]) -> str:
    fullest = sorted(slots.items(), key=lambda item: -item[1])[:3]
    if not fullest:
        return ""
    return "fullest issue slots: " + ", ".join(f"{unit} {share:.0%}" for unit, share in fullest)


def _spills(profile: Profile) -> str:
    if profile.spills is None:
        return ""
    if not profile.spills and not profile.fills:
        return "no register spills"
    return f"{profile.spills} spills and {profile.fills or 0} fills"

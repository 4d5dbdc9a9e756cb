"""The proof as it is committed: table.json, which the tests hold to the tree, and docs/proof.md for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import hashes
from faces import listed, source_of
from trials import ACCEPTED, AS_ORIGINAL

HERE = Path(__file__).resolve().parent
TABLE, EXPLAINED, PAGE = HERE / "table.json", HERE / "explained.json", HERE.parents[1] / "docs" / "proof.md"
PACKAGES = ("jax", "jaxlib", "libtpu", "numpy", "hypothesis")
COUNTS = ("counted", "rejected", "equal", "stillborn", AS_ORIGINAL)
Answer = dict[str, Any]


def write(answers: Sequence[Answer], judge: str, date: str) -> None:
    """Both files, from every answer of a whole run."""
    table = summary(answers, judge, date)
    TABLE.write_text(json.dumps(table, indent=1) + "\n")
    PAGE.write_text(page(table, explanations()))


def explanations() -> dict[str, str]:
    """Why each surviving mutant survived, by its id."""
    made: dict[str, str] = json.loads(EXPLAINED.read_text())
    return made


def summary(answers: Sequence[Answer], judge: str, date: str) -> dict[str, Any]:
    """What table.json holds."""
    mutants = [a for a in answers if a["kind"] == "mutant"]
    counted = [m for m in mutants if m["counts"]]
    return {
        "date": date,
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "judge": judge,
        "mutants": _counts(mutants),
        "verdicts": dict(Counter(m["verdict"] for m in counted).most_common()),
        "kernels": {made.file: _kernel(made.file, mutants) for made in listed()},
        "operators": {name: _counts([m for m in mutants if m["operator"] == name]) for name in _operators(mutants)},
        "survivors": [_survivor(m) for m in counted if m["verdict"] == ACCEPTED],
        "originals_rejected": [a["id"] for a in answers if a["kind"] == "original" and a["verdict"] != ACCEPTED],
        "honest": _honest([a for a in answers if a["kind"] == "honest"]),
    }


def _kernel(file: str, mutants: Sequence[Answer]) -> dict[str, Any]:
    return {"hash": hashes.of_text(source_of(file)), **_counts([m for m in mutants if m["file"] == file])}


def _operators(mutants: Sequence[Answer]) -> list[str]:
    return sorted({m["operator"] for m in mutants})


def _honest(answers: Sequence[Answer]) -> dict[str, Any]:
    rejected = [a for a in answers if a["verdict"] != ACCEPTED]
    return {
        "judged": len(answers),
        "kinds": dict(sorted(Counter(a["form"] for a in answers).items())),
        "false_rejects": [{name: a[name] for name in ("id", "verdict", "message")} for a in rejected],
    }


def _counts(mutants: Sequence[Answer]) -> dict[str, int]:
    counted = [m for m in mutants if m["counts"]]
    return {
        "counted": len(counted),
        "rejected": sum(m["verdict"] != ACCEPTED for m in counted),
        "equal": sum(m["verdict"] == "equal" for m in mutants),
        "stillborn": sum(not m["counts"] and m["verdict"] not in ("equal", AS_ORIGINAL) for m in mutants),
        AS_ORIGINAL: sum(m["verdict"] == AS_ORIGINAL for m in mutants),
    }


def _survivor(mutant: Answer) -> dict[str, str]:
    return {name: mutant[name] for name in ("id", "face", "was", "now")}


PAGE_TEXT = """# The judge, tried on mutants and on honest kernels

Written by `make prove` on {date} with {versions}; the judge's hash is `{judge}`. Do not edit it by hand:
`tests/prove/table.json` holds the same figures, and a test fails when the judge or a kernel is no longer the one that
was tried.

**{rejected} of {counted} mutants rejected ({share:.1f} %). {false} of {judged} honest kernels rejected.**

A mutant is a reference kernel with one fault, made by machine from its syntax tree. It counts if it exports for the
TPU and its artifact differs from the kernel's own: {equal} were equal to it, {stillborn} did not trace or returned
other shapes, and neither are counted. Each is judged by the kernel's own `reference`, by every gate but performance, at
sizes at which the grid takes several steps; one that is accepted is judged by the kernel's other listed cases too,
since what was edited may be idle in one of them. Of each kernel up to {most} mutants count, the operators in turn, in
an order that only hashes decide. {rejected_originals}

An honest kernel is a random small workload with a Pallas kernel that is right by construction, drawn by hypothesis:
{kinds}.

## Rejected by which verdict

{by_verdict}

## By operator

{by_operator}

## By kernel

{by_kernel}

## Survivors

{survivors}
"""


def page(table: dict[str, Any], explained: dict[str, str]) -> str:
    """docs/proof.md."""
    made, honest = table["mutants"], table["honest"]
    told = [_told(s, explained) for s in table["survivors"]]
    text = PAGE_TEXT.format(
        **{name.replace(" ", "_"): number for name, number in made.items()}, date=table["date"],
        versions=", ".join(f"{n} {v}" for n, v in table["versions"].items()),
        judge=table["judge"], share=100 * made["rejected"] / max(1, made["counted"]),
        rejected_originals=_originals(table["originals_rejected"]),
        false=len(honest["false_rejects"]), judged=honest["judged"], kinds=_listed(honest["kinds"]),
        most=max(kernel["counted"] for kernel in table["kernels"].values()),
        by_verdict=_rows(("verdict", "mutants"), ((v, n) for v, n in table["verdicts"].items() if v != ACCEPTED)),
        by_operator=_rows(("operator", *COUNTS), _count_rows(table["operators"])),
        by_kernel=_rows(("kernel", *COUNTS), _count_rows(table["kernels"])),
        survivors=_rows(("mutant", "was", "is", "why it is accepted"), told) if told else "None.",
    )  # fmt: skip
    return text + _rejects(honest["false_rejects"])


def _originals(rejected: Sequence[str]) -> str:
    if not rejected:
        return ""
    text = "**The judge rejects kernels themselves**: a mutant of these that falls on the same ground is not counted:"
    return f"{text} {', '.join(f'`{name}`' for name in rejected)}."


def _count_rows(groups: dict[str, dict[str, Any]]) -> Iterable[tuple[object, ...]]:
    return ((name, *(group[count] for count in COUNTS)) for name, group in groups.items())


def _told(survivor: dict[str, str], explained: dict[str, str]) -> tuple[object, ...]:
    code = (f"`{' '.join(survivor[k].split())[:90].replace('|', '∣')}`" for k in ("was", "now"))
    return (f"`{survivor['id']}`", *code, explained.get(survivor["id"], "**not explained yet**"))


def _rejects(rejected: Sequence[dict[str, str]]) -> str:
    if not rejected:
        return ""
    rows = _rows(("kernel", "verdict", "message"), ((r["id"], r["verdict"], r["message"]) for r in rejected))
    return f"\n## Honest kernels that were rejected\n\n{rows}\n"


def _listed(kinds: dict[str, int]) -> str:
    return ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in kinds.items())


def _rows(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [" | ".join(map(str, row)) for row in rows]
    return "\n".join(f"| {line} |" for line in (" | ".join(head), "|".join(["---"] * len(head)), *lines))

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

HERE = Path(__file__).resolve().parent
TABLE, EXPLAINED, PAGE = HERE / "table.json", HERE / "explained.json", HERE.parents[1] / "docs" / "proof.md"
PACKAGES = ("jax", "jaxlib", "libtpu", "numpy", "hypothesis")
ACCEPTED = "ACCEPT"
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
    honest = [a for a in answers if a["kind"] == "honest"]
    files = [made.file for made in listed()]
    return {
        "date": date,
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "judge": judge,
        "mutants": _counts(mutants),
        "verdicts": dict(Counter(m["verdict"] for m in counted).most_common()),
        "kernels": {
            file: {"hash": hashes.of_text(source_of(file)), **_counts([m for m in mutants if m["file"] == file])}
            for file in files
        },
        "operators": {op: _counts([m for m in mutants if m["operator"] == op]) for op in sorted({m["operator"] for m in mutants})},
        "survivors": [_survivor(m) for m in counted if m["verdict"] == ACCEPTED],
        "originals_rejected": [a["id"] for a in answers if a["kind"] == "original" and a["verdict"] != ACCEPTED],
        "honest": {
            "judged": len(honest),
            "kinds": dict(sorted(Counter(h["form"] for h in honest).items())),
            "false_rejects": [{k: h[k] for k in ("id", "verdict", "message")} for h in honest if h["verdict"] != ACCEPTED],
        },
    }  # fmt: skip


def _counts(mutants: Sequence[Answer]) -> dict[str, int]:
    counted = [m for m in mutants if m["counts"]]
    return {
        "counted": len(counted),
        "rejected": sum(m["verdict"] != ACCEPTED for m in counted),
        "equal": sum(m["verdict"] == "equal" for m in mutants),
        "stillborn": sum(not m["counts"] and m["verdict"] != "equal" for m in mutants),
    }


def _survivor(mutant: Answer) -> dict[str, str]:
    return {name: mutant[name] for name in ("id", "face", "was", "now")}


def page(table: dict[str, Any], explained: dict[str, str]) -> str:
    """docs/proof.md."""
    all_, honest = table["mutants"], table["honest"]
    share = 100 * all_["rejected"] / max(1, all_["counted"])
    versions = ", ".join(f"{name} {version}" for name, version in table["versions"].items())
    return f"""# The judge, tried on mutants and on honest kernels

Written by `make prove` on {table["date"]} with {versions}; the judge's hash is `{table["judge"]}`. Do not edit it by hand:
`tests/prove/table.json` holds the same figures, and a test fails when the judge or a kernel is no longer the one that was
tried.

**{all_["rejected"]} of {all_["counted"]} mutants rejected ({share:.1f} %). {len(honest["false_rejects"])} of {honest["judged"]} honest kernels rejected.**

A mutant is a reference kernel with one fault, made by machine from its syntax tree. It counts if it exports for the TPU and
its artifact differs from the kernel's own: {all_["equal"]} were equal to it, {all_["stillborn"]} did not trace or returned other shapes, and neither
are counted. Each is judged by the kernel's own `reference`, by every gate but performance, at sizes at which the grid takes
several steps. Of each kernel up to {max(k["counted"] for k in table["kernels"].values())} mutants count, the operators in turn, in an order that only hashes decide.

An honest kernel is a random small workload with a Pallas kernel that is right by construction, drawn by hypothesis:
{_listed(honest["kinds"])}.

## Rejected by which verdict

{_rows(("verdict", "mutants"), ((v, n) for v, n in table["verdicts"].items() if v != ACCEPTED))}

## By operator

{_rows(("operator", "counted", "rejected", "equal", "stillborn"), _count_rows(table["operators"]))}

## By kernel

{_rows(("kernel", "counted", "rejected", "equal", "stillborn"), _count_rows(table["kernels"]))}

## Survivors

{_rows(("mutant", "was", "is", "why it is accepted"), (_told(s, explained) for s in table["survivors"])) if table["survivors"] else "None."}
{_rejects(honest["false_rejects"])}"""


def _count_rows(groups: dict[str, dict[str, Any]]) -> Iterable[tuple[object, ...]]:
    return ((name, g["counted"], g["rejected"], g["equal"], g["stillborn"]) for name, g in groups.items())


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

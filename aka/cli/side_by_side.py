"""Draws the comparison of two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aka.cli import console, tables
from aka.report import words

if TYPE_CHECKING:
    from aka.report import Comparison, Summary


def show(found: Comparison) -> None:
    """On stdout: a table of what can be put side by side, then the diff of the best kernels."""
    table = tables.plain("", found.a.run, found.b.run)
    for name, a, b in _rows(found):
        tables.add(table, name, a, b)
    tables.show(table)
    console.answer(f"\n{_code(found)}")
    if not found.same_op:
        console.note("the two runs are of different ops (or of two versions of one): their times tell little together")
    elif found.a.chip != found.b.chip:
        console.note("the two runs are for different chips: compare the speedups, not the times")


def _rows(found: Comparison) -> list[tuple[str, str, str]]:
    rows = [(name, a, b) for (name, a), (_, b) in zip(_summary(found.a), _summary(found.b), strict=True)]
    for title, a, b in (
        ("rejected at", found.gates_a, found.gates_b),
        ("tried", found.families_a, found.families_b),
    ):
        rows += [(f"{title} {name or 'no gate'}", str(a.get(name, 0)), str(b.get(name, 0))) for name in {**a, **b}]
    return rows + [(d.name, _value(d.a), _value(d.b)) for d in found.settings]


def _summary(row: Summary) -> list[tuple[str, str]]:
    return [
        ("op", row.op),
        ("status", row.status),
        (f"XLA ({row.source})", words.us(row.baseline_us)),
        ("best", words.us(row.best_us)),
        ("speedup", words.times(row.speedup)),
        ("trials", str(row.trials)),
        ("begun", words.ago(row.begun)),
        ("stopped because", row.stop_reason or "–"),
    ]


def _value(value: Any) -> str:
    return "–" if value is None else str(value)


def _code(found: Comparison) -> str:
    if found.code is None:
        none = [row.run for row in (found.a, found.b) if row.best_us is None]
        return f"no diff of the best kernels: {' and '.join(none)} found none"
    return words.clean(found.code) or "the best kernels are the same, letter for letter"

"""The JSON of a run's result: what `aka optimize --json` prints and `result.json` holds."""

from __future__ import annotations

from typing import Any

from aka.types import RunResult, encode


def result_json(result: RunResult) -> dict[str, Any]:
    """The fields of RunResult, in its order; times in microseconds, None where there is none."""
    fields: dict[str, Any] = encode(result)
    return fields

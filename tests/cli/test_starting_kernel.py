"""`aka optimize` on a file that brings a Pallas kernel of its own: judged first, tuned, and compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runs import Runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

OP = Path(__file__).parents[1] / "workload" / "data" / "op_with_starting_kernel.py"


def us(trial: dict[str, Any]) -> float:
    return float(trial["evaluation"]["timings"][0]["us"])


def test_a_starting_kernel_is_tried_first_tuned_and_compared(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    done = runs.aka("optimize", OP, "--out", runs.run, "--chip", "v5e", "--max-trials", "8", "--json", timeout_s=800)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["speedup"] > 1.03
    (begun,) = runs.of("run_started")
    assert begun["workload"]["has_starting_kernel"]  # type: ignore[index]
    trials: list[dict[str, Any]] = runs.of("trial")
    given, *others = trials
    assert given["candidate"]["origin"] == "starting" and given["candidate"]["params"]["BLOCK_ROWS"] == 8
    assert all(gate["passed"] for gate in given["evaluation"]["gates"]) and given["evaluation"]["profiles"]
    tuned = [t for t in others if t["candidate"]["origin"] == "starting"]
    assert tuned and min(map(us, tuned)) < us(given)
    assert any(t["candidate"]["origin"].startswith("template:") for t in others)
    report = (runs.run / "report.md").read_text()
    rows = [line for line in report.splitlines() if line.startswith(("| the starting kernel", "| fusion templates"))]
    assert "## The starting kernel and the others" in report and len(rows) == 3

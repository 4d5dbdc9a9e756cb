"""A made-up run, small but whole, for the tests of the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from aka.types import (
    ArraySpec,
    Candidate,
    Evaluation,
    GateResult,
    ShapeCase,
    Signature,
    Timing,
    Workload,
    encode,
)

CASE = ShapeCase("a", {"n": 8}, Signature((ArraySpec((8, 8), "float32"),), [0]), Signature((), None), 64.0, 512)
WORKLOAD = Workload("softmax", "op.py", "def workload(x): ...", (CASE,), (CASE,), {"exp": 1}, (1.0,), ("x",))


def evaluation(candidate_id: str, us: float) -> Evaluation:
    gates = (GateResult("static", True, 0.1), GateResult("performance", True, 0.2))
    return Evaluation(candidate_id, "v5e", gates, (Timing("v5e", "a", us, "estimated", "exact loop"),))


@pytest.fixture
def started() -> dict[str, Any]:
    return {
        "workload": encode(WORKLOAD),
        "chip": "v5e",
        "seed": 3,
        "settings": {"max_trials": 4},
        "versions": {"jax": "0.10.2"},
        "sandbox": "bwrap",
        "op_path": "op.py",
    }


@pytest.fixture
def trial() -> Callable[[int, float, str], dict[str, Any]]:
    def make(index: int, us: float, sha: str) -> dict[str, Any]:
        candidate = encode(Candidate("", "a plan", "catalog", params={"block": index}))
        judged = encode(evaluation(f"c{index}", us))
        return {
            "index": index,
            "candidate": candidate,
            "code": sha,
            "evaluation": judged,
            "seconds": 1.5,
            "speedup": 10 / us,
        }

    return make


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts a tmpfs of so many MiB, or skips where this user may not."""
    mounted: list[Path] = []

    def mount(mebibytes: int) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        done = run(
            ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "aka-test", folder], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        run(["umount", folder], check=True)

"""SIGKILL at random moments of a search that judges by a table: no finished trial is lost, best.py is the best."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("killed_search.py")


@pytest.mark.parametrize("kills", [15, pytest.param(200, marks=pytest.mark.slow)])
def test_nothing_is_lost(tmp_path: Path, kills: int) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path / "run"), str(kills), "11"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["wrong"] == []
    assert seen["killed"] == kills and seen["trials"] > kills // 2 and seen["bests"] >= 2, seen

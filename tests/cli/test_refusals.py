"""What `aka optimize` cannot use it refuses in one line: folders that cannot be made, options that fight, bad ops."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import OP, Runs


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def refused(runs: Runs, *arguments: str | Path) -> str:
    """The one line that it says, under exit code 2."""
    done = runs.aka("optimize", *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("aka: ")]
    assert len(lines) == 1 and done.stderr.splitlines()[-1] == lines[0]
    return lines[0]


@pytest.mark.parametrize("out", ["/proc/aka-run", "op.py/run", "x" * 300], ids=["proc", "file", "long name"])
def test_a_folder_that_cannot_be_made(runs: Runs, out: str) -> None:
    assert "folder" in refused(runs, runs.op, "--out", out)


def test_out_is_not_for_a_resumed_run(runs: Runs) -> None:
    assert "--out" in refused(runs, "--resume", "last", "--out", runs.run)


def test_an_error_of_jax_is_told_without_its_notes(runs: Runs) -> None:
    runs.op.write_text(OP.replace("jax.nn.softmax(x, axis=-1)", "jnp.dot(x, x)"))
    line = refused(runs, runs.op, "--out", runs.run)
    assert "line 14" in line and "dot_general" in line
    assert "JAX_TRACEBACK_FILTERING" not in line and "removed" not in line and "----" not in line
    assert not runs.run.exists()

"""The table of bad ops: each is refused in one line under exit code 2, before a run is made, or is no bad op at all.

Rows are those of the reliability page's table; what is wrong with the text of a file is tested in tests/workload.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import OP, Runs

from aka.cli import compose
from aka.errors import WorkloadError
from aka.workload.read import read_workload

BODY = "jax.nn.softmax(x, axis=-1)"


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def with_body(body: str) -> str:
    return OP.replace(BODY, body).replace("import jax\n", "import jax\nimport numpy as np\n", 1)


REFUSED = {
    "3 raises at import": (OP + "\nraise ValueError('two\\nlines')\n", "line 16: ValueError: two lines"),
    "4 ends the process": (OP + "\nimport sys\nsys.exit(0)\n", "ends the process"),
    "5 no workload": (OP.replace("def workload", "def works"), "expected workload(*inputs)"),
    "5 workload is no function": (OP + "\nworkload = 3\n", "is int, not a function"),
    "5 no create_inputs": (OP.replace("def create_inputs", "def creates"), "expected create_inputs("),
    "6 the reference raises": (with_body("1 / 0"), "line 15: ZeroDivisionError"),
    "7 no arrays": (with_body("['a', 'b']"), "expected arrays in lists, tuples or dicts, found str"),
    "7 None": (with_body("None"), "returned no arrays"),
    "9 no elements": (with_body("x[:0]"), "arrays without elements"),
    "10 a TiB": (OP.replace('"rows": 512', '"rows": 1 << 40'), "at most 64 GiB"),
    "12 random": (with_body("x * np.random.rand()"), "two traces at the same shapes gave different programs"),
    "13 constant": (with_body("x * 0 + 1"), "too weak to judge a kernel by"),
    "13 tiny": (with_body("jnp.tanh(x) * 1e-12"), "tiny"),
}


@pytest.fixture(scope="module")
def bench() -> Iterator[compose.Bench]:
    with compose.bench("v5e", trials=False) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("row", REFUSED)
def test_refused_in_one_line(bench: compose.Bench, tmp_path: Path, row: str) -> None:
    """As `aka optimize` and `aka check` take an op in."""
    text, words = REFUSED[row]
    op = tmp_path / "op.py"
    op.write_text(text)
    with pytest.raises(WorkloadError) as refused:
        compose.admitted(bench, read_workload(op))
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("row", ["3 raises at import", "9 no elements", "13 constant"])
def test_the_command_says_so_and_leaves_nothing(runs: Runs, row: str) -> None:
    text, words = REFUSED[row]
    runs.op.write_text(text)
    done = runs.aka("optimize", runs.op, "--out", runs.run)
    lines = [line for line in done.stderr.splitlines() if line.startswith("aka: ")]
    assert (done.returncode, done.stdout, len(lines)) == (2, "", 1), done.stderr
    assert words in lines[0] and "Traceback" not in done.stderr
    assert not runs.run.exists()


@pytest.mark.slow
def test_an_endless_loop_at_import_ends(runs: Runs) -> None:
    runs.op.write_text(OP + "\nwhile True:\n    pass\n")
    done = runs.aka("check", runs.op, "--op", runs.op)
    assert done.returncode == 2 and "no answer within 60 s" in done.stderr


def test_a_fifo_never_blocks(runs: Runs) -> None:
    os.mkfifo(runs.folder / "fifo.py")
    done = runs.aka("optimize", runs.folder / "fifo.py", timeout_s=60)
    assert done.returncode == 2 and "not a regular file" in done.stderr


ACCEPTED = {
    "2 byte order mark": "\ufeff" + OP,
    "8 integers": OP.replace("jax.random.normal(", "jax.random.randint(")
    .replace(", dtype),)", ", -(2**31), 2**31 - 1),)")
    .replace(BODY, "x * 3 + (x >> 2)"),
    "8 booleans": with_body("x > 0.5"),
}


@pytest.mark.slow
@pytest.mark.parametrize("row", ACCEPTED)
def test_unusual_and_good(runs: Runs, row: str) -> None:
    runs.op.write_text(ACCEPTED[row], encoding="utf-8")
    done = runs.aka("optimize", runs.op, "--max-trials", "1", "--out", runs.run)
    assert done.returncode in (0, 1) and "finished: " in done.stderr, done.stderr
    report = (runs.run / "report.md").read_text()
    assert "gate correctness" not in report and "incorrect" not in report


@pytest.mark.slow
@pytest.mark.parametrize("body", ["x * (1 + 2j)", "{'a': jax.nn.softmax(x, -1), 'b': (x.sum(-1), None)}"])
def test_complex_numbers_and_trees_are_no_errors(runs: Runs, body: str) -> None:
    """Rows 8 and 11."""
    runs.op.write_text(with_body(body))
    done = runs.aka("optimize", runs.op, "--max-trials", "1", "--out", runs.run)
    assert done.returncode in (0, 1) and "finished: " in done.stderr, done.stderr

"""Where no sandbox works: `aka` refuses to run foreign code, and marks every result if it is told to all the same.

The machine without walls is made: no bwrap on the PATH, and Landlock's calls answered as by a kernel without it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import Runs

from aka.cli.progress import Progress
from aka.journal.jsonl import JsonlJournal

WITHOUT_LANDLOCK = """
import ctypes, struct
code = struct.pack("=HBBIHBBIHBBIHBBI", 0x20, 0, 0, 0, 0x15, 0, 1, 444, 6, 0, 0, 0x50026, 6, 0, 0, 0x7FFF0000)
class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, ctypes.byref(Program(4, code)), 0, 0) == 0
from aka.cli.main import main
main()
"""
KERNEL = """
import jax
from jax.experimental import pallas as pl


def _body(x_ref, o_ref):
    o_ref[...] = jax.nn.softmax(x_ref[...], axis=-1)


def workload(x):
    block = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        _body, grid=(x.shape[0] // 8,), in_specs=[block], out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x)
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    (tmp_path / "kernel.py").write_text(KERNEL)
    return Runs(tmp_path)


def aka(runs: Runs, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`aka` on a machine without walls, unless `more` says otherwise."""
    env = {**os.environ, "PATH": str(runs.folder), "AKA_SANDBOX": "", "XDG_CONFIG_HOME": str(runs.folder), **more}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_LANDLOCK, *arguments],
        capture_output=True, text=True, cwd=runs.folder, env=env, timeout=250,
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    ["optimize op.py --out run", "check kernel.py --op op.py", "profile kernel.py --op op.py"],
)
def test_foreign_code_is_refused_in_one_line(runs: Runs, arguments: str) -> None:
    done = aka(runs, *arguments.split())
    assert (done.returncode, done.stdout) == (6, "")
    assert done.stderr.count("\n") == 1 and "--unsafe-no-sandbox" in done.stderr
    assert "apt install bubblewrap" in done.stderr and "Landlock" in done.stderr
    assert not (runs.folder / "run").exists()


def test_a_wall_that_was_asked_for_is_not_given_up(runs: Runs) -> None:
    done = aka(runs, "check", "kernel.py", "--op", "op.py", "--unsafe-no-sandbox", AKA_SANDBOX="landlock")
    assert done.returncode == 6 and "landlock cannot isolate here" in done.stderr


@pytest.mark.slow
def test_told_to_it_goes_on_and_every_result_is_marked(runs: Runs) -> None:
    done = aka(runs, "optimize", "op.py", "--out", "run", "--max-trials", "1", "--unsafe-no-sandbox")
    assert done.returncode in (0, 1), done.stderr
    assert "hardware: unverified, unsandboxed)" in done.stdout and "NOT SANDBOXED" in done.stderr
    assert any(line.startswith("finished: ") and ", unsandboxed;" in line for line in done.stderr.splitlines())
    live = Progress(1, 1.0)
    lines = [live.on_event(event) for event in JsonlJournal.read(runs.run).events()]
    assert live.title.endswith(", unsandboxed") and "sandbox rlimits (unsandboxed)" in lines[0]
    page = (runs.folder / "run" / "report.md").read_text()
    assert "hardware: unverified, unsandboxed." in page and "sandbox: rlimits (unsandboxed)" in page
    assert json.loads((runs.folder / "run" / "result.json").read_text())["sandbox"] == "rlimits (unsandboxed)"
    if (best := runs.folder / "run" / "best.py").exists():
        assert "# hardware: unverified, unsandboxed\n" in best.read_text()


@pytest.mark.slow
def test_check_and_profile_are_marked_where_the_rung_is_named(runs: Runs) -> None:
    checked = aka(runs, "check", "kernel.py", "--op", "op.py", AKA_SANDBOX="rlimits")
    assert "ACCEPT" in checked.stdout and "sandbox: rlimits (unsandboxed)" in checked.stdout, checked.stderr
    profiled = aka(runs, "profile", "kernel.py", "--op", "op.py", "--json", AKA_SANDBOX="rlimits")
    assert [row["sandbox"] for row in json.loads(profiled.stdout)] == ["rlimits (unsandboxed)"]
    assert "unsandboxed" not in checked.stderr.replace("NOT SANDBOXED", "")


@pytest.mark.slow
def test_doctor_names_what_is_wrong_with_each_wall_and_what_is_lost(runs: Runs) -> None:
    done = aka(runs, "doctor", "--json", ANTHROPIC_API_KEY="canary-4711")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["compiler"]["ok"]  # its own kernel, which needs no wall
    assert not found["sandbox"]["ok"] and found["sandbox"]["rung"] is None
    assert "not installed" in found["sandbox"]["walls"]["bubblewrap"]
    assert "Landlock ABI 3" in found["sandbox"]["walls"]["landlock"]
    assert found["key"]["ok"] and "canary" not in done.stdout + done.stderr


@pytest.mark.slow
def test_doctor_tells_of_a_machine_as_it_is(runs: Runs) -> None:
    done = runs.aka("doctor", "--json")
    found = json.loads(done.stdout)
    assert list(found) == ["versions", "sandbox", "compiler", "library", "devices", "key"]
    assert done.returncode == (0 if any(chip["ok"] for chip in found["compiler"]["chips"].values()) else 6)
    assert set(found["compiler"]["chips"]) == {"v4", "v5e", "v5p", "v6e", "tpu7x"}
    assert {"index", "cache"} <= set(found["library"]) and "jax" in found["versions"]
    rung, walls = found["sandbox"]["rung"], found["sandbox"]["walls"]
    assert set(walls) == {"bubblewrap", "landlock"}
    assert not found["sandbox"]["ok"] or walls[rung] == ""

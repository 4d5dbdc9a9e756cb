"""The `aka` command as a person meets it: real processes, exit codes, what goes to which stream."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aka import __version__
from aka.journal.jsonl import JsonlJournal

OP = """
import jax
import jax.numpy as jnp

CONFIG = {"rows": 64, "cols": 256}


def create_inputs(dtype=jnp.float32):
    return (jax.random.normal(jax.random.key(0), (CONFIG["rows"], CONFIG["cols"]), dtype),)


def workload(x):
    return jax.nn.softmax(x, axis=-1)
"""
CHIPS = ("v4", "v5e", "v5p", "v6e", "tpu7x")


@pytest.fixture
def op(tmp_path: Path) -> Path:
    path = tmp_path / "op.py"
    path.write_text(OP)
    return path


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", "from aka.cli.main import main; main()", *map(str, arguments)]


def environment(tmp_path: Path) -> dict[str, str]:
    """Without the settings of whoever runs the tests."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("AKA_") or k == "AKA_SANDBOX"}
    return plain | {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def aka(tmp_path: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, cwd=tmp_path, env=environment(tmp_path), timeout=250
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("optimize op.py --chip v99", CHIPS),
        ("check op.py --op op.py --chip v99", CHIPS),
        ("profile op.py --op op.py --chip v5e,v99", CHIPS),
        ("optimize op.py --max-minutes -1", ("--max-minutes", "greater than 0")),
        ("optimize op.py --max-minutes 0", ("--max-minutes", "greater than 0")),
        ("optimize op.py --max-minutes nan", ("--max-minutes", "nan")),
        ("optimize op.py --max-minutes inf", ("--max-minutes", "finite")),
        ("optimize op.py --max-trials 0", ("--max-trials", "greater than 0")),
        ("optimize op.py --max-trials many", ("--max-trials", "integer")),
        ("optimize op.py --seed -3", ("--seed",)),
        ("optimize op.py --dropout some", ("--dropout", "off, mask, fresh, both")),
        ("optimize op.py --proposer oracle", ("--proposer", "offline")),
        ("optimize", ("--resume",)),
        ("optimize op.py --resume last", ("--resume",)),
        ("optimize --resume last", ("no run",)),
        ("optimize --resume nothing", ("nothing",)),
        ("optimize none.py", ("none.py", "No such file")),
        ("optimize .", ("is a directory",)),
        ("check none.py --op op.py", ("none.py", "No such file")),
        ("check op.py --op none.py", ("none.py", "No such file")),
        ("check op.py", ("--op",)),
        ("profile none.py --op op.py", ("none.py", "No such file")),
        ("optimize op.py --nope", ("--nope",)),
        ("frob", ("frob",)),
    ],
    ids=lambda v: v.replace("op.py ", "") if isinstance(v, str) else "",
)
def test_wrong_usage_is_one_line_and_exit_code_2(op: Path, arguments: str, words: tuple[str, ...]) -> None:
    done = aka(op.parent, *arguments.split())
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("aka: ") and all(word in line for word in words)
    assert not (op.parent / "runs").exists()


def test_a_bad_op_ends_before_a_run_is_made(op: Path) -> None:
    op.write_text(OP.replace("axis=-1)", "axis=-1) + nothing"))
    done = aka(op.parent, "optimize", op)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line == f"aka: {op}: line 13: NameError: name 'nothing' is not defined"
    assert not (op.parent / "runs").exists()


def test_version(tmp_path: Path) -> None:
    done = aka(tmp_path, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"aka {__version__}\n", "")


@pytest.mark.parametrize("name", ["", "optimize", "check", "profile"])
def test_help_shows_an_example(tmp_path: Path, name: str) -> None:
    done = aka(tmp_path, *name.split(), "--help")
    assert done.returncode == 0 and done.stderr == ""
    text = " ".join(done.stdout.split())
    assert f"aka {name or 'optimize'} " in text.partition("Usage:")[2].partition("]")[2] and ".py" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["doctor"], ["kb"], ["kb", "search"], ["kb", "build"], ["kb", "show"], ["runs"], ["runs", "diff"], ["report"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_help_answers(tmp_path: Path, arguments: list[str]) -> None:
    done = aka(tmp_path, *arguments, "-h")
    assert done.returncode == 0 and done.stderr == "" and "Usage: aka" in done.stdout
    assert f"aka {arguments[0]} " in done.stdout.partition("Example:")[2]


def test_without_arguments_it_shows_its_help(tmp_path: Path) -> None:
    done = aka(tmp_path)
    assert (done.returncode, done.stdout) == (2, "") and "Commands:" in done.stderr


def test_a_reader_that_goes_away_is_no_bug(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("--help"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(tmp_path), text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert "bug" not in process.stderr.read() and process.wait(60) in (0, 1)
    process.stderr.close()


def test_plain_jax_is_not_a_kernel(op: Path) -> None:
    """The op itself, brought as a candidate."""
    done = aka(op.parent, "check", op, "--op", op, "--json")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "not_a_kernel" and answer["chip"] == "v5e" and answer["hardware"] == "unverified"
    assert [(g["gate"], g["passed"]) for g in answer["gates"]] == [
        ("static", True),
        ("export", True),
        ("structure", False),
    ]
    assert answer["timings"] == [] and "gate structure" in done.stderr


def test_interrupting_a_search_loses_nothing(op: Path) -> None:
    folder = op.parent / "run"
    process = subprocess.Popen(
        command("optimize", op, "--out", folder, "--max-minutes", "5"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=op.parent, env=environment(op.parent), text=True,
    )  # fmt: skip
    journal = folder / "journal.jsonl"
    deadline = time.monotonic() + 200
    try:
        while '"retrieved"' not in (journal.read_text() if journal.exists() else ""):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, ""), err
    last = err.splitlines()[-1]
    assert f"aka optimize --resume {folder}" in last and "Traceback" not in err and (folder / "report.md").exists()
    with JsonlJournal.resume(folder) as again:
        types = [e.type for e in again.events()]
    assert types[:2] == ["run_started", "baseline"] and types[-1] == "interrupted"

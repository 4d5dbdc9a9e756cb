"""`aka runs`, `aka runs diff` and `aka report`, over runs that were written by hand and folders that are none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from aka.cli import report, runs
from aka.journal import JsonlJournal
from aka.types import (
    ArraySpec,
    Candidate,
    Evaluation,
    GateResult,
    RunResult,
    ShapeCase,
    ShapeResult,
    Signature,
    Timing,
    Workload,
    encode,
)

ARRAY = Signature((ArraySpec((8, 8), "float32"),), 0)
CASE = ShapeCase("a", {}, ARRAY, ARRAY, 64.0, 512)
COLUMNS = ["run", "op", "chip", "status", "XLA", "best", "speedup", "trials", "begun"]


def judged(us: float | None) -> Evaluation:
    if us is None:
        return Evaluation("c", "v5e", (GateResult("compile", False, 0.1, "vmem_limit", "too\nbig"),))
    return Evaluation("c", "v5e", (GateResult("compile", True, 0.1),), (Timing("v5e", "a", us, "estimated", "floor"),))


def begin(journal: JsonlJournal, op: str, chip: str, **settings: Any) -> None:
    workload = Workload(op, f"{op}.py", f"def workload(x): ...  # {op}", (CASE,), (), {}, (), ("x",))
    started = {
        "workload": encode(workload), "chip": chip, "seed": 0, "settings": {"max_trials": 4, **settings},
        "versions": {"jax": "0.10.2"}, "sandbox": "bubblewrap", "op_path": f"ops/{op}.py",
    }  # fmt: skip
    journal.append("run_started", started)
    journal.append("baseline", {"evaluation": encode(judged(40.0))})
    journal.append("retrieved", {"generation": 0, "query": op, "passages": []})


def try_one(journal: JsonlJournal, index: int, us: float | None, family: str) -> None:
    code = f"def workload(x):\n    return x  # {family} {index}\n".encode()
    candidate = encode(Candidate("", "a plan", "catalog:k", family=family, params={"rows": index}))
    sha = journal.blobs.put(code)
    data = {"index": index, "candidate": candidate, "code": sha, "evaluation": encode(judged(us)), "seconds": 1.0}
    journal.append("trial", data)
    if us is not None:
        best = {"trial": index, "candidate_id": "c", "us": us, "speedup": 40 / us, "code": sha, "file": sha}
        journal.append("best", best)


def result(journal: JsonlJournal, us: float) -> RunResult:
    row = ShapeResult("a", 40.0, us, 40 / us, "floor", "floor")
    return RunResult(
        "improved", "v5e", "estimated", "floor", "unverified", 40.0, us, 40 / us, 0.9, (row,), 2, "nothing left",
        str(journal.folder / "best.py"), str(journal.folder), "bubblewrap", {},
    )  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """In the order of their beginnings: zebra (finished), 20260101-000000-aaaa (interrupted), beta (broken off)."""
    made = tmp_path / "runs"
    with JsonlJournal.create(made / "zebra", "zebra") as journal:
        begin(journal, "softmax", "v5e")
        try_one(journal, 0, None, "softmax")
        try_one(journal, 1, 20.0, "softmax")
        journal.append("finished", {"result": encode(result(journal, 20.0))})
    time.sleep(0.01)
    with JsonlJournal.create(made / "20260101-000000-aaaa", "20260101-000000-aaaa") as journal:
        begin(journal, "softmax", "v6e", max_trials=9)
        try_one(journal, 0, 10.0, "rows")
        journal.append("interrupted", {"signal": "SIGINT"})
    time.sleep(0.01)
    with JsonlJournal.create(made / "beta", "beta") as journal:
        begin(journal, "[red]matmul[/red]\x1b[2J", "v5e")
    return made


def spoil(root: Path) -> None:
    """Folders that are no runs, or were."""
    for name in ("foreign", "empty", "damaged", "folder/journal.jsonl", "later", "odd"):
        (root / name).mkdir(parents=True)
    (root / "foreign" / "notes.txt").write_text("mine")
    (root / "empty" / "journal.jsonl").touch()
    (root / "damaged" / "journal.jsonl").write_bytes((root / "zebra" / "journal.jsonl").read_bytes()[40:])
    (root / "later" / "journal.jsonl").write_text('{"v":99}\n')
    (root / "a-file").write_text("no folder")
    (root / ".hidden").mkdir()
    with JsonlJournal.create(root / "odd-data", "odd-data") as journal:
        journal.append("run_started", {"settings": [1]})
    (root / "odd" / "journal.jsonl").symlink_to("nowhere")


app = typer.Typer()
app.command("report")(report.report)
app.add_typer(runs.app, name="runs")


def tell(root: Path, *arguments: str | Path) -> Result:
    """The command in this process, with `root` as the folder of the runs."""
    return CliRunner().invoke(app, list(map(str, arguments)), env={"AKA_OUT": str(root)})


def aka(folder: Path, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from aka.cli.main import main; main()", *map(str, arguments)]
    plain = {k: v for k, v in os.environ.items() if not k.startswith("AKA_")}
    plain |= {"XDG_CONFIG_HOME": str(folder / "config"), **env}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=plain, timeout=60)


def test_newest_first_whatever_their_names(root: Path) -> None:
    done = tell(root, "runs")
    assert (done.exit_code, done.stderr) == (0, "")
    head, *rows = done.stdout.splitlines()
    assert head.split()[: len(COLUMNS)] == COLUMNS
    assert [row.split()[0] for row in rows] == ["beta", "20260101-000000-aaaa", "zebra"]
    assert "[red]matmul[/red]" in rows[0] and "\x1b" not in done.stdout
    assert rows[1].split()[1:10] == ["softmax", "v6e", "interrupted", "40", "µs", "10", "µs", "4.00x", "1"]
    assert "nothing left" in rows[2] and "improved" in rows[2] and "2.00x" in rows[2]


def test_the_list_as_json_and_filtered(root: Path) -> None:
    rows = json.loads(tell(root, "runs", "--json").stdout)
    assert [row["status"] for row in rows] == ["crashed", "interrupted", "improved"]
    assert rows[2]["best_us"] == pytest.approx(20.0) and rows[2]["trials"] == 2 and rows[2]["begun"].endswith("+00:00")
    for flags, found in (
        (("--op", "SoftMax"), ["20260101-000000-aaaa", "zebra"]),
        (("--op", "ops/softmax", "--chip", "v6e"), ["20260101-000000-aaaa"]),
        (("--status", "improved"), ["zebra"]),
    ):
        assert [row["run"] for row in json.loads(tell(root, "runs", "--json", *flags).stdout)] == found


def test_what_cannot_be_read_is_one_line(root: Path) -> None:
    spoil(root)
    done = tell(root, "runs")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["beta", "20260101-000000-aaaa", "zebra"]
    said = dict(line.split(": unreadable: ") for line in lines[4:])
    assert set(said) == {"foreign", "empty", "damaged", "folder", "later", "odd", "odd-data"}
    assert "does not exist" in said["foreign"] and "before it began" in said["empty"]
    assert "checksum" in said["damaged"] and "version 99" in said["later"] and "does not fit" in said["odd-data"]
    rows = json.loads(tell(root, "runs", "--json", "--status", "unreadable").stdout)
    assert {row["run"] for row in rows} == set(said) and all(row["reason"] for row in rows)


def test_a_run_that_is_under_way(root: Path) -> None:
    with JsonlJournal.create(root / "now", "now") as journal:
        begin(journal, "softmax", "v5e")
        (row,) = json.loads(tell(root, "runs", "--json", "--status", "running").stdout)
        assert row["run"] == "now"
        assert "The run is going on." in tell(root, "report", "now").stdout
        journal.append("interrupted", {"signal": "SIGINT"})
    (row, *_) = json.loads(tell(root, "runs", "--json").stdout)
    assert (row["run"], row["status"]) == ("now", "interrupted")


def test_no_runs_is_an_answer(tmp_path: Path) -> None:
    done = aka(tmp_path, "runs", "--folder", "nowhere", "--json")
    assert (done.returncode, json.loads(done.stdout), done.stderr) == (1, [], "no runs in nowhere\n")
    done = aka(tmp_path, "runs", AKA_OUT="elsewhere")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "no runs in elsewhere\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runs", "--chip", "v99"], "tpu7x"),
        (["runs", "--status", "fine"], "interrupted"),
        (["runs", "--json", "diff", "beta", "zebra"], "options of the list"),
        (["runs", "diff", "beta", "nothing"], "no run 'nothing'"),
        (["runs", "diff", "beta", "x" * 300], "no run"),
        (["runs", "diff", "beta"], "Missing argument"),
        (["report", "odd-data"], "does not fit"),
        (["report", "beta", "--out", "no/such/folder.md"], "cannot write no/such/folder.md"),
        (["report", "beta", "--out", "runs"], "cannot write runs"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line(root: Path, arguments: list[str], said: str) -> None:
    spoil(root)
    done = aka(root.parent, *arguments)
    assert done.returncode in (2, 4) and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("aka: ") and said in line


def test_two_runs_side_by_side(root: Path) -> None:
    done = tell(root, "runs", "diff", "zebra", "2026")
    assert done.exit_code == 0
    rows = {line[:20].strip(): line.split() for line in done.stdout.partition("\n\n")[0].splitlines()}
    assert rows["speedup"][1:] == ["2.00x", "4.00x"] and rows["chip"][1:] == ["v5e", "v6e"]
    assert rows["max_trials"][1:] == ["4", "9"]
    assert rows["rejected at compile"][3:] == ["1", "0"] and rows["tried softmax"][2:] == ["2", "0"]
    assert "--- zebra/best.py\n+++ 20260101-000000-aaaa/best.py" in done.stdout
    assert "-    return x  # softmax 1\n+    return x  # rows 0" in done.stdout
    assert "different chips" in done.stderr
    made = json.loads(tell(root, "runs", "diff", root / "zebra", "2026", "--json").stdout)
    assert made["gates_a"] == {"compile": 1} and made["families_b"] == {"rows": 1} and made["same_op"] is True
    assert {"name": "max_trials", "a": 4, "b": 9} in made["settings"]


def test_a_run_without_a_kernel_has_no_diff(root: Path) -> None:
    done = tell(root, "runs", "diff", "zebra", "last")
    assert done.exit_code == 0 and "no diff of the best kernels: beta found none" in done.stdout
    assert "different ops" in done.stderr
    assert "are the same" in tell(root, "runs", "diff", "zebra", "zebra").stdout


def test_report_prints_what_the_run_wrote_or_would_have(root: Path) -> None:
    done = tell(root, "report", "zebra")
    assert (done.exit_code, done.stderr) == (0, "") and done.stdout.startswith("# softmax on v5e: 2.00x over XLA\n")
    assert "| compile | `vmem_limit` | 1 of 2 | 0 |" in done.stdout
    broken = tell(root, "report", root / "beta").stdout
    assert "not finished, no improvement yet" in broken and "`aka optimize --resume` goes on with it" in broken
    made = json.loads(tell(root, "report", "2026", "--json").stdout)
    assert made["status"] == "interrupted" and made["result"] is None
    assert made["trials"][0]["verdict"] == "ACCEPT" and made["best_us"] == pytest.approx(10.0)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_report_into_a_file(root: Path, flags: list[str]) -> None:
    printed, told = tell(root, "report", "zebra", *flags).stdout, root.parent / "told"
    done = tell(root, "report", "zebra", "--out", told, *flags)
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{told}\n", "")
    assert told.read_text() == printed

"""A search killed by SIGKILL, as the OOM killer would, and taken up again: real processes, a real compiler."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import Runs, trials

from aka.types import Event

# Go on after a kernel that is nearly at the roofline; one that is quite there (the fifth or sixth) still ends a run.
CANARY = "sk-ant-api03-" + "canary" * 8
SETTINGS = {"AKA_EARLY_STOP_ROOFLINE": "1", "ANTHROPIC_API_KEY": CANARY}


def after_trials(count: int) -> Callable[[list[Event]], bool]:
    """Due once this many trials have ended in this session."""
    return lambda events: trials(events) >= count


def within_a_trial(events: list[Event]) -> bool:
    """Due a moment after the first trial of this session began."""
    begun = [event for event in events if event.type == "trial_started"]
    if not begun:
        return False
    time.sleep(0.4)
    return True


def at(type: str) -> Callable[[list[Event]], bool]:
    """Due at the first event of this type in this session."""
    return lambda events: any(event.type == type for event in events)


def after_a_trial(seconds: float) -> Callable[[list[Event]], bool]:
    """Due this long after the first trial of this session ended."""
    ended: list[float] = []

    def due(events: list[Event]) -> bool:
        if trials(events) and not ended:
            ended.append(time.monotonic())
        return bool(ended) and time.monotonic() - ended[0] >= seconds

    return due


def check_whole(runs: Runs, count: int) -> None:
    """Every trial is there once, and best.py is the journal's best."""
    made = runs.of("trial")
    assert [trial["index"] for trial in made] == list(range(count))
    ids = [tried(trial) for trial in made]
    assert len(set(ids)) == count
    best = runs.of("best")[-1]
    assert hashlib.sha256((runs.run / "best.py").read_bytes()).hexdigest() == best["file"]
    judged = {trial["index"]: trial for trial in made}
    fastest = max(float(str(trial["speedup"])) for trial in made if trial["speedup"] is not None)
    assert best["speedup"] == judged[best["trial"]]["speedup"] == fastest


def tried(trial: dict[str, object]) -> str:
    """What a trial tried: the hash of its code."""
    return str(trial["code"])


def check_accepted(runs: Runs) -> None:
    done = runs.aka("check", runs.run / "best.py", "--op", runs.op, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["verdict"] == "ACCEPT"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A run of three trials, killed after the first and amid the second, then finished."""
    runs = Runs(tmp_path_factory.mktemp("killed"), SETTINGS)
    for due, arguments in (
        (after_trials(1), ("optimize", runs.op, "--out", runs.run, "--max-trials", "3")),
        (within_a_trial, ("optimize", "--resume", runs.run)),
    ):
        assert runs.kill_when(due, *arguments), "it ended before it was killed"
        assert runs.wait_for_no_survivor() == []
        runs.check_best()
    done = runs.aka("optimize", "--resume", runs.run, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"] == 3
    return runs


def test_killed_twice_and_resumed_it_ends_whole(killed: Runs) -> None:
    check_whole(killed, 3)
    started = [data["index"] for data in killed.of("trial_started")]
    assert started in ([0, 1, 1, 2], [0, 1, 1, 1, 2]), "only what was cut short is started again"
    assert len(killed.of("resumed")) == 2 and len(killed.of("baseline")) == 1
    check_accepted(killed)


def test_a_finished_run_is_shown_again_and_goes_on_with_more_trials(killed: Runs) -> None:
    before = killed.events()
    shown = killed.aka("optimize", "--resume", killed.run, "--json")
    assert shown.returncode == 0 and killed.events() == before
    assert json.loads(shown.stdout) == json.loads((killed.run / "result.json").read_text())
    assert "larger --max-trials" in shown.stderr
    done = killed.aka("optimize", "--resume", killed.run, "--max-trials", "4", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"] == 4 and killed.events()[: len(before)] == before
    check_whole(killed, 4)


def test_a_key_in_the_environment_is_nowhere_in_the_run(killed: Runs) -> None:
    files = [path for path in killed.run.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path.name for path in files if b"canary" in path.read_bytes()]
    assert "canary" not in killed.aka("report", killed.run).stdout


def test_a_run_goes_on_only_on_its_own_chip(killed: Runs) -> None:
    before = killed.events()
    done = killed.aka("optimize", "--resume", killed.run, "--chip", "v6e")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("aka: ") and "chip v5e -> v6e" in line
    assert killed.events() == before


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("sandbox", "pairs"), [("auto", 4), ("rlimits", 2)])
def test_killed_at_random_moments_nothing_is_lost(tmp_path: Path, sandbox: str, pairs: int) -> None:
    runs = Runs(tmp_path, {**SETTINGS, "AKA_SANDBOX": sandbox})
    chance = random.Random(sandbox)
    # Every other one lets a trial end: one that is cut short twice is passed over, and this test wants all of them.
    early = [at(type) for type in ("baseline", "resumed", "retrieved", "resumed")[:pairs]]
    late = [after_a_trial(chance.uniform(0.0, 2.0)) for _ in early]
    arguments: tuple[str | Path, ...] = ("optimize", runs.op, "--out", runs.run, "--max-trials", "6")
    kills = 0
    for due in itertools.chain(*zip(early, late, strict=True)):
        kills += runs.kill_when(due, *arguments)
        assert runs.wait_for_no_survivor() == []
        runs.check_best()
        arguments = ("optimize", "--resume", runs.run)
    assert kills >= 2 * pairs - 2, "the run ended too early for this test to say much"
    done = runs.aka(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["trials"] >= 4 and "crashed_evaluator" not in (runs.run / "journal.jsonl").read_text()
    check_whole(runs, result["trials"])
    check_accepted(runs)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_in_two_parts_tries_what_a_run_in_one_part_tries(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = Runs(tmp_path / "one", SETTINGS), Runs(tmp_path / "two", SETTINGS)
    assert one.aka("optimize", one.op, "--out", one.run, "--max-trials", "6").returncode == 0
    assert two.aka("optimize", two.op, "--out", two.run, "--max-trials", "3").returncode == 0
    assert two.aka("optimize", "--resume", two.run, "--max-trials", "6").returncode == 0
    assert [tried(trial) for trial in one.of("trial")] == [tried(trial) for trial in two.of("trial")]
    assert one.of("best")[-1]["speedup"] == two.of("best")[-1]["speedup"]

"""The view of a run: lines where stderr is a file, a panel on a (real) terminal, and never a byte on stdout."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aka.cli import console
from aka.cli.progress import Progress
from aka.cli.view import make_view
from aka.errors import Busy, UsageError
from aka.types import ArraySpec, Evaluation, Event, GateResult, ShapeCase, Signature, Timing, Workload, encode

CASE = ShapeCase("a", {}, Signature((ArraySpec((8, 8), "float32"),), 0), Signature((), None), 64.0, 512)
WORKLOAD = Workload("softmax", "op.py", "", (CASE,), (), {}, (), ("x",))
ACCEPTED = Evaluation(
    "c1", "v5e", (GateResult("static", True, 0.1),), (Timing("v5e", "a", 20.0, "estimated", "exact loop"),)
)
REJECTED = Evaluation("c0", "v5e", (GateResult("compile", False, 0.1, "vmem_oom", "[red]too\nbig[/red]\x1b[2J"),))
EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("run_started", {"workload": encode(WORKLOAD), "chip": "v5e", "sandbox": "bwrap", "seed": 1}),
    ("baseline", {"evaluation": encode(ACCEPTED)}),
    ("retrieved", {"passages": [{"doc_id": "kernel-softmax"}, {"doc_id": "note-vmem"}]}),
    ("trial_started", {"index": 0, "origin": "catalog", "family": "softmax", "params": {"rows": 8}}),
    ("trial", {"index": 0, "evaluation": encode(REJECTED), "speedup": None}),
    ("trial_started", {"index": 1, "origin": "catalog", "family": "", "params": {}}),
    ("trial", {"index": 1, "evaluation": encode(ACCEPTED), "speedup": 2.0}),
    ("best", {"trial": 1, "us": 20.0, "speedup": 2.0}),
    ("dropout", {"generation": 1, "trigger": "no gain", "masked": [0], "fresh": True}),
    ("final_check", {"candidate_id": "c1", "evaluation": encode(ACCEPTED)}),
    ("interrupted", {"signal": "SIGINT"}),
    ("resumed", {"from_seq": 10}),
    ("surprise", {}),
    ("finished", {"result": {"status": "improved", "speedup": 2.0, "stop_reason": "40 trials"}}),
]
LINES = [
    "softmax on v5e: 1 shape, sandbox bwrap, seed 1",
    "baseline under XLA: 20 µs (estimated, exact loop)",
    "retrieved: kernel-softmax, note-vmem",
    "trial 0 (1 of 40): softmax rows=8",
    "trial 0 (1 of 40): vmem_oom at compile: [red]too big[/red]",
    "trial 1 (2 of 40): catalog –",
    "trial 1 (2 of 40): ACCEPT 20 µs, 2.00x",
    "best so far: 20 µs, 2.00x (trial 1)",
    "dropout 1: no gain; masked trials: 1, fresh context",
    "final check of c1: ACCEPT 20 µs",
    "interrupted by SIGINT",
    "resumed after event 10",
    "surprise",
    "finished: improved, 2.00x; 40 trials",
]


def _events() -> list[Event]:
    return [Event(seq, type, data) for seq, (type, data) in enumerate(EVENTS)]


@pytest.mark.parametrize("as_json", [True, False])
def test_without_a_terminal_each_event_is_one_line(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    with make_view(40, 10.0, as_json) as view:
        for event in _events():
            view(event)
            view.gate(1, "compile")
    written = capsys.readouterr()
    assert written.err.splitlines() == LINES
    assert written.out == ""


def test_a_kernel_that_is_only_slower_is_no_rejection() -> None:
    progress = Progress(40, 10.0)
    slower = Evaluation("c2", "v5e", (GateResult("performance", False, 0.1, "slower", "slower than the best"),))
    for index, evaluation in enumerate((ACCEPTED, REJECTED, slower)):
        data = {"index": index, "evaluation": encode(evaluation), "speedup": None}
        progress.on_event(Event(index, "trial", data))
    assert progress.outcomes == "1 accepted, 1 slower than the best, rejected: 1 at compile"


def test_past_events_are_taken_in_silently(capsys: pytest.CaptureFixture[str]) -> None:
    with make_view(40, 10.0, False, past=_events()[:8], elapsed_s=60.0) as view:
        view(_events()[8])
    assert capsys.readouterr().err.splitlines() == LINES[8:9]


# Draws a run on whatever its stderr is; the file holds the events.
_DRAW = """
import json, pathlib, sys
from aka.cli.progress import Progress
from aka.cli.view import make_view
from aka.types import Event
with make_view(40, 10.0, sys.argv[2] == "json") as view:
    for seq, (type, data) in enumerate(json.loads(pathlib.Path(sys.argv[1]).read_text())):
        view(Event(seq, type, data))
        view.gate(0, "correctness")
        getattr(view, "_live", None) and view._live.refresh()
    if len(sys.argv) > 3:
        raise KeyboardInterrupt
"""


def _on_a_terminal(tmp_path: Path, *arguments: str, term: str = "xterm-256color") -> tuple[str, bytes]:
    """What the run writes on a pseudo-terminal as stderr, and on stdout."""
    (tmp_path / "events.json").write_text(json.dumps(EVENTS))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", _DRAW, str(tmp_path / "events.json"), *arguments]
    environment = {**os.environ, "TERM": term, "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
        os.close(theirs)
        drawn = _drain(ours)
        assert process.stdout is not None
        return drawn.decode(), process.stdout.read()


def _drain(terminal: int) -> bytes:
    drawn = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # Linux says EIO when the other side is closed
            chunk = b""
        if not chunk:
            os.close(terminal)
            return drawn
        drawn += chunk


def test_on_a_terminal_a_panel_is_drawn(tmp_path: Path) -> None:
    drawn, answer = _on_a_terminal(tmp_path, "text")
    assert answer == b""
    for said in (
        "softmax on v5e", "20 µs, 2.00x (trial 1)", "trial 0 (1 of 40): softmax rows=8, at the correctness gate",
        "38 of 40 trials and ", " of 10 minutes left", "kernel-softmax, note-vmem", "vmem_oom at compile: [red]too big",
        "1 accepted, rejected: 1 at compile", "generation 1 after dropout", "looking into the library (",
        "checking the best again on fresh inputs, at the correctness gate",
    ):  # fmt: skip
        assert said in drawn
    assert "\x1b[2J" not in drawn, "an escape of the compiler's text reached the terminal"
    assert drawn.count("\x1b[?25h") >= drawn.count("\x1b[?25l") > 0, "the cursor stays hidden"


def test_an_interrupt_gives_the_terminal_back(tmp_path: Path) -> None:
    drawn, answer = _on_a_terminal(tmp_path, "text", "interrupt")
    assert answer == b""
    assert "KeyboardInterrupt" in drawn.rsplit("\x1b[?25h", 1)[1]


@pytest.mark.parametrize(("mode", "term"), [("json", "xterm"), ("text", "dumb")])
def test_json_or_a_dumb_terminal_gets_lines(tmp_path: Path, mode: str, term: str) -> None:
    drawn, _ = _on_a_terminal(tmp_path, mode, term=term)
    assert drawn.splitlines() == LINES


def test_an_error_is_one_line_and_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.fail(UsageError("no such\nfile \x1b[31mop.py")) == 2
    assert console.fail(Busy("in use")) == 3
    written = capsys.readouterr()
    assert written.err == "aka: no such file op.py\naka: in use\n"
    assert written.out == ""


def test_json_answers_are_strict(capsys: pytest.CaptureFixture[str]) -> None:
    console.answer_json({"us": 1.5, "name": "é"})
    assert json.loads(capsys.readouterr().out) == {"us": 1.5, "name": "é"}
    with pytest.raises(ValueError):
        console.answer_json({"us": float("nan")})
    assert capsys.readouterr().out == ""

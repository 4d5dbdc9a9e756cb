"""Runs of `aka optimize` that the tests start, watch by their journal, kill and take up again."""

from __future__ import annotations

import ast
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aka.journal import JsonlJournal
from aka.types import Event

OP = """
import jax
import jax.numpy as jnp

CONFIG = {"rows": 512, "cols": 1024}
TEST_SHAPES = [{"rows": 64, "cols": 256}]


def create_inputs(dtype=jnp.float32):
    return (jax.random.normal(jax.random.key(0), (CONFIG["rows"], CONFIG["cols"]), dtype),)


def workload(x):
    return jax.nn.softmax(x, axis=-1)
"""
"""Six row blocks fit, each is a trial of 1 to 4 s."""


@dataclass
class Runs:
    """Starts `aka` in `folder`, whose `op.py` it writes. Every process of these runs, the workers in the sandbox too,
    carries `marker` in its environment: a site-packages folder, which the sandbox passes on."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.marker = self.folder / "marker" / "site-packages"
        self.marker.mkdir(parents=True)
        self.op = self.folder / "op.py"
        self.op.write_text(OP)
        self.run = self.folder / "run"

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from aka.cli.main import main; main()", *map(str, arguments)]
        plain = {k: v for k, v in os.environ.items() if not k.startswith("AKA_") or k == "AKA_SANDBOX"}
        path = os.pathsep.join(p for p in (str(self.marker), plain.get("PYTHONPATH", "")) if p)
        env = plain | {"XDG_CONFIG_HOME": str(self.folder / "config"), "PYTHONPATH": path} | self.settings
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=self.folder, env=env)

    def aka(self, *arguments: str | Path, timeout_s: float = 250) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        with self.start(*arguments) as process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            finally:
                process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def kill_when(self, due: Callable[[list[Event]], bool], *arguments: str | Path, patience_s: float = 200) -> bool:
        """Start, watch the run until its journal is `due`, then SIGKILL the one process; False if it ended before.
        best.py is held against the journal all the while."""
        before = self.events()
        deadline = time.monotonic() + patience_s
        with self.start(*arguments) as process:
            try:
                while process.poll() is None and not due(self.events()[len(before) :]):
                    assert time.monotonic() < deadline, f"not due after {patience_s} s: {self.events()[-3:]}"
                    self.check_best()
                    time.sleep(0.02)
                alive = process.poll() is None
                assert not alive or len(self.marked()) > 1, "the marker must reach the workers"
            finally:
                process.kill()
            process.wait()
        assert self.events()[: len(before)] == before
        return alive and process.returncode == -signal.SIGKILL

    def events(self) -> list[Event]:
        path = self.run / "journal.jsonl"
        return JsonlJournal.read(self.run).events() if path.exists() else []

    def of(self, type: str) -> list[dict[str, object]]:
        return [event.data for event in self.events() if event.type == type]

    def marked(self) -> list[int]:
        """Living processes of these runs (a zombie has no environment left)."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if str(self.marker).encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def wait_for_no_survivor(self, patience_s: float = 5.0) -> list[int]:
        """The marked processes that outlive the patience."""
        deadline = time.monotonic() + patience_s
        while (left := self.marked()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def check_best(self) -> None:
        """best.py is absent, or the whole file of a kernel that the journal holds as the best of its moment."""
        before = self.events()
        try:
            text = (self.run / "best.py").read_bytes()
        except FileNotFoundError:
            assert not any(event.type == "best" for event in before)
            return
        after = self.events()
        assert "workload" in [n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
        earlier = [event.data["file"] for event in before if event.type == "best"][-1:]
        since = [event.data["file"] for event in after[len(before) :] if event.type == "best"]
        if hashlib.sha256(text).hexdigest() not in earlier + since:
            # The moment between a trial and the event that makes it the best, which may come in the next session.
            last = [event for event in after if event.type != "resumed"][-1]
            assert last.type == "trial" and text.endswith(self._code(last))

    def _code(self, event: Event) -> bytes:
        return (self.run / "blobs" / str(event.data["code"])).read_bytes()


def trials(events: list[Event]) -> int:
    return sum(event.type == "trial" for event in events)

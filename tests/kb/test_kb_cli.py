"""`aka kb`: answers on stdout, everything else on stderr; quick and quiet as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aka.cli.kb import app
from aka.errors import UsageError
from aka.kb.places import Places


def _places(library: Places) -> list[str]:
    return ["--knowledge", str(library.knowledge), "--kernels", str(library.kernels), "--index", str(library.index)]


def test_search_for_people(built: Places) -> None:
    result = CliRunner().invoke(app, ["search", "scoped vmem oom", "-k", "2", *_places(built)])
    assert result.exit_code == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].startswith("1. scoped-vmem-limit  [note, score ")
    assert lines[3] == "   knowledge/constraints/scoped-vmem-limit.md"
    assert sum(line.startswith("2. ") for line in lines) == 1


def test_search_for_programs(built: Places) -> None:
    result = CliRunner().invoke(app, ["search", "normalise rows", "--kind", "kernel", "--json", *_places(built)])
    rows = json.loads(result.stdout)
    assert [row["rank"] for row in rows] == [1, 2]
    assert rows[0]["id"] == "rms-norm-row-blocks" and rows[0]["path"].endswith("rms_norm/row_blocks.py")
    assert len(rows[0]["snippet"]) <= 200 < len(rows[0]["text"])


def test_show(built: Places) -> None:
    result = CliRunner().invoke(app, ["show", "matmul-tiled", *_places(built)])
    assert result.stdout == (built.kernels / "matmul/tiled.py").read_text()  # type: ignore[operator]
    told = json.loads(CliRunner().invoke(app, ["show", "matmul-tiled", "--json", *_places(built)]).stdout)
    assert told["kind"] == "kernel" and told["front_matter"]["op"] == "y = x @ w"


def test_show_names_the_nearest(built: Places) -> None:
    result = CliRunner().invoke(app, ["show", "scoped-vmem", *_places(built)])
    assert isinstance(result.exception, UsageError) and result.exception.exit_code == 2
    assert "nearest: scoped-vmem-limit" in str(result.exception)


def test_build_reports_and_is_idempotent(built: Places) -> None:
    result = CliRunner().invoke(app, ["build", "--json", *_places(built)])
    report = json.loads(result.stdout)
    assert report["built"] is False and report["documents"] == 5
    assert "up to date: 5 documents, 14 passages (0 new)" in CliRunner().invoke(app, ["build", *_places(built)]).stdout


RUN = "from aka.cli.kb import app; app()"
LOADED = (
    "import sys; from aka.cli.kb import app\n"
    "try: app()\n"
    "except SystemExit: pass\n"
    "print([m for m in ('llama_index', 'sentence_transformers', 'torch', 'jax', 'bm25s') if m in sys.modules])"
)


def _process(code: str, arguments: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, text=True, capture_output=True, check=False
    )


def test_a_real_process_leaves_no_trace_and_loads_nothing_slow(built: Places, tmp_path: Path) -> None:
    done = _process(LOADED, ["search", "scoped vmem oom", *_places(built)], tmp_path)
    assert done.stdout.startswith("1. scoped-vmem-limit"), done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_first_use_builds_with_sentence_transformers_or_says_otherwise(library: Places, tmp_path: Path) -> None:
    done = _process(RUN, ["search", "scoped vmem oom", "--json", *_places(library)], tmp_path / "home")
    assert json.loads(done.stdout)[0]["id"] == "scoped-vmem-limit"
    assert "building the index" in done.stderr and "(first use)" in done.stderr

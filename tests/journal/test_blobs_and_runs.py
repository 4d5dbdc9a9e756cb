"""Blobs by content, atomic files, redaction, and how a run is named."""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path

import pytest

from aka.errors import Busy, JournalCorrupt, UsageError
from aka.journal import (
    BlobStore,
    JsonlJournal,
    find_run,
    is_held,
    new_run_id,
    run_folders,
    runs_root,
    write_atomically,
)
from aka.journal.redact import Redactor
from aka.journal.runs import run_ids


def test_a_blob_is_found_by_its_hash_and_kept_once(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    sha = blobs.put(b"kernel")
    assert sha == hashlib.sha256(b"kernel").hexdigest() == blobs.put(b"kernel")
    assert blobs.get(sha) == b"kernel"
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == [sha]


def test_a_damaged_blob_is_never_served_and_is_mended_by_put(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    sha = blobs.put(b"kernel")
    (tmp_path / "blobs" / sha).write_bytes(b"kernek")
    with pytest.raises(JournalCorrupt, match="has changed"):
        blobs.get(sha)
    assert blobs.put(b"kernel") == sha
    assert blobs.get(sha) == b"kernel"


def test_a_missing_blob_and_a_path_for_a_hash_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalCorrupt, match="is missing"):
        BlobStore(tmp_path).get("0" * 64)
    with pytest.raises(UsageError, match="not a sha256"):
        BlobStore(tmp_path).get("../journal.jsonl")


def test_write_atomically_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "best.py"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_write_atomically_keeps_the_old_file_when_it_cannot_replace(tmp_path: Path) -> None:
    (tmp_path / "best.py" / "inside").mkdir(parents=True)
    with pytest.raises(OSError):
        write_atomically(tmp_path / "best.py", b"one")
    assert [path.name for path in tmp_path.iterdir()] == ["best.py"]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("sk-ant-api03-abcdefgh_ijkl", True),
        ("AIza" + "a" * 35, True),
        ("ya29." + "b" * 30, True),
        ("hunter2-hunter2", True),
        ("mask-abcdefghijklmnopqrstuv", False),
        ("sk-short", False),
        ("false", False),
    ],
)
def test_what_counts_as_a_secret(text: str, masked: bool) -> None:
    redactor = Redactor({"MY_TOKEN": "hunter2-hunter2", "TOKENIZERS_PARALLELISM": "a plain value", "A_KEY": "false"})
    assert redactor.json({"a": [text]}) == {"a": ["[redacted]" if masked else text]}
    assert redactor.text("a plain value") == "a plain value"


def test_run_ids_sort_by_time() -> None:
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", new_run_id())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for run in ("20260101-000000-aaaa", "20260101-000000-bbbb", "20260203-000000-cccc"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "journal.jsonl").touch()
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_find_run_by_id_prefix_path_and_last(root: Path) -> None:
    newest = root / "20260203-000000-cccc"
    assert find_run("20260203-000000-cccc", root) == newest
    assert find_run("202602", root) == newest
    assert find_run("last", root) == newest
    assert find_run(str(newest), Path("nowhere")) == newest


def test_the_last_run_is_the_one_that_began_last(tmp_path: Path) -> None:
    for run in ("zebra", "20260101-000000-aaaa", "mine"):
        with JsonlJournal.create(tmp_path / run, run) as journal:
            journal.append("run_started", {})
        time.sleep(0.01)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "journal.jsonl").touch()
    assert run_ids(tmp_path) == ["new", "zebra", "20260101-000000-aaaa", "mine"]
    assert find_run("last", tmp_path) == tmp_path / "mine"
    with pytest.raises(UsageError, match="no run"):
        find_run("x" * 300, tmp_path)


def test_every_folder_is_listed_but_hidden_ones(root: Path) -> None:
    (root / ".cache").mkdir()
    (root / "file").touch()
    assert [folder.name for folder in run_folders(root)][-1] == "notes" and len(run_folders(root)) == 4
    assert run_folders(root / "nowhere") == []


def test_a_lock_is_seen_while_it_is_held(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    with JsonlJournal.create(tmp_path / "run", "run"):
        assert is_held(tmp_path / "run") and is_held(tmp_path / "run")
        with pytest.raises(Busy):
            JsonlJournal.resume(tmp_path / "run")
    assert not is_held(tmp_path / "run")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("20260101", "is the start of 2 runs in .*aaaa, .*bbbb"),
        ("20260203-000000-cccd", "the nearest: 20260203-000000-cccc"),
        ("zzz", "the latest: 20260203-000000-cccc"),
        ("", "the latest"),
        ("notes", "no run 'notes'"),
    ],
)
def test_find_run_lists_the_nearest(root: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_run(text, root)


def test_find_run_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are no runs in"):
        find_run("last", tmp_path)
    assert runs_root() == Path("runs")

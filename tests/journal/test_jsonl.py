"""The journal: what it writes, what it refuses, and what it repairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aka.errors import Busy, JournalCorrupt, UsageError
from aka.journal import JsonlJournal


def _write(folder: Path, count: int = 3) -> Path:
    with JsonlJournal.create(folder, "r1") as journal:
        for number in range(count):
            journal.append("tick", {"number": number, "text": "é\n\u2028"})
    return folder / "journal.jsonl"


def test_a_record_is_one_line_of_strict_json(tmp_path: Path) -> None:
    lines = _write(tmp_path / "run").read_text().split("\n")
    assert lines.pop() == ""
    first = json.loads(lines[0])
    assert list(first) == ["v", "seq", "run", "t_wall", "t_mono", "type", "data", "crc"]
    assert (first["v"], first["seq"], first["run"], first["type"]) == (1, 0, "r1", "tick")
    assert [json.loads(line)["seq"] for line in lines] == [0, 1, 2]


def test_events_come_back_as_they_were_appended(tmp_path: Path) -> None:
    with JsonlJournal.create(tmp_path / "run", "r1") as journal:
        made = [journal.append("tick", {"shape": (1, 2), "name": "é"}), journal.append("tock", {})]
        assert journal.events() == made
    assert made[0].data == {"shape": [1, 2], "name": "é"}
    assert JsonlJournal.read(tmp_path / "run").events() == made
    with JsonlJournal.resume(tmp_path / "run") as again:
        assert again.events() == made
        assert again.message == ""
        assert again.append("tick", {}).seq == 2


def test_a_torn_tail_at_every_byte_is_cut_and_reported(tmp_path: Path) -> None:
    path = _write(tmp_path / "run")
    whole = path.read_bytes()
    keep = whole.rfind(b"\n", 0, -1) + 1
    for end in range(keep, len(whole)):
        path.write_bytes(whole[:end])
        assert len(JsonlJournal.read(path.parent).events()) == 2
        assert path.stat().st_size == end, "reading must not repair"
        with JsonlJournal.resume(path.parent) as journal:
            assert len(journal.events()) == 2
            assert bool(journal.message) == (end > keep)
            assert path.read_bytes() == whole[:keep]
            assert journal.append("tick", {}).seq == 2
        assert len(JsonlJournal.read(path.parent).events()) == 3


def test_a_hole_of_zeros_in_the_last_record_is_a_torn_tail(tmp_path: Path) -> None:
    path = _write(tmp_path / "run")
    whole = path.read_bytes()
    start = whole.rfind(b"\n", 0, -1) + 1
    path.write_bytes(whole[:start] + bytes(40) + whole[start + 40 :])
    with JsonlJournal.resume(path.parent) as journal:
        assert len(journal.events()) == 2
        assert "cut" in journal.message


def test_any_flipped_bit_is_found_and_the_file_kept(tmp_path: Path) -> None:
    path = _write(tmp_path / "run")
    whole = path.read_bytes()
    second = whole.index(b"\n") + 1
    for place in range(second, whole.index(b"\n", second)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(JournalCorrupt, match=r"line [23]"):
            JsonlJournal.resume(path.parent)
        assert path.read_bytes() == damaged


def test_a_missing_line_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "run")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    with pytest.raises(JournalCorrupt, match="line 2: record 2 stands where 1 belongs"):
        JsonlJournal.read(path.parent)


def test_a_line_of_another_run_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "run")
    with JsonlJournal.create(tmp_path / "other", "r2") as journal:
        for _ in range(4):
            journal.append("tick", {})
    foreign = (tmp_path / "other" / "journal.jsonl").read_bytes().splitlines(keepends=True)[3]
    path.write_bytes(path.read_bytes() + foreign)
    with pytest.raises(JournalCorrupt, match="line 4: a record of run 'r2'"):
        JsonlJournal.read(path.parent)


@pytest.mark.parametrize("line", [b'{"v":2,"seq":0,"new":1}\n', b'{"v":7,"sum":"ff"}\n'])
def test_a_future_version_is_told_apart_from_damage(tmp_path: Path, line: bytes) -> None:
    path = _write(tmp_path / "run", 0)
    path.write_bytes(line)
    with pytest.raises(JournalCorrupt, match=r"version .* this aka knows version 1"):
        JsonlJournal.resume(path.parent)
    assert path.read_bytes() == line


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_hold_is_refused_and_leaves_no_trace(tmp_path: Path, value: float) -> None:
    with JsonlJournal.create(tmp_path / "run", "r1") as journal:
        with pytest.raises(ValueError):
            journal.append("tick", {"us": value})
        assert (tmp_path / "run" / "journal.jsonl").read_bytes() == b""
        assert journal.append("tick", {}).seq == 0


def test_long_data_goes_to_a_blob_and_comes_back(tmp_path: Path) -> None:
    data = {"text": "x" * 200_000, "n": [1, 2]}
    with JsonlJournal.create(tmp_path / "run", "r1") as journal:
        assert journal.append("tick", data).data == data
    lines = (tmp_path / "run" / "journal.jsonl").read_bytes().splitlines()
    assert all(len(line) < 64_000 for line in lines)
    assert JsonlJournal.read(tmp_path / "run").events()[0].data == data


def test_create_refuses_a_folder_with_a_run_and_a_file(tmp_path: Path) -> None:
    path = _write(tmp_path / "run")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="holds a run already"):
        JsonlJournal.create(tmp_path / "run", "r2")
    assert path.read_bytes() == before
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="not a folder"):
            JsonlJournal.create(target, "r1")


def test_resume_and_read_name_a_run_that_is_not_there(tmp_path: Path) -> None:
    for open_it in (JsonlJournal.resume, JsonlJournal.read):
        with pytest.raises(UsageError, match="no run there"):
            open_it(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_cannot_append(tmp_path: Path) -> None:
    _write(tmp_path / "run")
    with pytest.raises(UsageError, match="reading only"):
        JsonlJournal.read(tmp_path / "run").append("tick", {})


def test_a_second_writer_in_the_same_process_is_busy(tmp_path: Path) -> None:
    with JsonlJournal.create(tmp_path / "run", "r1"), pytest.raises(Busy):
        JsonlJournal.resume(tmp_path / "run")


def test_a_closed_run_gives_its_reserve_back(tmp_path: Path) -> None:
    with JsonlJournal.create(tmp_path / "run", "r1"):
        assert (tmp_path / "run" / "reserve.bin").stat().st_blocks * 512 >= 16 * 2**20
    assert not (tmp_path / "run" / "reserve.bin").exists()


def test_a_secret_never_reaches_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = "canary-9f8e7d6c5b4a"
    monkeypatch.setenv("ANTHROPIC_API_KEY", canary)
    with JsonlJournal.create(tmp_path / "run", "r1") as journal:
        journal.append("tick", {"note": f"key={canary}", canary: ["sk-ant-api03-abcdefghijklmnop"]})
        journal.append("tick", {"long": canary * 10_000})
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            assert canary.encode() not in path.read_bytes()
            assert b"sk-ant" not in path.read_bytes()
    first = JsonlJournal.read(tmp_path / "run").events()[0]
    assert first.data == {"note": "key=[redacted]", "[redacted]": ["[redacted]"]}

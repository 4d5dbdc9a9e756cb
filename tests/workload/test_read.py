"""A file that somebody brings: everything that can be wrong with it ends as one line that names it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from aka.errors import WorkloadError
from aka.workload.read import MAX_BYTES, read_kernel, read_workload

GOOD = "def workload(x):\n    return x\n\n\ndef create_inputs():\n    return ()\n"


def refusal(path: Path) -> str:
    with pytest.raises(WorkloadError) as caught:
        read_workload(path)
    text = str(caught.value)
    assert text.startswith(str(path)) and "\n" not in text
    return text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"x = 1\n# caf\xe9\n", "byte 0xe9 at offset 11"),
        (b"\xef\xbb\xbfx = '\xe9'", "byte 0xe9 at offset 8"),
        (b"x = 1\0\n", "NUL byte at offset 5"),
        (b"def workload(x:\n", ":1: syntax error"),
        (b"\n\ndef f(:\n", ":3: syntax error"),
        (b"x = " + b"-" * 100_000 + b"1", "nested too deeply"),
        (b"x = 1" + b" + 1" * 50_000, "nested too deeply"),
        (b"#" * (MAX_BYTES + 1), f"at most {MAX_BYTES}"),
        (b"", "no `workload` at the top level; expected workload(*inputs)"),
        (b"def workload(x): return x", "no `create_inputs` at the top level; expected create_inputs("),
        (b"def f():\n  workload = create_inputs = 1\n", "no `workload`"),
        (b"class C:\n  def workload(self): pass\n", "no `workload`"),
    ],
    ids=["utf8", "utf8-bom", "nul", "syntax", "line", "depth", "chain", "size", "empty", "half", "local", "method"],
)
def test_bad_text_is_refused_in_one_line(tmp_path: Path, data: bytes, words: str) -> None:
    op = tmp_path / "op.py"
    op.write_bytes(data)
    assert words in refusal(op)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop.py").symlink_to("loop.py")
    assert "No such file" in refusal(tmp_path / "none.py")
    assert "is a directory" in refusal(tmp_path)
    assert "symbolic links" in refusal(tmp_path / "loop.py")
    assert "not a regular file" in refusal(Path(os.devnull))
    assert "too long" in refusal(tmp_path / ("n" * 300))


@pytest.mark.parametrize("name", ["a\nb.py", "\udcff.py", "\x1b[2J.py"])
def test_a_name_that_cannot_be_shown_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(GOOD)
    with pytest.raises(WorkloadError) as caught:
        read_workload(tmp_path / name)
    assert str(caught.value).isprintable() and "control characters" in str(caught.value)


def test_a_fifo_never_blocks(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "op.py")
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.append(refusal(tmp_path / "op.py")), daemon=True)
    reader.start()
    reader.join(10)
    assert len(said) == 1 and "not a regular file" in said[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    op = tmp_path / "op.py"
    op.write_text(GOOD)
    op.chmod(0)
    assert "Permission denied" in refusal(op)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\r\n"),
        "import jax\nif True:\n    def workload(x): return x\nelse:\n    workload = None\ncreate_inputs = lambda: ()\n",
        "try:\n    from m import workload\nexcept ImportError:\n    workload: object = None\ncreate_inputs, y = f, 1\n",
    ],
    ids=["plain", "bom", "crlf", "if", "try"],
)
def test_good_files_are_read_without_being_run(tmp_path: Path, text: str) -> None:
    op = tmp_path / "op.py"
    op.write_bytes(text.encode())
    made = read_workload(op)
    assert {"workload", "create_inputs"} <= made.names and not made.text.startswith("\ufeff")
    assert made.path == op and made.text and not made.is_reference_kernel


def test_a_kernel_file_is_a_candidate_or_a_reference_kernel(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text("def workload(x): return x")
    assert not read_kernel(path).is_reference_kernel
    path.write_text("def kernel(x): return x\ndef reference(x): return x")
    assert read_kernel(path).is_reference_kernel
    path.write_text("def reference(x): return x")
    with pytest.raises(WorkloadError, match=r"neither workload\(\*inputs\) nor a reference kernel"):
        read_kernel(path)

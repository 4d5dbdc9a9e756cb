"""Read a Python file that somebody brings (a workload or a kernel) without running it.

Everything that can be wrong with such a file ends here as one line: missing, a folder, a FIFO (never opened, so never
blocks), unreadable, too large, not UTF-8, NUL bytes, a syntax error, a missing function.
"""

from __future__ import annotations

import ast
import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aka.errors import WorkloadError

MAX_BYTES = 1 << 20
SIGNATURES = {
    "workload": "workload(*inputs) -> array or pytree of arrays",
    "create_inputs": "create_inputs(dtype=...) -> tuple of arrays",
}


@dataclass(frozen=True)
class SourceFile:
    """The text of a file and the names that it defines at its top level."""

    path: Path
    text: str
    names: frozenset[str]

    @property
    def is_reference_kernel(self) -> bool:
        return {"kernel", "reference"} <= self.names and "workload" not in self.names


def read_workload(path: Path) -> SourceFile:
    """A file that defines `workload` and `create_inputs`. Raises WorkloadError."""
    return _read(path, ("workload", "create_inputs"))


def read_kernel(path: Path) -> SourceFile:
    """A candidate: a file that defines `workload`, or a reference kernel, which defines `kernel` and `reference`.
    Raises WorkloadError."""
    made = _read(path, ())
    if "workload" not in made.names and not made.is_reference_kernel:
        raise WorkloadError(f"{path}: neither workload(*inputs) nor a reference kernel's kernel() and reference()")
    return made


def _read(path: Path, required: tuple[str, ...]) -> SourceFile:
    text = _text(path)
    try:
        tree = ast.parse(text, filename=str(path))
    except SyntaxError as error:
        raise WorkloadError(f"{path}:{error.lineno}: syntax error: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise WorkloadError(f"{path}: nested too deeply for Python's parser") from None
    names = frozenset(_defined(tree))
    for name in required:
        if name not in names:
            raise WorkloadError(f"{path}: no `{name}` at the top level; expected {SIGNATURES[name]}")
    return SourceFile(path, text, names)


def _text(path: Path) -> str:
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in str(path)):
        raise WorkloadError(f"{str(path)!r}: the path holds bytes that are not UTF-8, or control characters")
    try:
        info = path.stat()
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}") from None
    if stat.S_ISDIR(info.st_mode):
        raise WorkloadError(f"{path}: is a directory, not a Python file")
    if not stat.S_ISREG(info.st_mode):
        raise WorkloadError(f"{path}: is not a regular file")
    if info.st_size > MAX_BYTES:
        raise WorkloadError(f"{path}: {info.st_size} bytes; at most {MAX_BYTES} are read")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}") from None
    if b"\0" in data:
        raise WorkloadError(f"{path}: NUL byte at offset {data.index(0)}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = error.start + len(data) - len(error.object)  # the decoder counts from behind a BOM
        raise WorkloadError(f"{path}: not UTF-8: byte {data[at]:#04x} at offset {at}") from None


def _defined(node: ast.AST) -> Iterator[str]:
    """Names bound at the top level, also inside `if`, `try`, `with` and loops there; not those inside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child.name
        elif isinstance(child, ast.ImportFrom | ast.Import):
            yield from (a.asname or a.name for a in child.names)
        elif isinstance(child, ast.expr):
            yield from (n.id for n in ast.walk(child) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        else:
            yield from _defined(child)

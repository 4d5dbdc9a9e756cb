"""Code in knowledge notes: every Python fence says what the TPU compiler must make of it.

The fence's info string is one of

    python compile chips=v5e,v6e
    python fails chips=v5e error="CompileTimeScopedVmemOom"

A snippet stands alone: it defines `workload(*args)` and `ARGS = [((4096, 4096), "bfloat16"), ...]`, one (shape, dtype
name) per argument. It may define `reference(*args)` too, plain JAX with the same meaning, and `CHECK_ARGS` (small
shapes); then the values are compared as well.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from markdown_it import MarkdownIt

from aka.errors import DocumentInvalid

CHIPS = ("v4", "v5e", "v5p", "v6e", "tpu7x")
PYTHON_NAMES = ("python", "python3", "py", "pycon")


@dataclass(frozen=True)
class Snippet:
    """One Python fence of a note. `line` is that of its opening fence, `index` its place among them; both from 1."""

    note: str
    index: int
    line: int
    code: str
    expects: Literal["compile", "fails"]
    chips: tuple[str, ...]
    error: str | None

    @property
    def id(self) -> str:
        return f"{self.note}#{self.index}"


def extract(path: Path) -> list[Snippet]:
    """The snippets of the Markdown note at `path`, in order.

    Raises DocumentInvalid, naming the line, for a Python fence that does not say what it expects.
    """
    found: list[Snippet] = []
    for token in MarkdownIt().parse(path.read_text(encoding="utf-8")):
        words = token.info.split()
        if token.type != "fence" or not words or words[0].lower() not in PYTHON_NAMES:
            continue
        line = (token.map or [0])[0] + 1
        try:
            expects, chips, error = parse_info(token.info)
        except ValueError as problem:
            raise DocumentInvalid(f"{path}:{line}: {problem}") from problem
        found.append(Snippet(path.stem, len(found) + 1, line, token.content, expects, chips, error))
    return found


def parse_info(info: str) -> tuple[Literal["compile", "fails"], tuple[str, ...], str | None]:
    """What an info string expects: (compile or fails, chips, error text). Raises ValueError with one sentence."""
    language, expects, *rest = [*shlex.split(info), ""]
    if language != "python" or expects not in ("compile", "fails"):
        raise ValueError(f'a Python fence must begin "python compile" or "python fails", not {info!r}')
    options = dict(word.partition("=")[::2] for word in rest if word)
    chips = tuple(filter(None, options.pop("chips", "").split(",")))
    error = options.pop("error", None)
    if not chips or not set(chips) <= set(CHIPS):
        raise ValueError(f"chips= must name some of {', '.join(CHIPS)}")
    if (expects == "fails") != bool(error):
        raise ValueError("error= goes with python fails, and only with it")
    if options:
        raise ValueError(f"unknown option {next(iter(options))!r}")
    return cast(Literal["compile", "fails"], expects), chips, error

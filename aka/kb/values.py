"""The values of this package that a query needs; light, because a command imports them before it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["note", "kernel"]
KINDS: tuple[Kind, ...] = ("note", "kernel")
Chip = Literal["v4", "v5e", "v5p", "v6e", "tpu7x"]
CHIPS: tuple[Chip, ...] = ("v4", "v5e", "v5p", "v6e", "tpu7x")


@dataclass(frozen=True)
class Document:
    """A note or a reference kernel, checked.

    `body` is what gets cut into passages (Markdown, or Python with its docstring), `summary` heads the first of them;
    `keywords` and `symptoms` are indexed with every passage; `matter` is the front matter as JSON values, `source` the
    whole file.
    """

    id: str
    kind: Kind
    title: str
    path: str
    sha256: str
    chips: tuple[str, ...]
    summary: str
    keywords: tuple[str, ...]
    symptoms: tuple[str, ...]
    body: str
    matter: dict[str, Any]
    source: str

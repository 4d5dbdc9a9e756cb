"""The front matter of a note and of a reference kernel: what a document must say about itself."""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from aka.kb.values import Chip

Layer = Literal["hardware", "api", "constraints", "techniques", "playbooks", "measurement", "versions", "pitfalls"]

Id = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Line = Annotated[str, Field(min_length=1, pattern=r"^\S")]
Lines = tuple[Line, ...]
Sources = Annotated[Lines, Field(min_length=1)]


class Matter(BaseModel):
    """An unknown field is an error: most are a misspelt known one."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Verified(Matter):
    """When a note was last checked, and against which versions."""

    date: datetime.date
    jax: Line
    libtpu: Line | None = None


class NoteMatter(Matter):
    """`jax` is a version range ("any" where it does not matter); no `chips` means all of them; `symptoms` are error
    texts and profile signs as a user would paste them."""

    id: Id
    title: Line
    layer: Layer
    chips: tuple[Chip, ...] = ()
    jax: Line
    ops: Lines = ()
    symptoms: Lines = ()
    tags: Lines = ()
    sources: Sources
    confidence: Literal["measured", "documented", "inferred"]
    verified: Verified
    related: tuple[Id, ...] = ()


class KernelMatter(Matter):
    """The fields that `docs/` describes for a reference kernel; `family` is also its folder's name."""

    id: Id
    title: Line
    family: Line
    op: Line
    signature: Line
    statics: dict[str, Literal["float", "int", "bool"]] = {}
    dtypes: Annotated[Lines, Field(min_length=1)]
    chips: tuple[Chip, ...] = ()
    techniques: Lines = ()
    primitives: Lines = ()
    when_to_use: Line
    when_xla_wins: Line
    sources: Sources
    tags: Lines = ()
    related: tuple[Id, ...] = ()

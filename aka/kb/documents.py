"""Reads documents: front matter checked against its schema, the rest prepared for cutting."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any, TypeVar

import frontmatter
import yaml
from pydantic import ValidationError

from aka.errors import DocumentInvalid
from aka.kb.matter import KernelMatter, NoteMatter
from aka.kb.sources import Source
from aka.kb.values import CHIPS, Document

M = TypeVar("M", NoteMatter, KernelMatter)


def read_documents(sources: Iterable[Source]) -> tuple[Document, ...]:
    """Raises DocumentInvalid, naming file and field, for the first bad one; also if two documents share an id."""
    documents = tuple(map(parse_document, sources))
    paths: dict[str, str] = {}
    for document in documents:
        if document.id in paths:
            raise DocumentInvalid(f"{document.path}: id: {document.id!r} is also the id of {paths[document.id]}")
        paths[document.id] = document.path
    return documents


def parse_document(source: Source) -> Document:
    """Raises DocumentInvalid."""
    try:
        text = source.data.decode()
    except UnicodeDecodeError as error:
        raise DocumentInvalid(f"{source.label}: not UTF-8 at byte {error.start}") from error
    return _note(source, text) if source.kind == "note" else _kernel(source, text)


def kernel_matter(label: str, text: str) -> dict[str, Any]:
    """The checked front matter of a reference kernel's source, as JSON values; `label` names it in errors.

    Unlike `parse_document` it does not ask for a folder of the family's name. Raises DocumentInvalid.
    """
    fields, _ = _split(label, _docstring(label, text))
    return _checked(KernelMatter, label, fields).model_dump(mode="json")


def _note(source: Source, text: str) -> Document:
    fields, body = _split(source.label, text)
    matter = _checked(NoteMatter, source.label, fields)
    rows = {"Symptoms": matter.symptoms, "Ops": matter.ops, "Tags": matter.tags}
    return Document(
        id=matter.id, kind="note", title=matter.title, path=source.label, sha256=source.sha256,
        chips=matter.chips or CHIPS, summary=_rows(rows), keywords=(matter.layer, *matter.tags, *matter.ops),
        symptoms=matter.symptoms, body=body, matter=matter.model_dump(mode="json"), source=text,
    )  # fmt: skip


def _kernel(source: Source, text: str) -> Document:
    fields, prose = _split(source.label, _docstring(source.label, text))
    matter = _checked(KernelMatter, source.label, fields)
    folder = PurePosixPath(source.label).parent.name
    if matter.family != folder:
        raise DocumentInvalid(f"{source.label}: family: {matter.family!r} must be the folder's name, {folder!r}")
    rows = {"Op": (matter.op,), "When to use": (matter.when_to_use,), "When XLA wins": (matter.when_xla_wins,)}
    more = {"Techniques": matter.techniques, "Primitives": matter.primitives, "Dtypes": matter.dtypes}
    return Document(
        id=matter.id, kind="kernel", title=matter.title, path=source.label, sha256=source.sha256,
        chips=matter.chips or CHIPS, summary=_rows(rows | more) + "\n\n" + prose,
        keywords=(matter.family, *matter.tags, *matter.techniques, *matter.primitives),
        symptoms=(), body=text, matter=matter.model_dump(mode="json"), source=text,
    )  # fmt: skip


def _docstring(label: str, text: str) -> str:
    try:
        return ast.get_docstring(ast.parse(text)) or ""
    except (SyntaxError, ValueError) as error:
        raise DocumentInvalid(f"{label}: not Python: {error}") from error


def _split(label: str, text: str) -> tuple[dict[str, Any], str]:
    try:
        post = frontmatter.loads(text)
    except yaml.YAMLError as error:
        raise DocumentInvalid(f"{label}: front matter is not YAML: {' '.join(str(error).split())}") from error
    if not post.metadata:
        raise DocumentInvalid(f"{label}: has no front matter between two lines of ---")
    return dict(post.metadata), post.content


def _checked(model: type[M], label: str, fields: dict[str, Any]) -> M:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "front matter"
        raise DocumentInvalid(f"{label}: {field}: {first['msg']}") from error


def _rows(rows: dict[str, tuple[str, ...]]) -> str:
    return "\n".join(f"{name}: {'; '.join(values)}" for name, values in rows.items() if values)

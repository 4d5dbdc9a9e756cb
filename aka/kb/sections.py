"""Cuts a document into sections: Markdown by heading, Python by definition. Plain text in, plain text out."""

from __future__ import annotations

import ast
from dataclasses import dataclass

# all-MiniLM-L6-v2 reads 256 word pieces and drops the rest; prose here has about 4.5 characters a piece.
MAX_CHARS = 1200


@dataclass(frozen=True)
class Section:
    """`heading` is the path of headings ("Fix > Raise the limit"), or the name of the definition; "" for the head."""

    heading: str
    text: str


def markdown_sections(text: str, summary: str = "") -> list[Section]:
    """One section for each heading below the title; longer ones are cut between top-level blocks, never inside one.

    What stands before the first heading, after `summary`, is the head. The lone level-1 heading that repeats the title
    opens no section of its own.
    """
    from markdown_it import MarkdownIt

    lines = text.splitlines()
    path: list[tuple[int, str]] = []
    blocks: list[tuple[str, str]] = [("", summary)] if summary else []
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for position, token in enumerate(tokens):
        if token.level or token.map is None:
            continue
        if token.type == "heading_open":
            level = int(token.tag[1:])
            path = [entry for entry in path if entry[0] < level]
            if level > 1:
                path.append((level, tokens[position + 1].content))
            continue
        heading = " > ".join(name for _, name in path)
        blocks.append((heading, "\n".join(lines[token.map[0] : token.map[1]]).rstrip()))
    return _pack(blocks)


def python_sections(source: str, summary: str = "") -> list[Section]:
    """One section for each top-level function or class with the comments above it, whole whatever its length.

    The head is `summary`; the module's docstring (the summary tells it) and imports are left out; constants between
    definitions form sections of their own under the heading "module". Raises SyntaxError.
    """
    tree = ast.parse(source)
    lines = source.splitlines()
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    at = tree.body[0].end_lineno or 0 if body is not tree.body else 0
    sections = [Section("", summary)] if summary else []
    loose = ""
    for statement in body:
        end = statement.end_lineno or at
        piece = "\n".join(lines[at:end]).strip("\n")
        at = end
        if isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            loose += piece + "\n"
            continue
        sections += [Section("module", loose.strip())] if loose.strip() else []
        sections.append(Section(statement.name, piece))
        loose = ""
    return sections + ([Section("module", loose.strip())] if loose.strip() else [])


def _pack(blocks: list[tuple[str, str]]) -> list[Section]:
    """Neighbouring blocks of one heading together, up to MAX_CHARS; a single longer block stays whole."""
    sections: list[Section] = []
    for heading, text in blocks:
        last = sections[-1] if sections else None
        if last and last.heading == heading and len(last.text) + len(text) + 2 <= MAX_CHARS:
            sections[-1] = Section(heading, f"{last.text}\n\n{text}")
        elif text.strip():
            sections.append(Section(heading, text))
    return sections

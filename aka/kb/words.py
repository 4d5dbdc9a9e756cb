"""Text to words for the keyword index: identifiers are kept whole and also split (snake, camel, dotted)."""

from __future__ import annotations

import re

_CHUNK = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]*")
_SEPARATOR = re.compile(r"[_.]+")
# They say nothing about a document, and in a library of ten notes BM25 would take a rare "how" for a rare topic.
_COMMON = """
a an and are as at be but by can do does for from how i if in is it my not of on or should so than that the this to was
what when which why will with
"""
_STOP = frozenset(_COMMON.split())
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def words(text: str) -> list[str]:
    """Lower-case words in order: `pltpu.CompilerParams` gives pltpu, compiler, params and pltpucompilerparams.

    >>> words("vmem_limit_bytes BlockSpec v5e")
    ['vmem', 'limit', 'bytes', 'vmemlimitbytes', 'block', 'spec', 'blockspec', 'v5e']
    """
    found: list[str] = []
    for chunk in _CHUNK.findall(text):
        parts = [part for piece in _SEPARATOR.split(chunk) for part in _CAMEL.split(piece) if part]
        found += [part.lower() for part in parts]
        if len(parts) > 1:
            found.append("".join(parts).lower())
    return found


def indexed(text: str) -> str:
    """What the keyword index stores for a text."""
    return " ".join(words(text))


def match_expression(query: str) -> str | None:
    """An FTS5 expression that any of the query's words satisfies, or None if it has no word."""
    distinct = dict.fromkeys(words(query))
    telling = [word for word in distinct if word not in _STOP] or distinct
    return " OR ".join(f'"{word}"' for word in telling) or None

"""Work on Python source as text and syntax tree at once, so that what is kept stays as its author wrote it."""

from __future__ import annotations

import ast
import builtins
import keyword
from collections.abc import Iterable, Mapping, Sequence

from aka.types import Signature


def split_lines(text: str) -> list[str]:
    """Lines as Python counts them; `splitlines` also breaks at form feeds and other separators."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def bound_name(node: ast.stmt) -> str | None:
    """The one name that a function or a plain assignment binds."""
    if isinstance(node, ast.FunctionDef):
        return node.name
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else None


def without(text: str, dropped: Iterable[ast.stmt]) -> str:
    """`text` without these top-level statements, their decorators and the comments right above them."""
    lines = split_lines(text)
    gone = {n for node in dropped for n in range(_first_line(node, lines), (node.end_lineno or 0) + 1)}
    return squeezed("\n".join(line for i, line in enumerate(lines, 1) if i not in gone).strip("\n"))


def _first_line(node: ast.stmt, lines: Sequence[str]) -> int:
    """That of its decorators or of the comment right above it, if it has any."""
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
    first = min([node.lineno, *(d.lineno for d in decorators)])
    while first > 1 and lines[first - 2].startswith("#"):
        first -= 1
    return first


def squeezed(text: str) -> str:
    """At most two blank lines in a row."""
    while "\n\n\n\n" in text:
        text = text.replace("\n\n\n\n", "\n\n\n")
    return text


def quotable(text: str) -> str:
    """`text` on one line, fit for a docstring: names come from op.py and may hold anything."""
    return " ".join(text.split()).replace("\\", "/").replace('"', "'")


def docstring(tree: ast.Module) -> list[ast.stmt]:
    return [n for n in tree.body[:1] if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]


def free_names(names: Sequence[str], taken: Iterable[str | None]) -> list[str]:
    """Argument names that collide with nothing: neither with `taken`, nor Python's builtins (the static gate cannot
    tell a parameter called `input` or `vars` from the builtin), nor each other."""
    used = {*taken, "jax", "jnp", "pl", "pltpu", "lax", "functools", "math", *keyword.kwlist, *dir(builtins)}
    made: list[str] = []
    for name in names:
        while name in used or name in made or (name.endswith("_") and name in names and name != names[len(made)]):
            name += "_"
        made.append(name)
    return made


def replaced(text: str, literals: Mapping[ast.expr, str]) -> str:
    """`text` with the source of these nodes replaced; columns of a syntax tree count UTF-8 bytes."""
    lines = [line.encode() for line in split_lines(text)]
    for node in sorted(literals, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        made = lines[first][: node.col_offset] + literals[node].encode() + lines[last][node.end_col_offset or 0 :]
        lines[first : last + 1] = [made] + [b""] * (last - first)
    return b"\n".join(lines).decode()


def leaf_paths(inputs: Signature, names: Sequence[str]) -> list[str]:
    """Expression of every input leaf in terms of the arguments, e.g. "params['scale']"."""
    return [names[int(at)] + "".join(f"[{key!r}]" for key in keys) for at, *keys in inputs.paths]

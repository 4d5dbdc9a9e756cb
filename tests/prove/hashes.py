"""What makes a result stale: hashes of syntax trees, so that another wording of a comment or a docstring does not."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
JUDGE = ("aka/evaluate", "aka/artifact")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def of_text(source: str) -> str:
    """16 hex digits over the source's tree without comments, docstrings and other bare strings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                setattr(node, name, [s for s in body if not _is_text(s)] or ([ast.Pass()] if body else []))
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def of_judge(root: Path = ROOT) -> str:
    """16 hex digits over every source of the judge, with its name."""
    files = sorted(path for folder in JUDGE for path in (root / folder).rglob("*.py"))
    made = [f"{path.relative_to(root).as_posix()} {of_text(path.read_text())}" for path in files]
    return of(*made)


def of(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )

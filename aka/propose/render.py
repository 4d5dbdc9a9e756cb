"""Turn a reference kernel and a binding into a candidate's source: readable, and standing alone on jax."""

from __future__ import annotations

import ast
import builtins
import keyword
from collections.abc import Mapping, Sequence
from typing import Any

from aka.types import Binding, ReferenceKernel, Workload

TUNED = "TUNED_PARAMS"
DROPPED = ("reference", "search_space", TUNED)


def render(kernel: ReferenceKernel, binding: Binding, params: Mapping[str, Any], workload: Workload) -> str:
    """The kernel's file without docstring, reference and search space, `params` put into its TUNED_PARAMS, and a
    `workload` function with the op's own argument names."""
    tree = ast.parse(kernel.source)
    lines = _lines(kernel.source)
    dropped = {n for node in _droppable(tree) for n in range(_first_line(node, lines), (node.end_lineno or 0) + 1)}
    body = "\n".join(line for i, line in enumerate(lines, 1) if i not in dropped).strip("\n")
    names = _names(workload.argument_names, tree)
    about = f"{workload.name}: {kernel.title} (reference kernel {kernel.id})."
    head = f'"""{_quotable(about)}"""\n\n'
    tuned = f"TUNED_PARAMS = {_defaults(tree) | dict(params)!r}"
    return head + _after_imports(_squeeze(body), tuned) + "\n\n\n" + _workload(names, binding, params, workload) + "\n"


def _droppable(tree: ast.Module) -> list[ast.stmt]:
    docstring = [n for n in tree.body[:1] if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    return docstring + [n for n in tree.body if _bound_name(n) in DROPPED]


def _defaults(tree: ast.Module) -> dict[str, Any]:
    """The file's own TUNED_PARAMS: its functions may read more of them than the search space holds at these shapes."""
    found = [n.value for n in tree.body if isinstance(n, ast.Assign | ast.AnnAssign) and _bound_name(n) == TUNED]
    try:
        return dict(ast.literal_eval(found[0])) if found and found[0] else {}
    except (TypeError, ValueError):  # computed ones stay unknown
        return {}


def _bound_name(node: ast.stmt) -> str | None:
    if isinstance(node, ast.FunctionDef):
        return node.name
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else None


def _first_line(node: ast.stmt, lines: Sequence[str]) -> int:
    """That of its decorators or of the comment right above it, if it has any."""
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    first = min([node.lineno, *(d.lineno for d in decorators)])
    while first > 1 and lines[first - 2].startswith("#"):
        first -= 1
    return first


def _lines(text: str) -> list[str]:
    """Lines as Python counts them; `splitlines` also breaks at form feeds and other separators."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _quotable(text: str) -> str:
    """`text` on one line, fit for a docstring: names come from op.py and may hold anything."""
    return " ".join(text.split()).replace("\\", "/").replace('"', "'")


def _squeeze(text: str) -> str:
    """At most two blank lines in a row."""
    while "\n\n\n\n" in text:
        text = text.replace("\n\n\n\n", "\n\n\n")
    return text


def _after_imports(body: str, statement: str) -> str:
    """`statement` placed behind the last top-level import: the kernel's defaults may read it."""
    imports = [n for n in ast.parse(body).body if isinstance(n, ast.Import | ast.ImportFrom)]
    lines = _lines(body)
    at = max((n.end_lineno or 0 for n in imports), default=0)
    rest = "\n".join(lines[at:]).lstrip("\n")
    return "\n".join(lines[:at]) + f"\n\n{statement}\n\n\n{rest}"


def _names(names: Sequence[str], tree: ast.Module) -> list[str]:
    """Argument names that collide with nothing: neither the kernel's top level, nor Python's builtins (the static gate
    cannot tell a parameter called `input` or `vars` from the builtin), nor each other."""
    taken = {_bound_name(n) for n in tree.body} | {"jax", "jnp", "pl", "pltpu", "lax", "functools", "math", "kernel"}
    taken |= {TUNED, *keyword.kwlist, *dir(builtins)}
    made: list[str] = []
    for name in names:
        while name in taken or name in made or (name.endswith("_") and name in names and name != names[len(made)]):
            name += "_"
        made.append(name)
    return made


def _workload(names: Sequence[str], binding: Binding, params: Mapping[str, Any], workload: Workload) -> str:
    paths = leaf_paths(workload.primary.inputs.tree, names)
    arguments = [paths[i] for i in binding.arguments]
    arguments += [f"{k}={v!r}" for k, v in binding.statics.items()]
    arguments += [f"{k}=TUNED_PARAMS[{k!r}]" for k in params]
    call = f"kernel({', '.join(arguments)})"
    outputs = workload.primary.outputs
    lines = [f"def workload({', '.join(names)}):"]
    if outputs.tree == 0:
        return "\n".join([*lines, f"    return {call}"])
    made = [f"    made = {call}"] if len(outputs.leaves) > 1 else [f"    made = ({call},)"]
    return "\n".join([*lines, *made, f"    return {tree_expression(outputs.tree, 'made')}"])


def leaf_paths(tree: Any, names: Sequence[str]) -> dict[int, str]:
    """Expression of every input leaf in terms of the arguments, e.g. "params['scale']"."""
    found: dict[int, str] = {}

    def walk(node: Any, path: str) -> None:
        if isinstance(node, int):
            found[node] = path
        elif node is not None:
            ((kind, inner),) = node.items()
            items = inner.items() if kind == "dict" else enumerate(inner)
            for key, child in items:
                walk(child, f"{path}[{key!r}]")

    for name, child in zip(names, tree["tuple"], strict=True):
        walk(child, name)
    return found


def tree_expression(tree: Any, made: str) -> str:
    """A pytree of outputs as a Python expression over the flat tuple named `made`."""
    if tree is None:
        return "None"
    if isinstance(tree, int):
        return f"{made}[{tree}]"
    ((kind, inner),) = tree.items()
    if kind == "dict":
        return "{" + ", ".join(f"{k!r}: {tree_expression(v, made)}" for k, v in inner.items()) + "}"
    items = [tree_expression(v, made) for v in inner]
    if kind == "list":
        return "[" + ", ".join(items) + "]"
    return "(" + ", ".join(items) + ("," if len(items) == 1 else "") + ")"

"""Turn a reference kernel and a binding into a candidate's source: readable, and standing alone on jax."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Mapping, Sequence
from typing import Any

from aka.types import Binding, ReferenceKernel, Workload

DROPPED = ("reference", "search_space", "TUNED_PARAMS")


def render(kernel: ReferenceKernel, binding: Binding, params: Mapping[str, Any], workload: Workload) -> str:
    """The kernel's file without docstring, reference and search space, its TUNED_PARAMS set to `params`, and a
    `workload` function with the op's own argument names."""
    tree = ast.parse(kernel.source)
    lines = kernel.source.splitlines()
    dropped = {n for node in _droppable(tree) for n in range(_first_line(node), (node.end_lineno or 0) + 1)}
    body = "\n".join(line for i, line in enumerate(lines, 1) if i not in dropped).strip("\n")
    names = _names(workload.argument_names, tree)
    head = f'"""{workload.name}: {kernel.title} (reference kernel {kernel.id})."""\n\n'
    tuned = f"TUNED_PARAMS = {dict(params)!r}"
    return head + _after_imports(_squeeze(body), tuned) + "\n\n\n" + _workload(names, binding, params, workload) + "\n"


def _droppable(tree: ast.Module) -> list[ast.stmt]:
    docstring = [n for n in tree.body[:1] if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    return docstring + [n for n in tree.body if _bound_name(n) in DROPPED]


def _bound_name(node: ast.stmt) -> str | None:
    if isinstance(node, ast.FunctionDef):
        return node.name
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else None


def _first_line(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return min([node.lineno, *(d.lineno for d in decorators)])


def _squeeze(text: str) -> str:
    """At most two blank lines in a row."""
    while "\n\n\n\n" in text:
        text = text.replace("\n\n\n\n", "\n\n\n")
    return text


def _after_imports(body: str, statement: str) -> str:
    """`statement` placed behind the last top-level import: the kernel's defaults may read it."""
    imports = [n for n in ast.parse(body).body if isinstance(n, ast.Import | ast.ImportFrom)]
    lines = body.splitlines()
    at = max((n.end_lineno or 0 for n in imports), default=0)
    rest = "\n".join(lines[at:]).lstrip("\n")
    return "\n".join(lines[:at]) + f"\n\n{statement}\n\n\n{rest}"


def _names(names: Sequence[str], tree: ast.Module) -> list[str]:
    """Argument names that collide with nothing at the kernel's top level."""
    taken = {_bound_name(n) for n in tree.body} | {"jax", "jnp", "pl", "pltpu", "lax", "functools", "math", "kernel"}
    return [f"{n}_" if n in taken or keyword.iskeyword(n) else n for n in names]


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

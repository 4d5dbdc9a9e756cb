"""Turn a reference kernel and a binding into a candidate's source: readable, and standing alone on jax."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from aka.propose.source import (
    bound_name,
    docstring,
    free_names,
    leaf_paths,
    quotable,
    split_lines,
    without,
)
from aka.types import Binding, ReferenceKernel, Workload

TUNED = "TUNED_PARAMS"
DROPPED = ("reference", "search_space", TUNED)


def render(kernel: ReferenceKernel, binding: Binding, params: Mapping[str, Any], workload: Workload) -> str:
    """The kernel's file without docstring, reference and search space, `params` put into its TUNED_PARAMS, and a
    `workload` function with the op's own argument names."""
    tree = ast.parse(kernel.source)
    body = without(kernel.source, docstring(tree) + [n for n in tree.body if bound_name(n) in DROPPED])
    names = free_names(workload.argument_names, {*map(bound_name, tree.body), "kernel", TUNED})
    kind = "fusion" if kernel.id.startswith("template/") else "reference kernel"
    about = f"{workload.name}: {kernel.title} ({kind} {kernel.id})."
    head = f'"""{quotable(about)}"""\n\n'
    tuned = f"TUNED_PARAMS = {_defaults(tree) | dict(params)!r}"
    return head + _after_imports(body, tuned) + "\n\n\n" + _workload(names, binding, params, workload) + "\n"


def _defaults(tree: ast.Module) -> dict[str, Any]:
    """The file's own TUNED_PARAMS: its functions may read more of them than the search space holds at these shapes."""
    found = [n.value for n in tree.body if isinstance(n, ast.Assign | ast.AnnAssign) and bound_name(n) == TUNED]
    try:
        return dict(ast.literal_eval(found[0])) if found and found[0] else {}
    except (TypeError, ValueError):  # computed ones stay unknown
        return {}


def _after_imports(body: str, statement: str) -> str:
    """`statement` placed behind the last top-level import: the kernel's defaults may read it."""
    imports = [n for n in ast.parse(body).body if isinstance(n, ast.Import | ast.ImportFrom)]
    lines = split_lines(body)
    at = max((n.end_lineno or 0 for n in imports), default=0)
    rest = "\n".join(lines[at:]).lstrip("\n")
    return "\n".join(lines[:at]) + f"\n\n{statement}\n\n\n{rest}"


def _workload(names: Sequence[str], binding: Binding, params: Mapping[str, Any], workload: Workload) -> str:
    paths = leaf_paths(workload.primary.inputs, names)
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

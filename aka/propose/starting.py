"""The user's own kernel as an arm: `starting_kernel(*inputs)` of the workload file, cut out of it and made tunable.

Only the syntax tree is looked at; nothing of the file is run here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aka.errors import WorkloadError
from aka.propose.source import docstring, free_names, leaf_paths, quotable, replaced, squeezed, without
from aka.propose.tunables import Tunable, find
from aka.types import ShapeCase, Workload

NAME = "starting_kernel"
CONFIG = "CONFIG"


@dataclass(frozen=True)
class Starting:
    """A starting kernel: `write` gives a candidate's source for a point of `space`."""

    workload: Workload
    tree: ast.Module
    kept: tuple[ast.stmt, ...]
    tunables: tuple[Tunable, ...]

    @property
    def space(self) -> dict[str, list[Any]]:
        return {t.name: list(t.values) for t in self.tunables}

    def write(self, params: Mapping[str, Any]) -> str:
        """The file without what only the reference, the inputs and the shapes need, its literals set to `params`, and
        a `workload` that calls the starting kernel."""
        literals = {node: _literal(params[t.name]) for t in self.tunables if t.name in params for node in t.nodes}
        # Each literal stays on the lines where it was: the tree still tells where the statements are.
        text = replaced(self.workload.source, literals)
        kept = {id(n) for n in self.kept}
        body = without(text, [n for n in self.tree.body if id(n) not in kept])
        about = quotable(f"{self.workload.name}: the op's own starting kernel.")
        return squeezed(f'"""{about}"""\n\n{body}\n\n\n{self._workload()}\n')

    def _workload(self) -> str:
        names = free_names(self.workload.argument_names, [n for s in self.kept for n in bound(s)])
        lines = [f"def workload({', '.join(names)}):"]
        if any(CONFIG in bound(s) for s in self.kept) and (sizes := _sizes(self.workload, names)):
            lines.append(f"    {CONFIG}.update({{{', '.join(f'{k!r}: {v}' for k, v in sizes.items())}}})")
        return "\n".join([*lines, f"    return {NAME}({', '.join(names)})"])


def read(workload: Workload) -> Starting:
    """The starting kernel of a workload. Raises WorkloadError if it cannot stand on its own."""
    tree = ast.parse(workload.source)
    kept = _reachable(tree)
    names = {n for statement in kept for n in bound(statement)}
    if NAME not in names:
        raise WorkloadError(f"{workload.path}: no `{NAME}` at the top level")
    if "workload" in names:
        raise WorkloadError(f"{workload.path}: {NAME} calls workload, the op itself: it must do the work alone")
    largest = max((n for leaf in workload.primary.inputs.leaves for n in leaf.shape), default=1)
    return Starting(workload, tree, tuple(kept), tuple(find(kept, largest)))


def _reachable(tree: ast.Module) -> list[ast.stmt]:
    """The top-level statements that the starting kernel needs, in order."""
    candidates = [n for n in tree.body if n not in docstring(tree) and not _is_main(n)]
    kept: list[ast.stmt] = [n for n in candidates if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    needed, before = {NAME}, -1
    while before != len(kept):
        before = len(kept)
        for node in candidates:
            if node not in kept and needed & set(bound(node)):
                kept.append(node)
                needed |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return sorted(kept, key=lambda n: n.lineno)


def bound(node: ast.stmt) -> Iterator[str]:
    """Names that a top-level statement gives a value to or changes; those of functions inside it are its own."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (a.asname or a.name.partition(".")[0] for a in node.names)
    elif isinstance(node, ast.Expr):
        root = _root(node.value.func) if isinstance(node.value, ast.Call) else None
        # A method call may change what it is called on (CONFIG.update); one on a library is none of the kernel's.
        yield from [root] if root and root.isupper() else []
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from _targets(target)
    else:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield from bound(child)
            elif isinstance(child, ast.ExceptHandler):
                yield from (name for s in child.body for name in bound(s))


def _targets(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for child in target.elts:
            yield from _targets(child)
    elif root := _root(target):
        yield root


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _sizes(workload: Workload, names: Sequence[str]) -> dict[str, str]:
    """What CONFIG must hold whatever the shapes are: sizes read off the inputs where they always agree with an axis of
    one, and the primary case's other overrides as they are."""
    paths = leaf_paths(workload.primary.inputs, names)
    found = {k: repr(v) for k, v in workload.primary.config.items()}
    cases = [*workload.shapes, *workload.test_shapes]
    for knob in workload.primary.knobs:
        key = knob.removeprefix("config:")
        if key != knob and (place := _place(workload, cases, knob, key)):
            found[key] = f"{paths[place[0]]}.shape[{place[1]}]"
    return found


def _place(workload: Workload, cases: Sequence[ShapeCase], knob: str, key: str) -> tuple[int, int] | None:
    """The (leaf, axis) that has the size of a CONFIG key in every case."""
    own = workload.primary.knobs[knob]
    sizes = [case.knobs.get(knob, case.config.get(key, own)) for case in cases]
    for i, leaf in enumerate(workload.primary.inputs.leaves):
        for axis in range(len(leaf.shape)):
            if [case.inputs.leaves[i].shape[axis] for case in cases] == sizes:
                return i, axis
    return None


def _literal(value: Any) -> str:
    return repr(tuple(value)) if isinstance(value, list) else repr(value)

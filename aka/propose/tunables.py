"""Find what can be tuned in a Pallas kernel that somebody wrote: named block sizes, and the semantics of grid axes."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

BLOCK_NAME = re.compile(r"(?i)block|blk|tile|chunk|^b_?(m|n|k|q|s|h|d|kv|f|r|c)\d?$|^t_?[mnk]$")
NO_BLOCK = re.compile(r"(?i)lane|^(num|n|max)_|count|steps|limit|buffer|block_?shape")
SUBLANES, LANES = 8, 128
SEMANTICS = "dimension_semantics"
TUNED = "TUNED_PARAMS"
MAX_SEMANTICS = 4


@dataclass(frozen=True)
class Tunable:
    """`values` begin with the author's own; `nodes` are the literals that hold it."""

    name: str
    values: tuple[Any, ...]
    nodes: tuple[ast.expr, ...]


def find(body: Sequence[ast.stmt], largest: int) -> list[Tunable]:
    """The tunables of these statements; no block is offered beyond `largest`, the longest axis of the inputs."""
    flow = _Flow(body)
    groups: dict[str, dict[int, list[ast.expr]]] = {}
    for name, node in _named_ints(body):
        if flow.is_block(name) and node.value >= SUBLANES and node.value % SUBLANES == 0:
            groups.setdefault(name, {}).setdefault(node.value, []).append(node)
    found = [
        Tunable(name if i == 1 else f"{name}_{i}", _chain(value, flow.unit(name, value), largest), tuple(nodes))
        for name, by_value in groups.items()
        for i, (value, nodes) in enumerate(by_value.items(), 1)
    ]
    return found + list(_semantics(body))


class _Flow:
    """Which names end up in the shape of a BlockSpec, and at which place."""

    def __init__(self, body: Sequence[ast.stmt]) -> None:
        self._sources: dict[str, set[str]] = {}
        for target, value in _assigned(body):
            self._sources.setdefault(target, set()).update(_names(value))
        shapes = [shape for node in _walk(body) if (shape := _block_shape(node)) is not None]
        self._last = self._behind(n for shape in shapes for n in _names(shape.elts[-1]))
        self._other = self._behind(n for shape in shapes for elt in shape.elts[:-1] for n in _names(elt))

    def _behind(self, names: Iterator[str]) -> set[str]:
        """These names and all whose values they are made of."""
        seen: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += self._sources.get(name, ())
        return seen

    def is_block(self, name: str) -> bool:
        shaped = name in self._last or name in self._other
        return not NO_BLOCK.search(name) and bool(shaped or BLOCK_NAME.search(name))

    def unit(self, name: str, value: int) -> int:
        """What a block must be a multiple of: 128 along the last axis, 8 along others."""
        if name in self._last:
            return LANES if value % LANES == 0 else SUBLANES
        return SUBLANES if name in self._other or value % LANES else LANES


def _chain(value: int, unit: int, largest: int) -> tuple[int, ...]:
    """The author's value, then halves and doubles of it, the nearer first."""
    near = (value, 2 * value, value // 2, 4 * value, value // 4)
    return tuple(v for v in near if v == value or (v >= unit and v % unit == 0 and v < 2 * largest))


def _named_ints(body: Sequence[ast.stmt]) -> Iterator[tuple[str, Any]]:
    """(name, literal) of assignments, keyword defaults, keywords of calls, and entries of TUNED_PARAMS."""
    for target, value in _assigned(body):
        if _is_int(value):
            yield target, value
        elif target == TUNED and isinstance(value, ast.Dict):
            yield from (
                (key.value, v)
                for key, v in zip(value.keys, value.values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and _is_int(v)
            )


def _assigned(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Every name that is given a value: by assignment, as a default, or as a keyword of a call."""
    for node in _walk(body):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _pairs(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from _pairs(node.target, node.value)
        elif isinstance(node, ast.FunctionDef):
            yield from _defaults(node.args)
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg, node.value


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, other)


def _defaults(args: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    positional = [*args.posonlyargs, *args.args]
    named = itertools.chain(
        zip(positional[len(positional) - len(args.defaults) :], args.defaults, strict=True),
        zip(args.kwonlyargs, args.kw_defaults, strict=True),
    )
    yield from ((arg.arg, value) for arg, value in named if value is not None)


def _block_shape(node: ast.AST) -> ast.Tuple | None:
    """The literal shape that a BlockSpec is called with."""
    if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("BlockSpec"):
        return None
    given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "block_shape")]
    return next((g for g in given if isinstance(g, ast.Tuple) and g.elts), None)


def _semantics(body: Sequence[ast.stmt]) -> Iterator[Tunable]:
    """ "parallel" axes may be made "arbitrary", which is always right; the reverse nobody here can vouch for."""
    groups: dict[tuple[str, ...], list[ast.expr]] = {}
    for target, value in _assigned(body):
        if target == SEMANTICS and (axes := _strings(value)):
            groups.setdefault(axes, []).append(value)
    for i, (axes, nodes) in enumerate(groups.items(), 1):
        choices = itertools.product(*(("parallel", "arbitrary") if a == "parallel" else (a,) for a in axes))
        values = tuple(list(c) for c in itertools.islice(choices, MAX_SEMANTICS))
        if len(values) > 1:
            yield Tunable(SEMANTICS if i == 1 else f"{SEMANTICS}_{i}", values, tuple(nodes))


def _strings(value: ast.expr) -> tuple[str, ...]:
    elts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    found = [e.value for e in elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    return tuple(found) if len(found) == len(elts) else ()


def _walk(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    return (node for statement in body for node in ast.walk(statement))


def _names(node: ast.AST) -> set[str]:
    """Names in an expression, and the keys with which TUNED_PARAMS is read in it."""
    keys = {
        n.slice.value
        for n in ast.walk(node)
        if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant) and isinstance(n.slice.value, str)
    }
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | keys


def _is_int(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int

"""Worker side: turn source text into a module, and pytrees of arrays into signatures and back."""

from __future__ import annotations

import ast
import linecache
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MAX_LEAVES = 256
OVERRIDE = """CONFIG.update({{
    key: tuple(value) if isinstance(CONFIG[key], tuple) else value
    for key, value in {values!r}.items() if key in CONFIG
}})"""


class Refused(ValueError):
    """The workload or candidate cannot be used; the text is one sentence for the person who wrote it."""


def load(source: str, filename: str, config: Mapping[str, Any] | None = None) -> types.ModuleType:
    """Run `source` as a module. `config` is merged into CONFIG right after its assignment, so that names computed
    from CONFIG further down see the overrides."""
    tree = ast.parse(source, filename=filename)
    if config and not _merged(tree, f"CONFIG.update({dict(config)!r})"):
        raise Refused(f"shapes override CONFIG {sorted(config)}, but the file has no top-level CONFIG")
    return _run(tree, source, filename)


def load_candidate(source: str, filename: str, config: Mapping[str, Any]) -> types.ModuleType:
    """Run a candidate's source as a module. If it has a top-level CONFIG, the entries that the op's CONFIG has too get
    their values at this shape: what no input's shape tells (so many of the heads are queries) it reads there."""
    tree = ast.parse(source, filename=filename)
    _merged(tree, OVERRIDE.format(values=dict(config)))
    return _run(tree, source, filename)


def _run(tree: ast.Module, source: str, filename: str) -> types.ModuleType:
    module = types.ModuleType("workload")
    module.__file__ = filename
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(tree, filename, "exec", dont_inherit=True), module.__dict__)
    return module


def _merged(tree: ast.Module, update: str) -> bool:
    """Put a statement behind the assignment of CONFIG; False where there is none."""
    for i, node in enumerate(tree.body):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(t, ast.Name) and t.id == "CONFIG" for t in targets):
            tree.body[i + 1 : i + 1] = ast.parse(update).body
            ast.fix_missing_locations(tree)
            return True
    return False


def function(module: types.ModuleType, name: str) -> Callable[..., Any]:
    """The module's function of that name; raises Refused if it is not callable."""
    made = getattr(module, name, None)
    if not callable(made):
        raise Refused(f"`{name}` is {type(made).__name__}, not a function")
    return made  # type: ignore[no-any-return]


def describe_tree(value: Any) -> tuple[list[Any], Any]:
    """Leaves in JAX's order and the JSON structure of `aka.types.Signature.tree`; Refused for other containers."""
    leaves: list[Any] = []

    def walk(node: Any) -> Any:
        if node is None:
            return None
        if isinstance(node, dict):
            if not all(isinstance(k, str) for k in node):
                raise Refused("a dict among the arrays has keys that are not strings")
            return {"dict": {k: walk(node[k]) for k in sorted(node)}}
        if type(node) in (list, tuple):
            return {type(node).__name__: [walk(n) for n in node]}
        if isinstance(node, tuple):
            return {"tuple": [walk(n) for n in node]}
        if not (hasattr(node, "shape") and hasattr(node, "dtype")):
            raise Refused(f"expected arrays in lists, tuples or dicts, found {type(node).__name__}")
        leaves.append(node)
        if len(leaves) > MAX_LEAVES:
            raise Refused(f"more than {MAX_LEAVES} arrays")
        return len(leaves) - 1

    return leaves, walk(value)


def build_tree(tree: Any, leaves: Sequence[Any]) -> Any:
    """The inverse of `describe_tree`."""
    if tree is None:
        return None
    if isinstance(tree, int):
        return leaves[tree]
    ((kind, inner),) = tree.items()
    if kind == "dict":
        return {k: build_tree(v, leaves) for k, v in inner.items()}
    items = [build_tree(v, leaves) for v in inner]
    return items if kind == "list" else tuple(items)


def signature(value: Any) -> dict[str, Any]:
    """JSON of `aka.types.Signature` for a pytree of arrays or ShapeDtypeStructs."""
    leaves, tree = describe_tree(value)
    return {"leaves": [{"shape": list(a.shape), "dtype": str(a.dtype)} for a in leaves], "tree": tree}


def structs(sig: Mapping[str, Any]) -> list[Any]:
    """ShapeDtypeStructs of a signature's leaves."""
    import jax

    return [jax.ShapeDtypeStruct(tuple(leaf["shape"]), leaf["dtype"]) for leaf in sig["leaves"]]


def as_arrays(value: Any) -> Any:
    """Python and NumPy scalars among the outputs as JAX arrays (weak types resolved); other things are left to
    `describe_tree` to refuse."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def one(leaf: Any) -> Any:
        return jnp.asarray(leaf) if isinstance(leaf, bool | int | float | np.ndarray | np.generic) else leaf

    return jax.tree.map(one, value)

"""Static gate: what a candidate may import and touch, decided from its syntax tree before anything of it runs.

An allowlist, not a blocklist: a kernel needs jax, Pallas and a little of the standard library. This is the first wall,
not the only one: whatever passes still runs in the sandbox, and only its artifact is judged.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import operator
import typing

MODULES = frozenset(
    {
        "__future__", "collections.abc", "dataclasses", "enum", "functools", "itertools", "jax", "jax.experimental",
        "jax.experimental.pallas", "jax.experimental.pallas.tpu", "jax.lax", "jax.nn", "jax.numpy", "jax.random",
        "jax.scipy", "jax.scipy.special", "jax.tree", "jax.tree_util", "jax.typing", "math", "numpy", "operator",
        "typing",
    }
)  # fmt: skip
ATTRIBUTES = {
    "jax": frozenset(
        {
            "Array", "ShapeDtypeStruct", "checkpoint", "custom_jvp", "custom_vjp", "default_matmul_precision", "dtypes",
            "eval_shape", "experimental", "grad", "jit", "jvp", "lax", "named_call", "named_scope", "nn", "numpy",
            "ops", "random", "scipy", "tree", "tree_util", "typing", "value_and_grad", "vjp", "vmap",
        }
    ),
    "jax.experimental": frozenset({"pallas"}),
    "numpy": frozenset(
        {
            "arange", "array", "asarray", "bool_", "ceil", "concatenate", "cos", "cumsum", "dtype", "e", "empty", "eye",
            "exp", "finfo", "float16", "float32", "float64", "floor", "full", "iinfo", "inf", "int16", "int32", "int64",
            "int8", "integer", "floating", "issubdtype", "linspace", "log", "log2", "maximum", "minimum", "nan",
            "ndarray", "ones", "pi", "prod", "repeat", "reshape", "sin", "sqrt", "stack", "sum", "tril", "triu",
            "uint16", "uint32", "uint8", "where", "zeros",
        }
    ),
    # The other names of these modules are the modules that they import themselves; what is taken away calls or
    # evaluates what a string names.
    "dataclasses": frozenset(dataclasses.__all__) - {"make_dataclass"},
    "enum": frozenset(enum.__all__),
    "functools": frozenset(functools.__all__) - {"singledispatch", "singledispatchmethod"},
    "operator": frozenset(operator.__all__) - {"attrgetter", "methodcaller"},
    "typing": frozenset(typing.__all__) - {"ForwardRef", "get_type_hints"},
}  # fmt: skip
DENIED = {
    "jax.numpy": frozenset(
        {"frombuffer", "from_dlpack", "fromfile", "fromstring", "frompyfunc", "load", "save", "savez"}
    ),
    "jax.experimental.pallas.tpu": frozenset({"core"}),
}
FRAMES = frozenset(
    {
        "ag_frame", "cr_frame", "f_back", "f_builtins", "f_code", "f_globals", "f_locals", "gi_code", "gi_frame",
        "tb_frame", "tb_next",
    }
)  # fmt: skip
"""Attributes by which a generator or traceback leads to its caller's variables."""
BUILTINS = frozenset(
    {
        "open", "exec", "eval", "compile", "__import__", "globals", "locals", "vars", "setattr", "delattr",
        "breakpoint", "exit", "quit", "memoryview", "help", "__builtins__", "__loader__", "__spec__",
    }
)  # fmt: skip


def problems(source: str) -> list[str]:
    """Every rule that the source breaks, with its line; empty for a candidate that may run. A syntax error is one."""
    try:
        tree = ast.parse(source)
        return _walk(tree)
    except SyntaxError as error:
        return [f"line {error.lineno or 1}: syntax error: {error.msg}"]
    except (ValueError, RecursionError, MemoryError) as error:
        return [f"line 1: cannot be parsed: {type(error).__name__}: {error}"]


def _walk(tree: ast.Module) -> list[str]:
    names = _imported(tree)
    bases = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    found: list[str] = []
    for node in ast.walk(tree):
        text = _problem(node, names) or _loose(node, names, bases, called)
        if text:
            found.append(f"line {getattr(node, 'lineno', 0)}: {text}")
    return found


def _loose(node: ast.AST, names: dict[str, str], bases: set[int], called: set[int]) -> str | None:
    """A module or getattr handed on as a value gets a name that the other rules do not know."""
    if isinstance(node, ast.Name) and node.id in ("getattr", "hasattr") and id(node) not in called:
        return f"`{node.id}` as a value: call it with a plain name"
    if isinstance(node, ast.Name | ast.Attribute) and id(node) not in bases:
        path = _path(node, names)
        if path in MODULES:
            return f"module `{path}` as a value: import it under the name that you want"
    return None


def _imported(tree: ast.Module) -> dict[str, str]:
    """Local name -> module path, of everything imported anywhere in the file."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return names


def _problem(node: ast.AST, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Import):
        return next((_unknown(a.name) for a in node.names if a.name not in MODULES), None)
    if isinstance(node, ast.ImportFrom):
        return _import_from(node)
    if isinstance(node, ast.Name):
        return f"`{node.id}` is not available to a kernel" if node.id in BUILTINS else None
    if isinstance(node, ast.Attribute):
        return _attribute(node, names)
    if isinstance(node, ast.Call):
        return _getattr(node)
    if isinstance(node, ast.MatchClass):
        return next((f"attribute `{a}` in a pattern" for a in node.kwd_attrs if a[0] == "_" or a in FRAMES), None)
    return None


def _unknown(module: str) -> str:
    return f"import of `{module}`: a kernel may import {', '.join(sorted(m for m in MODULES if m[0] != '_'))}"


def _import_from(node: ast.ImportFrom) -> str | None:
    module = node.module or ""
    if node.level or module not in MODULES:
        return _unknown(module or "." * node.level)
    for alias in node.names:
        path = f"{module}.{alias.name}"
        if alias.name == "*" or (alias.name.startswith("_") and module != "__future__"):
            return f"`from {module} import {alias.name}`: import public names one by one"
        if path not in MODULES and not _available(module, alias.name):
            return f"`{path}` is not available to a kernel"
    return None


def _available(module: str, name: str) -> bool:
    allowed = ATTRIBUTES.get(module)
    return name not in DENIED.get(module, ()) and (allowed is None or name in allowed)


def _attribute(node: ast.Attribute, names: dict[str, str]) -> str | None:
    if node.attr.startswith("__") or (node.attr.startswith("_") and _root(node) in names):
        return f"attribute `{node.attr}`: private names of libraries are off limits"
    if node.attr in FRAMES:
        return f"attribute `{node.attr}`: frames are off limits"
    if isinstance(node.ctx, ast.Store | ast.Del) and _root(node) in names:
        return f"assignment to `{ast.unparse(node)}`: a kernel may not change a library"
    module = _path(node.value, names)
    if module is not None and f"{module}.{node.attr}" not in MODULES and not _available(module, node.attr):
        return f"`{module}.{node.attr}` is not available to a kernel"
    return None


def _getattr(node: ast.Call) -> str | None:
    """getattr with a name that cannot be read here would walk around the attribute rules."""
    if not (isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")):
        return None
    name = node.args[1] if len(node.args) > 1 else None
    plain = (
        isinstance(name, ast.Constant)
        and isinstance(name.value, str)
        and not name.value.startswith("_")
        and name.value not in FRAMES
    )
    return None if plain else "getattr with a computed or private name"


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _path(node: ast.expr, names: dict[str, str]) -> str | None:
    """Module path that an expression such as `jax.experimental` names, or None."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        base = _path(node.value, names)
        return f"{base}.{node.attr}" if base else None
    return None

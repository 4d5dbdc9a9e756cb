"""MLIR plumbing: contexts, walking, the custom calls of a module, and putting a rewritten module back."""

from __future__ import annotations

import base64
import json
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
from jax._src.export import _export
from jax._src.interpreters import mlir as jax_mlir
from jax._src.lib import tpu  # type: ignore[attr-defined]
from jax.export import Exported
from jaxlib.mlir import ir

from aka.artifact.errors import Undecodable

# The bindings try to import a Python module for the dialect of every operation that they hand out. This one has none,
# and without an empty one each operation of a kernel costs a failed import: 0.3 ms.
_DIALECT_MODULE = "jaxlib.mlir.dialects.stable_mosaic"
sys.modules.setdefault(_DIALECT_MODULE, types.ModuleType(_DIALECT_MODULE))

KERNEL_TARGET = "tpu_custom_call"
CUSTOM_CALL = "stablehlo.custom_call"


def context() -> ir.Context:
    """A fresh MLIR context that knows StableHLO and the TPU dialect; use it in a `with` statement."""
    made = jax_mlir.make_ir_context()
    tpu.register_dialect(made)
    made.allow_unregistered_dialects = True
    return made


def walk(op: Any) -> Iterator[Any]:
    """Every operation below `op`, in textual order."""
    for region in op.regions:
        for block in region:
            for child in block:
                yield child.operation
                yield from walk(child.operation)


def functions(module: ir.Module) -> dict[str, Any]:
    """The functions of a module by name."""
    found: list[Any] = [o.operation for o in module.body]
    return {o.attributes["sym_name"].value: o for o in found if "sym_name" in o.attributes}


def target(op: Any) -> str | None:
    """The target of a custom call, None for any other operation."""
    return str(op.attributes["call_target_name"].value) if op.name == CUSTOM_CALL else None


def kernel_calls(module: ir.Module) -> list[Any]:
    """The `tpu_custom_call` operations, each once, in the order in which the program first reaches them."""
    fns, seen, found = functions(module), set[str](), list[Any]()

    def visit(op: Any) -> None:
        for child in walk(op):
            if child.name in ("func.call", "call"):
                callee = child.attributes["callee"].value
                if callee not in seen:
                    seen.add(callee)
                    visit(fns[callee])
            elif target(child) == KERNEL_TARGET:
                found.append(child)

    visit(fns["main"])
    return found


def config(op: Any) -> dict[str, Any]:
    """The `backend_config` of a kernel call, as JSON. Raises Undecodable if it isn't."""
    try:
        read = json.loads(op.attributes["backend_config"].value)
    except (KeyError, ValueError, TypeError) as error:
        raise Undecodable("a tpu_custom_call without a readable backend_config") from error
    if not isinstance(read, dict) or "body" not in read.get("custom_call_config", {}):
        raise Undecodable("a tpu_custom_call without a Mosaic body")
    return read


def body(conf: dict[str, Any]) -> bytes:
    """The Mosaic bytecode that a kernel call's config holds."""
    return base64.b64decode(conf["custom_call_config"]["body"])


def module_of(exported: Exported) -> ir.Module:
    """The StableHLO module; call it inside `with context()` and keep it: its operations die with it.

    Raises Undecodable if this version of jax can't read it.
    """
    try:
        return ir.Module.parse(exported.mlir_module())
    except (jax.errors.JaxRuntimeError, ir.MLIRError) as error:
        raise Undecodable(f"the StableHLO does not parse: {str(error).splitlines()[0]}") from error


def with_module(exported: Exported, module: ir.Module, platforms: tuple[str, ...] | None = None) -> Exported:
    """The same signature around another module (and, if given, for other platforms)."""
    data = _export._module_to_bytecode(module)
    return replace(exported, mlir_module_serialized=data, platforms=platforms or exported.platforms)

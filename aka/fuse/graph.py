"""The op's program as one flat list of nodes, read at several sizes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jax.extend import core as jex

from aka.fuse.sizes import NoFit, Size

INLINED = {
    "pjit", "jit", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "closed_call", "core_call", "remat",
    "checkpoint", "remat2",
}  # fmt: skip
LAYOUT = {"broadcast_in_dim", "expand_dims", "reshape", "squeeze", "transpose"}
"""Operations that only rearrange what is there."""
SAME = {"copy", "copy_p", "stop_gradient", "optimization_barrier", "name", "sharding_constraint"}
"""Primitives that hand their operand on."""


@dataclass(frozen=True)
class Literal:
    """A scalar (or an array of one value everywhere): its value at each case."""

    values: tuple[Any, ...]
    dtype: str


Operand = int | Literal


@dataclass(frozen=True)
class Value:
    """An array of the program. `shape` holds sizes, one value per case each."""

    id: int
    shape: tuple[Size, ...]
    dtype: str


@dataclass(frozen=True)
class Node:
    """One operation; `params` holds its parameters at each case."""

    op: str
    inputs: tuple[Operand, ...]
    outputs: tuple[int, ...]
    params: tuple[Mapping[str, Any], ...]

    @property
    def arrays(self) -> list[int]:
        return [i for i in self.inputs if isinstance(i, int)]


@dataclass(frozen=True)
class Graph:
    """`inputs` are the arguments that it reads, `outputs` what it returns; `nodes` in order. `aliases` are inputs that
    stand for another one once more, in a second role."""

    values: dict[int, Value]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nodes: tuple[Node, ...]
    aliases: Mapping[int, int] = field(default_factory=dict)

    @property
    def cases(self) -> int:
        """How many sizes it was read at."""
        return len(self.nodes[0].params)

    @property
    def sources(self) -> tuple[int, ...]:
        """The value behind each input."""
        return tuple(self.aliases.get(i, i) for i in self.inputs)

    def makers(self) -> dict[int, Node]:
        return {out: node for node in self.nodes for out in node.outputs}


@dataclass
class _Flat:
    """One case's program, inlined. Ids count up in order, so that equal programs get equal ids."""

    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[int, str] = field(default_factory=dict)
    nodes: list[tuple[str, tuple[Any, ...], tuple[int, ...], Mapping[str, Any]]] = field(default_factory=list)

    def new(self, aval: Any) -> int:
        made = len(self.shapes)
        self.shapes[made], self.dtypes[made] = tuple(aval.shape), aval.dtype.name
        return made


def read(programs: Sequence[Any]) -> Graph:
    """The graph of an op traced at several sizes (closed jaxprs, the scored case first). Sizes at which the op is
    another program (JAX drops a batch of one, say) are left aside. Raises NoFit where no two are alike, or where it
    holds arrays of constants."""
    flats = [_flatten(closed) for closed in programs]
    first = flats[0]
    flats = [first, *(other for other in flats[1:] if _form(other) == _form(first))]
    if len(flats) == 1 < len(programs):
        raise NoFit("the op runs another program at other sizes")
    values = {
        i: Value(i, tuple(zip(*(f[0].shapes[i] for f in flats), strict=True)), dtype)
        for i, dtype in first[0].dtypes.items()
    }
    nodes = []
    for parts in zip(*(f[0].nodes for f in flats), strict=True):
        op, _, outs, _ = parts[0]
        inputs = tuple(_merged(operands) for operands in zip(*(p[1] for p in parts), strict=True))
        nodes.append(Node(op, inputs, outs, tuple(p[3] for p in parts)))
    outputs = first[2]
    if not all(isinstance(o, int) for o in outputs):
        raise NoFit("an output does not depend on the arguments")
    whole = Graph(values, first[1], tuple(outputs), tuple(nodes))
    return pruned(whole)


def pruned(graph: Graph) -> Graph:
    """Without the nodes that no output needs. Inputs stay as they are."""
    needed, kept = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if needed & set(node.outputs):
            needed |= set(node.arrays)
            kept.append(node)
    return replace(graph, nodes=tuple(reversed(kept)))


def _form(flat: tuple[_Flat, tuple[int, ...], tuple[Any, ...]]) -> Any:
    """What must be equal at all sizes: operations, who reads what, ranks and dtypes."""
    program, inputs, outputs = flat
    nodes = [(op, tuple(i if isinstance(i, int) else None for i in ins), outs) for op, ins, outs, _ in program.nodes]
    ranks = [len(s) for s in program.shapes.values()]
    return nodes, ranks, list(program.dtypes.values()), inputs, [o if isinstance(o, int) else None for o in outputs]


def _merged(operands: tuple[Any, ...]) -> Operand:
    if isinstance(operands[0], int):
        return operands[0]
    return Literal(tuple(o.values[0] for o in operands), operands[0].dtype)


def _flatten(closed: Any) -> tuple[_Flat, tuple[int, ...], tuple[Any, ...]]:
    flat = _Flat()
    inputs = tuple(flat.new(v.aval) for v in closed.jaxpr.invars)
    outputs = _walk(flat, closed.jaxpr, closed.consts, inputs)
    return flat, inputs, tuple(outputs)


def _walk(flat: _Flat, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    env: dict[Any, Any] = dict(zip(jaxpr.invars, arguments, strict=True))
    env |= {v: _constant(c) for v, c in zip(jaxpr.constvars, consts, strict=True)}

    def get(atom: Any) -> Any:
        return _constant(atom.val, getattr(atom.aval, "dtype", None)) if isinstance(atom, jex.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        name, arrays = eqn.primitive.name, [get(a) for a in eqn.invars]
        inner = next((eqn.params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in eqn.params), None)
        if name in INLINED and inner is not None:
            body, held = (inner.jaxpr, inner.consts) if isinstance(inner, jex.ClosedJaxpr) else (inner, [])
            made = _walk(flat, body, held, arrays)
        elif name in SAME:
            made = arrays
        elif _idle(eqn):
            made = arrays[:1]
        elif (one := _chosen(name, arrays)) is not None:
            made = [one]
        elif (folded := _folded(eqn, arrays)) is not None:
            made = folded
        else:
            made = [flat.new(v.aval) for v in eqn.outvars]
            flat.nodes.append((name, tuple(arrays), tuple(made), eqn.params))
        env.update(zip(eqn.outvars, made, strict=True))
    return [get(v) for v in jaxpr.outvars]


def _idle(eqn: Any) -> bool:
    """Padding by nothing, and a slice of all."""
    if eqn.primitive.name not in ("pad", "slice"):
        return False
    return bool(eqn.invars[0].aval.shape == eqn.outvars[0].aval.shape) and not any(
        any(widths) for widths in eqn.params.get("padding_config", ())
    )


def _constant(value: Any, dtype: Any = None) -> Literal:
    array = np.asarray(value)
    if array.size != 1 and (array.size == 0 or not (array == array.flat[0]).all()):
        raise NoFit(f"an array of constants of shape {list(array.shape)}: make it an argument, or compute it in the op")
    return Literal((array.flat[0].item(),), np.dtype(dtype or array.dtype).name)


def _chosen(name: str, operands: Sequence[Any]) -> Any:
    """The operand that is handed on, whatever the others hold: a choice by a constant, a maximum with -inf."""
    if name == "select_n" and isinstance(operands[0], Literal):
        return operands[1 + int(operands[0].values[0])]
    if name == "select_n" and _truth(operands[1:]) == [False, True]:
        return operands[0]
    if name == "max" and isinstance(operands[0], Literal) and operands[0].values[0] == float("-inf"):
        return operands[1]
    return None


def _truth(operands: Sequence[Any]) -> list[bool] | None:
    """The operands as truth values if all are boolean constants."""
    if all(isinstance(o, Literal) and o.dtype == "bool" for o in operands):
        return [bool(o.values[0]) for o in operands]
    return None


def _folded(eqn: Any, operands: Sequence[Any]) -> list[Literal] | None:
    """The result of an operation on constants alone."""
    if not operands or not all(isinstance(o, Literal) for o in operands):
        return None
    out: Any = eqn.outvars[0].aval
    if eqn.primitive.name in LAYOUT | {"slice"}:
        return [Literal(operands[0].values, out.dtype.name)]
    if out.shape or len(eqn.outvars) != 1:
        return None
    scalars = [np.asarray(o.values[0], a.aval.dtype) for o, a in zip(operands, eqn.invars, strict=True)]
    return [_constant(eqn.primitive.bind(*scalars, **eqn.params), out.dtype)]


def subgraph(
    graph: Graph, inputs: Iterable[int], outputs: Sequence[int], keep: Callable[[Node], bool] | None = None
) -> Graph:
    """What computes `outputs` from `inputs`: every node on the way. Inputs come in the order given, unused ones
    dropped."""
    given, makers = set(inputs), graph.makers()
    needed: set[int] = set()
    wanted, reached = list(outputs), set()
    while wanted:
        value = wanted.pop()
        if value in reached:
            continue
        reached.add(value)
        if value in given and value not in outputs:
            needed.add(value)
            continue
        node = makers.get(value)
        if node is None:
            needed.add(value)
            continue
        wanted += node.arrays
    kept = tuple(n for n in graph.nodes if set(n.outputs) & reached and not set(n.outputs) <= needed)
    order = [i for i in inputs if i in needed] + sorted(needed - given)
    return Graph(graph.values, tuple(order), tuple(outputs), kept)

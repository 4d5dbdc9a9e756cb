"""A whole candidate module in the form of a reference kernel: helpers, one function for each piece, and `kernel`."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aka.fuse.beside import MOVES
from aka.fuse.cuts import Split
from aka.fuse.graph import Graph, Node
from aka.fuse.plan import Plan
from aka.fuse.sizes import NoFit, Size, Sizes
from aka.fuse.source import HELPERS, RESERVED, Writer, Written, known_sizes
from aka.fuse.thinned import is_strided

HEAD = '''"""{about}"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TUNED_PARAMS = {params}
{config}

'''


@dataclass(frozen=True)
class Module:
    """A candidate module's source, and the names of the block sizes of each of its kernels in order."""

    source: str
    params: tuple[tuple[str, ...], ...]


def module(
    graph: Graph, split: Split, chosen: Sequence[Plan], names: Sequence[str], words: Mapping[Size, str], about: str
) -> Module:
    """A split with one plan for each of its pieces. `names` are the op's input leaves. Raises NoFit where a body cannot
    be written."""
    variables = dict(zip(graph.inputs, distinct(names), strict=True))
    sizes = known_sizes(graph, list(variables.values()), words)
    only = split.pieces[0].graph
    single = (
        len(split.pieces) == 1 and not split.layout and (only.inputs, only.outputs) == (graph.inputs, graph.outputs)
    )
    written = [_written(p, i, single, variables, words, len(split.pieces), sizes.names) for i, p in enumerate(chosen)]
    params = {k: v for w in written for k, v in w.params.items()}
    texts = [w.text + "\n" for w in written]
    if not single:
        texts.append(_kernel(graph, split, written, variables, sizes) + "\n")
    read = {key: size[0] for size, key in words.items() if any(f"CONFIG[{key!r}]" in t for t in texts)}
    text = HEAD.format(about=about, params=repr(params), config=f"CONFIG = {read!r}\n" if read else "")
    text += "\n\n".join([HELPERS, *([MOVES] if any("_behind(" in t or "_ahead(" in t for t in texts) else []), *texts])
    choices = {k: v for w in written for k, v in w.choices.items()}
    return Module(text + f"\n\n{_space(choices)}", tuple(tuple(w.params) for w in written))


def _written(
    plan: Plan, index: int, single: bool, variables: Mapping[int, str], words: Mapping[Size, str], count: int,
    outer: Mapping[Size, str],
) -> Written:  # fmt: skip
    if single:
        return Writer(plan, "kernel", [variables[v] for v in plan.graph.inputs], words).write()
    names = [variables.get(v, f"x{i}") for i, v in enumerate(plan.graph.sources)]
    names = [n + plan.axes.role(v) for n, v in zip(names, plan.graph.inputs, strict=True)]
    prefix = f"{index + 1}_" if count > 1 else ""
    return Writer(plan, f"_step{index + 1}", distinct(names), words, prefix, outer).write()


def distinct(names: Sequence[str]) -> list[str]:
    """Parameter names that are names, and none twice."""
    made: list[str] = []
    for name in names:
        name = name if name.isidentifier() and not keyword.iskeyword(name) else "x"
        while name in made or name in RESERVED:
            name += "_"
        made.append(name)
    return made


def _kernel(graph: Graph, split: Split, written: Sequence[Written], variables: Mapping[int, str], sizes: Sizes) -> str:
    """The function that runs the pieces in order, with layout operations between them."""
    known = dict(variables)
    lines: list[str] = []
    layout = list(split.layout)

    def place() -> None:
        for node in list(layout):
            if all(v in known for v in node.arrays):
                layout.remove(node)
                known[node.outputs[0]] = f"v{node.outputs[0]}"
                lines.append(f"v{node.outputs[0]} = {_layout(graph, node, known, sizes)}")

    place()
    for piece, made in zip(split.pieces, written, strict=True):
        arguments = [known[v] for v in piece.graph.sources] + [f"{p}={p}" for p in (*made.handed, *made.params)]
        sizes.used |= set(made.handed)
        targets = [f"v{v}" for v in piece.outputs]
        lines.append(f"{', '.join(targets)} = {made.function}({', '.join(arguments)})")
        known.update(zip(piece.outputs, targets, strict=True))
        place()
    lines.append(f"return {', '.join(known[v] for v in graph.outputs)}")
    used = [f"{n} = {sizes.origins[n]}" for n in sizes.origins if n in sizes.used]
    tuned = [f"{k}: int = {v}" for w in written for k, v in w.params.items()]
    head = f"def kernel({', '.join(f'{n}: jax.Array' for n in variables.values())}"
    head += f", *, {', '.join(tuned)}) -> Any:" if tuned else ") -> Any:"
    return "\n    ".join([head, *used, *lines])


def _layout(graph: Graph, node: Node, known: Mapping[int, str], sizes: Sizes) -> str:
    name, out = known[node.arrays[0]], graph.values[node.outputs[0]]
    shape = ", ".join(map(sizes.expression, out.shape))
    if node.op == "transpose":
        return f"jnp.transpose({name}, {tuple(node.params[0]['permutation'])})"
    if node.op == "broadcast_in_dim":
        own = graph.values[node.arrays[0]].shape
        places = node.params[0]["broadcast_dimensions"]
        inner = [sizes.expression(own[places.index(i)]) if i in places else "1" for i in range(len(out.shape))]
        return f"jnp.broadcast_to({name}.reshape({', '.join(inner)}), ({shape}{',' if len(out.shape) == 1 else ''}))"
    if node.op in ("reshape", "squeeze", "expand_dims"):
        return f"{name}.reshape({shape or '()'})"
    if is_strided(node):
        starts, strides = (node.params[0][k] for k in ("start_indices", "strides"))
        return f"{name}[{', '.join(':' if s == 1 else f'{a}::{s}' for a, s in zip(starts, strides, strict=True))}]"
    raise NoFit(f"{node.op} between kernels")


def _space(choices: Mapping[str, Sequence[int]]) -> str:
    rows = "".join(f"        {name!r}: {list(values)!r},\n" for name, values in choices.items())
    return f"def search_space(shapes: Any, chip: str) -> dict[str, list[int]]:\n    return {{\n{rows}    }}\n"

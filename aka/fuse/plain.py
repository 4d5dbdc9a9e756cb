"""A piece of an op as an op of its own, in plain JAX: what the piece's kernel is judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aka.fuse import phrases
from aka.fuse.axes import ELEMENTWISE
from aka.fuse.graph import Graph, Node, Operand
from aka.fuse.sizes import NoFit, Size
from aka.fuse.source import known_sizes

TEXT = '''"""{about}"""

import jax
import jax.numpy as jnp
from jax import lax

CONFIG = {config}
TEST_SHAPES = [{cases}]
# For each case shape and dtype of every argument; integers lie within the range.
ARGUMENTS = [
{arguments}
]


def create_inputs():
    keys = jax.random.split(jax.random.key(0), {count})
    return tuple(_drawn(key, *argument) for key, argument in zip(keys, ARGUMENTS[CONFIG["case"]]))


def _drawn(key, shape, dtype, low, high):
    if dtype == "bool":
        return jax.random.bernoulli(key, 0.5, shape)
    if "int" in dtype:
        return jax.random.randint(key, shape, low, high + 1).astype(dtype)
    return jax.random.normal(key, shape, jnp.float32).astype(dtype)


def workload({names}):
{body}
'''
REDUCED = {
    "reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_and": "all", "reduce_or": "any",
    "argmax": "argmax", "argmin": "argmin",
}  # fmt: skip
BYTES = (-127, 127)
OTHERS = (0, 99)
Range = tuple[int, int]


def piece_op(
    graph: Graph, names: Sequence[str], words: Mapping[Size, str], about: str, ranges: Mapping[int, Range]
) -> str:
    """A workload file for a piece, its shapes those of every traced case. `ranges` bound the integers of arguments that
    are the op's own. Raises NoFit where an operation has no spelling in plain JAX here."""
    writer = _Plain(graph, names, words)
    body = "\n".join(f"    {line}" for line in writer.lines())
    cases = [", ".join(_argument(graph, v, c, ranges) for v in graph.inputs) for c in range(graph.cases)]
    return TEXT.format(
        about=about,
        config=repr(_config(words, 0)),
        cases=", ".join(repr(_config(words, c)) for c in range(1, graph.cases)),
        arguments="\n".join(f"    [{c}]," for c in cases),
        count=len(graph.inputs),
        names=", ".join(names),
        body=body,
    )


def _config(words: Mapping[Size, str], case: int) -> dict[str, int]:
    """The op's own sizes at a case, for what no argument's shape shows."""
    return {"case": case, **{key: size[case] for size, key in words.items() if key != "case"}}


def _argument(graph: Graph, value: int, case: int, ranges: Mapping[int, Range]) -> str:
    made = graph.values[value]
    low, high = ranges.get(value, BYTES if made.dtype in ("int8", "uint8") else OTHERS)
    shape = tuple(s[case] for s in made.shape)
    return f"({shape!r}, {made.dtype!r}, {max(low, 0) if made.dtype.startswith('u') else low}, {high})"


class _Plain:
    """Writes a graph as lines of plain JAX, one for each node."""

    def __init__(self, graph: Graph, names: Sequence[str], words: Mapping[Size, str]) -> None:
        self._graph = graph
        self._names = dict(zip(graph.inputs, names, strict=True))
        self._sizes = known_sizes(graph, names, words)

    def lines(self) -> list[str]:
        made = [self._line(n) for n in self._graph.nodes]
        made.append(f"return {', '.join(self._name(o) for o in self._graph.outputs)}")
        return [f"{n} = {o}" for n, o in self._sizes.origins.items() if n in self._sizes.used] + made

    def _name(self, value: int) -> str:
        return self._names.get(value, f"v{value}")

    def _line(self, node: Node) -> str:
        return f"{', '.join(map(self._name, node.outputs))} = {self._expression(node)}"

    def _expression(self, node: Node) -> str:
        if node.op == "convert_element_type":
            return f"{self._operand(node.inputs[0])}.astype(jnp.{self._dtype(node)})"
        if node.op in ELEMENTWISE:
            return self._elementwise(node)
        if node.op in REDUCED:
            return self._reduced(node)
        rules = {
            "dot_general": self._dot, "transpose": self._transposed, "broadcast_in_dim": self._broadcast,
            "iota": self._iota, "slice": self._slice, "split": self._split, "pad": self._pad,
            "concatenate": self._concatenate, "shift": self._shift,
            "reshape": self._reshaped,
            "squeeze": self._reshaped, "expand_dims": self._reshaped,
        }  # fmt: skip
        if node.op not in rules:
            raise NoFit(f"{node.op} has no spelling in plain JAX")
        return rules[node.op](node)

    def _reduced(self, node: Node) -> str:
        axes = tuple(node.params[0]["axes"])
        return f"jnp.{REDUCED[node.op]}({self._name(node.arrays[0])}, axis={axes[0] if len(axes) == 1 else axes})"

    def _dot(self, node: Node) -> str:
        left, right = map(self._operand, node.inputs)
        params = node.params[0]
        precise = ", precision=lax.Precision.HIGHEST" if "HIGHEST" in str(params.get("precision")) else ""
        kind = f"preferred_element_type=jnp.{self._dtype(node)}{precise}"
        return f"lax.dot_general({left}, {right}, {params['dimension_numbers']!r}, {kind})"

    def _transposed(self, node: Node) -> str:
        return f"jnp.transpose({self._name(node.arrays[0])}, {tuple(node.params[0]['permutation'])})"

    def _reshaped(self, node: Node) -> str:
        return f"{self._operand(node.inputs[0])}.reshape({self._shape(node.outputs[0])})"

    def _broadcast(self, node: Node) -> str:
        places = tuple(node.params[0]["broadcast_dimensions"])
        return f"lax.broadcast_in_dim({self._operand(node.inputs[0])}, {self._shape(node.outputs[0])}, {places})"

    def _iota(self, node: Node) -> str:
        at = node.params[0]["dimension"]
        return f"lax.broadcasted_iota(jnp.{self._dtype(node)}, {self._shape(node.outputs[0])}, {at})"

    def _slice(self, node: Node) -> str:
        rank = range(len(self._graph.values[node.arrays[0]].shape))
        strides = [tuple((p["strides"] or (1,) * len(rank))[i] for p in node.params) for i in rank]
        starts = [tuple(p["start_indices"][i] for p in node.params) for i in rank]
        stops = [tuple(p["limit_indices"][i] for p in node.params) for i in rank]
        bounds = ", ".join(
            f"{self._size(a)}:{self._size(b)}" + ("" if set(s) == {1} else f":{self._size(s)}")
            for a, b, s in zip(starts, stops, strides, strict=True)
        )
        return f"{self._name(node.arrays[0])}[{bounds}]"

    def _split(self, node: Node) -> str:
        stops, stop = [], (0,) * self._graph.cases
        for i in range(len(node.outputs) - 1):
            stop = tuple(s + p["sizes"][i] for s, p in zip(stop, node.params, strict=True))
            stops.append(self._size(stop))
        return f"jnp.split({self._name(node.arrays[0])}, [{', '.join(stops)}], axis={node.params[0]['axis']})"

    def _pad(self, node: Node) -> str:
        configs = [p["padding_config"] for p in node.params]
        sides = [
            f"({self._size(tuple(c[i][0] for c in configs))}, {self._size(tuple(c[i][1] for c in configs))}, 0)"
            for i in range(len(configs[0]))
        ]
        value, filler = map(self._operand, node.inputs)
        return f"lax.pad({value}, {filler}, [{', '.join(sides)}])"

    def _shift(self, node: Node) -> str:
        (value, filler), params = map(self._operand, node.inputs), node.params[0]
        none, moved = (0, 0, 0), (params["by"], -params["by"], 0)
        rank = len(self._graph.values[node.outputs[0]].shape)
        return f"lax.pad({value}, {filler}, {[moved if i == params['dimension'] else none for i in range(rank)]})"

    def _concatenate(self, node: Node) -> str:
        parts = ", ".join(map(self._operand, node.inputs))
        return f"jnp.concatenate([{parts}], axis={node.params[0]['dimension']})"

    def _size(self, size: Size) -> str:
        return self._sizes.expression(size)

    def _shape(self, value: int) -> str:
        sizes = [self._size(s) for s in self._graph.values[value].shape]
        return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"

    def _dtype(self, node: Node) -> str:
        return self._graph.values[node.outputs[0]].dtype

    def _operand(self, operand: Operand) -> str:
        if isinstance(operand, int):
            return self._name(operand)
        text = self._sizes.number(operand.values, operand.dtype)
        return f"jnp.{operand.dtype.replace('bool', 'bool_')}({text})"

    def _elementwise(self, node: Node) -> str:
        exact = {"erfc": "lax.erfc", "expm1": "jnp.expm1", "cbrt": "jnp.cbrt", "is_finite": "jnp.isfinite"}
        operands = [self._operand(i) for i in node.inputs]
        if node.op in exact:
            return f"{exact[node.op]}({operands[0]})"
        if node.op == "reduce_precision":
            bits = node.params[0]
            return f"lax.reduce_precision({operands[0]}, {bits['exponent_bits']}, {bits['mantissa_bits']})"
        dtypes = [self._graph.values[i].dtype if isinstance(i, int) else i.dtype for i in node.inputs]
        return phrases.phrase(node.op, operands, node.params[0], dtypes)

"""The kernels of a chain one by one: each with the op that it alone computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aka.fuse.cuts import Piece, Split
from aka.fuse.graph import Graph
from aka.fuse.module import Module, distinct, module
from aka.fuse.plain import Range, piece_op
from aka.fuse.plan import Plan
from aka.fuse.sizes import NoFit, Size


@dataclass(frozen=True)
class Link:
    """One kernel of a chain: the workload file that it is judged by, its source, and what the chain calls each of its
    parameters."""

    op: str
    source: str
    params: dict[str, str]


@dataclass(frozen=True)
class Arguments:
    """What is known of an op's input leaves: their names, better names for sizes, the range of integers by leaf."""

    names: Sequence[str]
    words: Mapping[Size, str]
    ranges: Mapping[int, Range]


def links(
    graph: Graph, split: Split, chosen: Sequence[Plan], whole: Module, given: Arguments, about: str
) -> tuple[Link, ...]:
    """The kernels of a template of several; none if one of them cannot stand alone (a size that only the op's arguments
    show, an operation without a spelling)."""
    if len(split.pieces) < 2:
        return ()
    known = dict(zip(graph.inputs, given.names, strict=True))
    try:
        return tuple(
            _link(piece, plan, params, known, given, f"{about} Kernel {i + 1} of {len(chosen)}.")
            for i, (piece, plan, params) in enumerate(zip(split.pieces, chosen, whole.params, strict=True))
        )
    except NoFit:
        return ()


def _link(
    piece: Piece, plan: Plan, params: Sequence[str], known: Mapping[int, str], given: Arguments, about: str
) -> Link:
    names = distinct([known.get(v, f"x{i}") for i, v in enumerate(piece.op.inputs)])
    alone = module(piece.op, Split((Piece((plan,), piece.op),), ()), [plan], names, given.words, about)
    (own,) = alone.params
    op = piece_op(piece.op, names, given.words, about, given.ranges)
    return Link(op, alone.source, dict(zip(own, params, strict=True)))

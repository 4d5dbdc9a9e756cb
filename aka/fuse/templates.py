"""All templates of an op: each way to cut it, each way to walk its pieces, as modules in the form of the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aka.fuse.chain import Arguments, Link, links
from aka.fuse.cuts import Cutter, Split
from aka.fuse.graph import read
from aka.fuse.interleave import interleaved
from aka.fuse.module import module
from aka.fuse.plan import Machine, Plan
from aka.fuse.pools import pooled
from aka.fuse.shifts import shifted
from aka.fuse.sizes import NoFit, Size
from aka.fuse.tail import reshaped_last
from aka.fuse.thinned import thinned
from aka.fuse.ungroup import ungrouped

MAX_TEMPLATES = 6
HOPELESS = 4.0
"""A template whose rough time is this many times the best one's is not worth a trial."""


@dataclass(frozen=True)
class Template:
    """A written template: `how` it is built in words, its source, its kernels one by one if they are several, and what
    XLA's copies between them take at least."""

    name: str
    how: str
    source: str
    seconds: float
    links: tuple[Link, ...] = ()
    between_us: float = 0.0


def templates(
    programs: Sequence[Any],
    names: Sequence[str],
    words: Mapping[Size, str],
    machine: Machine,
    op: str,
    ranges: Mapping[int, tuple[int, int]] | None = None,
) -> tuple[list[Template], dict[str, str]]:
    """Kernels for an op traced at several sizes (closed jaxprs, the scored case first), cheapest by rough time first;
    and what was refused, with reasons by name. `names` are its input leaves, `words` what it calls its sizes, `ranges`
    the least and the largest integer of leaves that have some."""
    given = Arguments(names, words, ranges or {})
    try:
        graph = ungrouped(pooled(reshaped_last(shifted(thinned(interleaved(read(programs)))))))
        if not graph.nodes:
            raise NoFit("the op computes nothing")
        cutter = Cutter(graph, machine, words)
        splits = cutter.splits()
    except NoFit as reason:
        return [], {"template": str(reason)}
    made: dict[str, Template] = {}
    refused = {f"template ({i + 1})": text for i, text in enumerate(cutter.refused)}
    for split in splits:
        for chosen in _walks(split):
            name, how = _name(split, chosen), _how(chosen)
            try:
                about = f"{op}: {how}."
                written = module(graph, split, chosen, names, words, about)
                alone = links(graph, split, chosen, written, given, about)
            except NoFit as reason:
                refused[f"template/{name}"] = str(reason)
                continue
            while name in made:
                name += "+"
            seconds = sum(p.seconds for p in chosen) + split.between_s
            made[name] = Template(name, how, written.source, seconds, alone, 1e6 * split.between_s)
    ordered = sorted(made.values(), key=lambda t: t.seconds)
    worth = [t for t in ordered if t.seconds <= HOPELESS * ordered[0].seconds]
    return worth[:MAX_TEMPLATES], refused


def _walks(split: Split) -> list[list[Plan]]:
    """The best plan of every piece; then, piece by piece, its other plans."""
    first = [p.plans[0] for p in split.pieces]
    others = [[*first[:i], plan, *first[i + 1 :]] for i, piece in enumerate(split.pieces) for plan in piece.plans[1:]]
    return [first, *others]


def _name(split: Split, chosen: Sequence[Plan]) -> str:
    kernels = "fused" if len(split.pieces) == 1 else f"{len(split.pieces)}-kernels"
    streamed = [i for i, p in enumerate(chosen) if p.stream is not None]
    if not streamed:
        return kernels
    where = "" if len(chosen) == 1 else "-" + "-".join(str(i + 1) for i in streamed)
    return f"{kernels}-streamed{where}"


def _how(chosen: Sequence[Plan]) -> str:
    """In words: how many kernels, and how each walks."""
    parts = []
    for plan in chosen:
        cut = f"a grid over {len(plan.cut) + len(plan.squeezed)} axes" if plan.grid else "one block"
        parts.append(cut + (", one more streamed into an accumulator" if plan.stream is not None else ""))
    head = "one kernel" if len(chosen) == 1 else f"{len(chosen)} kernels"
    return f"{head} from the op's own program: {'; '.join(parts)}"

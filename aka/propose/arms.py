"""Arms: everything that can stand for the workload, and where it comes from.

The user's own starting kernel, kernels of the library that bind, and fusion templates written from the workload's own
program. Each has a search space and can be written as a candidate's source.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from aka.errors import WorkloadError
from aka.propose import starting
from aka.propose.past import fingerprint
from aka.propose.render import render
from aka.types import Binding, Bindings, Brief, ReferenceKernel, Space, Templates, Workload

STARTING, LIBRARY, TEMPLATE = range(3)
ALONE = "alone "
"""How the key of one kernel of a template begins."""


class Planner(Protocol):
    """Answers from the sandbox where op.py and reference kernels are run."""

    def bind(self, workload: Workload, kernels: Sequence[ReferenceKernel]) -> Bindings: ...
    def space(self, workload: Workload, kernel: ReferenceKernel, binding: Binding) -> Space: ...
    def templates(self, workload: Workload) -> Templates: ...
    def piece(self, workload: Workload, op: str) -> Workload: ...


@dataclass(frozen=True)
class Arm:
    """One kernel with what can be tuned about it. `key` is its binding's; `group` is the order in which defaults are
    tried: the user's own kernel, then the library's, then templates. One kernel of a template alone has the `op` that
    it is judged by, and `calls` tells what the template calls each of its parameters; `between_us` is what copies
    between the kernels of a template take."""

    key: str
    origin: str
    family: str
    title: str
    space: Mapping[str, Sequence[Any]]
    write: Callable[[Mapping[str, Any]], str]
    group: int
    op: str = ""
    calls: Mapping[str, str] = field(default_factory=dict)
    between_us: float = 0.0

    @property
    def tuned(self) -> dict[str, Any]:
        return Space({name: list(values) for name, values in self.space.items()}).tuned


class Arms:
    """The arms found so far. `refused` tells why others are none."""

    def __init__(self, planner: Planner, library: Callable[[str], ReferenceKernel | None]) -> None:
        self._planner = planner
        self._library = library
        self._found: dict[str, Arm] = {}
        self._looked_at: set[str] = set()
        self._chains: dict[str, tuple[ReferenceKernel, Workload]] = {}
        self._alone: dict[str, tuple[Arm, ...]] = {}
        self._started = self._opened = False
        self.refused: dict[str, str] = {}

    def get(self, key: str) -> Arm | None:
        if not key.startswith(ALONE):
            return self._found.get(key)
        every = (p for whole in self._chains for p in self.pieces(self._found[whole]))
        return next((p for p in every if p.key == key), None)

    def pieces(self, arm: Arm) -> tuple[Arm, ...]:
        """The kernels of a template of several, each as an arm of its own; none if they cannot be judged alone."""
        if arm.key not in self._alone:
            self._alone[arm.key] = self._pieces(arm)
        return self._alone[arm.key]

    def _pieces(self, arm: Arm) -> tuple[Arm, ...]:
        if arm.key not in self._chains:
            return ()
        whole, workload = self._chains[arm.key]
        try:
            return tuple(self._piece(whole, i, workload) for i in range(len(whole.pieces)))
        except WorkloadError as error:
            self.refused[f"{whole.id}, kernel by kernel"] = str(error)
            return ()

    def _piece(self, whole: ReferenceKernel, index: int, workload: Workload) -> Arm:
        piece, number = whole.pieces[index], f"{index + 1} of {len(whole.pieces)}"
        op = self._planner.piece(workload, piece.op)
        name = f"{whole.id}, kernel {number}"
        kernel = replace(whole, id=name, family=name, title=name, source=piece.source, pieces=())
        binding = Binding(name, tuple(range(len(op.primary.inputs.leaves))), {})
        space = self._planner.space(op, kernel, binding).space
        write = functools.partial(render, kernel, binding, workload=op)
        # Templates have kernels in common: what was tried in one of them is known in the others.
        same = hashlib.sha256(f"{fingerprint(piece.op)} {fingerprint(piece.source)}".encode())
        key = ALONE + same.hexdigest()[:16]
        return Arm(key, f"piece:{name}", name, f"{name}, alone", space, write, TEMPLATE, piece.op, piece.params)

    def look(self, brief: Brief) -> None:
        """Once per run the op's own file; then whatever has been retrieved since."""
        if not self._started:
            self._started = True
            self._start(brief.workload)
        self._bind(brief)

    def open_templates(self, brief: Brief) -> None:
        """Templates, once per run. They are written when the others have had their first tries, which may end it."""
        if not self._opened:
            self._opened = True
            self._templates(brief)

    def in_order(self) -> list[Arm]:
        """By group, and within a group one of each family in turn, in the order in which they were found."""
        found = list(self._found.values())
        return [arm for group in (STARTING, LIBRARY, TEMPLATE) for arm in interleaved(found, group)]

    def _start(self, workload: Workload) -> None:
        if not workload.has_starting_kernel:
            return
        try:
            made = starting.read(workload)
        except WorkloadError as error:
            self.refused["starting_kernel"] = str(error)
            return
        key = Binding("starting", tuple(range(len(workload.primary.inputs.leaves))), {}).key
        self._found[key] = Arm(key, "starting", "starting", "the starting kernel", made.space, made.write, STARTING)

    def _templates(self, brief: Brief) -> None:
        try:
            answer = self._planner.templates(brief.workload)
        except WorkloadError as error:
            self.refused["templates"] = str(error)
            return
        self.refused |= answer.refused
        leaves = tuple(range(len(brief.workload.primary.inputs.leaves)))
        for kernel in answer.kernels:
            if brief.chip.name in kernel.chips:
                self._add(brief.workload, kernel, Binding(kernel.id, leaves, {}), TEMPLATE)

    def _bind(self, brief: Brief) -> None:
        retrieved = (p.doc_id for p in brief.passages if p.kind == "kernel")
        ids = [i for i in dict.fromkeys([*brief.shown, *retrieved]) if i not in self._looked_at]
        kernels = [k for k in map(self._library, ids) if k is not None and brief.chip.name in k.chips]
        self._looked_at |= set(ids)
        if not kernels:
            return
        by_id = {k.id: k for k in kernels}
        for binding in self._bindings(brief.workload, kernels):
            self._add(brief.workload, by_id[binding.kernel], binding, LIBRARY)

    def _bindings(self, workload: Workload, kernels: Sequence[ReferenceKernel]) -> tuple[Binding, ...]:
        """All at once; one by one where that fails, so that one kernel that takes too long does not end the run."""
        try:
            answer = self._planner.bind(workload, kernels)
        except WorkloadError as error:
            if len(kernels) > 1:
                return tuple(b for k in kernels for b in self._bindings(workload, [k]))
            answer = Bindings((), {kernels[0].id: str(error)})
        self.refused |= answer.refused
        return answer.bindings

    def _add(self, workload: Workload, kernel: ReferenceKernel, binding: Binding, group: int) -> None:
        try:
            space = self._planner.space(workload, kernel, binding).space
        except WorkloadError as error:
            self.refused[kernel.id] = f"has no search space at these shapes: {error}"
            return
        if empty := [name for name, values in space.items() if not values]:
            self.refused[kernel.id] = f"has no values for {', '.join(empty)} at these shapes"
            return
        write = functools.partial(render, kernel, binding, workload=workload)
        origin = f"{'template' if group == TEMPLATE else 'catalog'}:{kernel.id}"
        self._found[binding.key] = Arm(
            binding.key, origin, kernel.family, kernel.title, space, write, group, between_us=kernel.between_us
        )
        if len(kernel.pieces) > 1:
            self._chains[binding.key] = kernel, workload


def interleaved(arms: Sequence[Arm], group: int) -> Iterator[Arm]:
    """The arms of a group, one of each family in turn."""
    families: dict[str, list[Arm]] = {}
    for arm in arms:
        if arm.group == group:
            families.setdefault(arm.family, []).append(arm)
    for row in itertools.zip_longest(*families.values()):
        yield from (arm for arm in row if arm is not None)

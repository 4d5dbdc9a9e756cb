"""A kernel, a workload and a planner that answers from a table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aka.errors import WorkloadError
from aka.types import (
    ArraySpec,
    Binding,
    Bindings,
    Brief,
    Candidate,
    Chip,
    Evaluation,
    GateResult,
    MemoryRecord,
    Passage,
    ReferenceKernel,
    ShapeCase,
    Signature,
    Space,
    Templates,
    Timing,
    Trial,
    Workload,
)

CHIP = Chip("v5e", "TPU v5 lite", "v5e:2x2", 1, 1.5e9, {"bfloat16": 197e12}, 2**34, 819e9, 2**27, 2**24, 2**20, True)
SOURCE = '''"""---
id: scale-add
---
Prose that only the library needs.
"""
from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

# Defaults, measured.
TUNED_PARAMS = {"block_rows": 256}
LANES = 128  # of a vector register


# The meaning of the op.
def reference(x, scale, *, eps=1e-6):
    return x * scale + eps


@functools.cache
def search_space(shapes, chip):
    return {"block_rows": [256, 128]}


# The work itself.
def _body(x, scale, eps, block_rows):
    # A comment inside.
    return x * scale + eps


def kernel(x, scale, *, eps=1e-6, block_rows=TUNED_PARAMS["block_rows"]):
    return _body(x, scale, eps, block_rows)
'''


def kernel(id: str = "scale-add", source: str = SOURCE, chips: tuple[str, ...] = ("v5e",)) -> ReferenceKernel:
    return ReferenceKernel(id, "toy", f"Kernel {id}", "x:f[n], scale:f[n] -> f[n]", {"eps": "float"}, chips, source)


def workload(
    names: tuple[str, ...] = ("x", "scale"), inputs: Any = None, outputs: Any = 0, name: str = "toy", leaves: int = 2
) -> Workload:
    spec = ArraySpec((8, 128), "float32")
    arguments = Signature((spec,) * leaves, inputs or {"tuple": list(range(leaves))})
    made = Signature((spec,) * len(re.findall(r"\d+", str(outputs))), outputs)
    case = ShapeCase("rows=8", {}, arguments, made, 0.0, 3 * 4096, {})
    return Workload(name, "op.py", "", (case,), (case,), {"mul": 1}, (1e-6,), names)


BINDING = Binding("scale-add", (0, 1), {"eps": 1e-5})


@dataclass
class TablePlanner:
    """Binds the kernels of `spaces`; a space that is an exception is raised. `asked` lists what it was asked to bind,
    `opened` counts how often it was asked for templates."""

    spaces: dict[str, Space | WorkloadError]
    made: Templates | WorkloadError = field(default_factory=lambda: Templates((), {}))
    asked: list[str] = field(default_factory=list)
    opened: int = 0
    chokes_on: str = ""

    def bind(self, workload: Workload, kernels: Sequence[ReferenceKernel]) -> Bindings:
        if self.chokes_on in [k.id for k in kernels]:
            raise WorkloadError("op.py: no answer within 60 s")
        self.asked += [k.id for k in kernels]
        leaves = tuple(range(len(workload.primary.inputs.leaves)))
        found = tuple(Binding(k.id, leaves, {}) for k in kernels if k.id in self.spaces)
        return Bindings(found, {k.id: "another op" for k in kernels if k.id not in self.spaces})

    def space(self, workload: Workload, kernel: ReferenceKernel, binding: Binding) -> Space:
        made = self.spaces[kernel.id]
        if isinstance(made, WorkloadError):
            raise made
        return made

    def piece(self, workload: Workload, op: str) -> Workload:
        return replace(workload, source=op)

    def templates(self, workload: Workload) -> Templates:
        self.opened += 1
        if isinstance(self.made, WorkloadError):
            raise self.made
        return self.made


def passages(*ids: str) -> tuple[Passage, ...]:
    return tuple(Passage(i, i, "note" if i.startswith("note") else "kernel", i, "", "", 1.0, "") for i in ids)


def brief(
    shown: Sequence[Passage], memory: Sequence[MemoryRecord] = (), *, trial: int = 0, seed: int = 0,
    generation: int = 0, before: tuple[str, ...] = (), op: Workload | None = None,
) -> Brief:  # fmt: skip
    """`before` are documents of earlier generations."""
    return Brief(op or workload(), CHIP, 100.0, None, tuple(memory), tuple(shown), generation, seed, trial, before)


Verdict = float | tuple[str, str] | None
"""What a judge says: microseconds, (reason code, message), or None for a refusal without words."""


def finished(index: int, candidate: Candidate, verdict: Verdict) -> Trial:
    if isinstance(verdict, float):
        gates = (GateResult("performance", True, 0.0),)
        timings = (Timing("v5e", "rows=8", verdict, "estimated", "exact loop"),)
        return Trial(index, candidate, Evaluation(candidate.id, "v5e", gates, timings), 0.0)
    code, message = verdict or ("incorrect", "")
    gate = GateResult("compile", False, 0.0, code, message)
    return Trial(index, candidate, Evaluation(candidate.id, "v5e", (gate,)), 0.0)


def record(index: int, candidate: Candidate, verdict: Verdict) -> MemoryRecord:
    trial = finished(index, candidate, verdict)
    e, c = trial.evaluation, candidate
    return MemoryRecord(index, c.family, c.binding, c.params, e.verdict, e.us)

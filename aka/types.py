"""Every value that crosses a module border: frozen dataclasses, all of them JSON-able (see `encode` and `decode`).

Units are in the names: `_us` microseconds, `_bytes`, `_per_s`. Absent is None.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
Source = Literal["estimated", "measured"]


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one array; `dtype` is NumPy's or ml_dtypes' name ("float32", "bfloat16", "int8", "bool")."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Signature:
    """A pytree of arrays: its leaves in JAX's order, and its structure.

    `tree` is JSON: an int is the leaf of that index, {"list": [...]}, {"tuple": [...]}, {"dict": {key: ...}}, null.
    """

    leaves: tuple[ArraySpec, ...]
    tree: Any

    @property
    def paths(self) -> tuple[tuple[str | int, ...], ...]:
        """The keys and positions that lead to each leaf; of a workload's inputs the first is that of the argument."""
        found: dict[int, tuple[str | int, ...]] = {}

        def walk(node: Any, path: tuple[str | int, ...]) -> None:
            if isinstance(node, int):
                found[node] = path
            elif node is not None:
                ((kind, inner),) = node.items()
                for key, child in inner.items() if kind == "dict" else enumerate(inner):
                    walk(child, (*path, key))

        walk(self.tree, ())
        return tuple(found[i] for i in sorted(found))

    def __str__(self) -> str:
        return ", ".join(map(str, self.leaves))


@dataclass(frozen=True)
class ShapeCase:
    """One set of shapes of a workload. `config` are the CONFIG overrides under which op.py is loaded for it.

    `knobs` are the independent sizes that make the shapes: a CONFIG key ("config:rows"), or a dimension size of the
    production inputs ("dim:8192", all dimensions of that size move together).

    `inputs` is the tuple of arguments, `outputs` the result. `flops` and `min_bytes` (every input read once, every
    output written once) come from the workload, never from a candidate.
    """

    label: str
    config: dict[str, Any]
    inputs: Signature
    outputs: Signature
    flops: float
    min_bytes: int
    knobs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """An op to optimize, as the planner saw it. `shapes` are scored (the first is primary), `test_shapes` are small.

    `primitives` counts the JAX primitives of the op; `literals` are its scalar constants (for binding static
    parameters); `rtol`/`atol` are None unless the file sets them; `weak` lists reasons why the op judges kernels badly.
    """

    name: str
    path: str
    source: str
    shapes: tuple[ShapeCase, ...]
    test_shapes: tuple[ShapeCase, ...]
    primitives: dict[str, int]
    literals: tuple[float, ...]
    argument_names: tuple[str, ...]
    rtol: float | None = None
    atol: float | None = None
    has_make_inputs: bool = False
    has_starting_kernel: bool = False
    weak: tuple[str, ...] = ()

    @property
    def source_hash(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def primary(self) -> ShapeCase:
        return self.shapes[0]


@dataclass(frozen=True)
class Chip:
    """Facts of one accelerator, per device as JAX sees it. Each figure's source is in `aka.targets.chips`."""

    name: str
    device_kind: str
    topology: str
    cores: int
    clock_hz: float
    peak_flops_per_s: dict[str, float]
    hbm_bytes: int
    hbm_bytes_per_s: float
    vmem_bytes: int
    default_scoped_vmem_bytes: int
    smem_bytes: int
    cycle_profile: bool


@dataclass(frozen=True)
class Passage:
    """A retrieved piece of a document: `doc_id` is the document's id, `passage_id` the piece's."""

    doc_id: str
    passage_id: str
    kind: Literal["note", "kernel"]
    title: str
    heading: str
    text: str
    score: float
    path: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """One kernel of a template of several: the workload file that it alone is judged by, its source in the form of a
    reference kernel, and what the template calls each of its parameters."""

    op: str
    source: str
    params: dict[str, str]


@dataclass(frozen=True)
class ReferenceKernel:
    """A kernel of the library as the offline proposer uses it: what it computes, and its source. A template of several
    kernels has them one by one in `pieces`; copies between them take `between_us` at least."""

    id: str
    family: str
    title: str
    signature: str
    statics: dict[str, str]
    chips: tuple[str, ...]
    source: str
    pieces: tuple[Piece, ...] = ()
    between_us: float = 0.0


@dataclass(frozen=True)
class Binding:
    """How a reference kernel stands for a workload: `arguments[i]` is the workload's input leaf that the kernel's
    argument i gets, `statics` the values of its static parameters."""

    kernel: str
    arguments: tuple[int, ...]
    statics: dict[str, Any]

    @property
    def key(self) -> str:
        return json.dumps([self.kernel, self.arguments, self.statics], sort_keys=True)


@dataclass(frozen=True)
class Bindings:
    """The answer to 'which of these kernels compute this workload': the others are `refused` with a reason each."""

    bindings: tuple[Binding, ...]
    refused: dict[str, str]


@dataclass(frozen=True)
class Templates:
    """Kernels written from the workload's own program, in the form of the library: each takes the workload's input
    leaves in order and has no statics. What no template covers is in `refused`, a reason each."""

    kernels: tuple[ReferenceKernel, ...]
    refused: dict[str, str]


@dataclass(frozen=True)
class Space:
    """A kernel's tunable parameters at given shapes on a chip: the values to choose from, the best known one first."""

    space: dict[str, list[Any]]

    @property
    def tuned(self) -> dict[str, Any]:
        """The first choice of each parameter: the kernel's own advice for these shapes on this chip."""
        return {name: choices[0] for name, choices in self.space.items()}


@dataclass(frozen=True)
class Candidate:
    """A kernel to try: Python source that defines `workload(*inputs)`. `binding` is a `Binding.key`, or empty.

    `op` is empty, or the workload file that a piece of a template is judged by in place of the run's own.
    """

    code: str
    plan: str
    origin: str
    parent: str | None = None
    family: str = ""
    binding: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    op: str = ""

    @property
    def is_piece(self) -> bool:
        """Whether it computes a part of the op only: its time stands beside no baseline, and it is never the best."""
        return self.origin.startswith("piece:")

    @property
    def id(self) -> str:
        return hashlib.sha256(self.code.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class GateResult:
    """One gate's answer. If it failed: `code` is a stable reason code, `message` for people, `evidence` for a model."""

    gate: str
    passed: bool
    seconds: float
    code: str | None = None
    message: str = ""
    evidence: str = ""


@dataclass(frozen=True)
class Timing:
    """Time of one shape on one chip. `confidence`: "exact loop", "extrapolated", "bundle count", "floor",
    "data-dependent control flow"; the lowest of the parts that were added up."""

    chip: str
    shape: str
    us: float
    source: Source
    confidence: str


@dataclass(frozen=True)
class Profile:
    """What the compiler says about a program on a chip at one shape (all kernels and XLA ops in it added up).

    `bound` is "hbm", "compute", "cycles" or the unit whose issue slots are fullest; `slots` maps a unit to the
    fraction of its issue slots used; spills and fills count instructions.
    """

    chip: str
    shape: str
    source: Source
    confidence: str
    estimated_us: float
    cycles: float | None
    hbm_bytes: int
    bound: str
    roofline_fraction: float
    slots: dict[str, float]
    spills: int | None
    fills: int | None
    vmem_bytes: int | None
    ops: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """The judge's whole answer about one candidate on one chip: gates in order, and times if every gate passed.

    A candidate that was only `slower` than the best so far keeps its times and profiles too, for the search to learn
    from: it is rejected at the gate "performance" without a word on its values, which were not compared.
    """

    candidate_id: str
    chip: str
    gates: tuple[GateResult, ...]
    timings: tuple[Timing, ...] = ()
    profiles: tuple[Profile, ...] = ()
    sandbox: str = ""

    @property
    def accepted(self) -> bool:
        return bool(self.gates) and all(g.passed for g in self.gates)

    @property
    def failed(self) -> GateResult | None:
        """The gate that rejected the candidate, whatever for; None if it was accepted."""
        return next((g for g in self.gates if not g.passed), None)

    @property
    def fault(self) -> GateResult | None:
        """The gate that found something wrong with the candidate: being slower than the best is no fault."""
        return None if self.slower else self.failed

    @property
    def verdict(self) -> str:
        """ "ACCEPT", or the reason code of the gate that failed."""
        if self.failed is not None:
            return self.failed.code or "rejected"
        return "ACCEPT" if self.gates else "not_judged"

    @property
    def slower(self) -> bool:
        """Rejected for its time alone. Neither a failure nor a success: its values are unknown."""
        return self.verdict == "slower"

    @property
    def us(self) -> float | None:
        """Geometric mean over the scored shapes, or None. A rejected candidate may have one: see `slower`."""
        return geomean([t.us for t in self.timings]) if self.timings else None


@dataclass(frozen=True)
class Trial:
    """One turn of the loop: what was tried and what the judge said. `seconds` is the wall time of the judgement."""

    index: int
    candidate: Candidate
    evaluation: Evaluation
    seconds: float


@dataclass(frozen=True)
class MemoryRecord:
    """What the search remembers of a trial. A masked record is hidden from the proposer, never deleted."""

    trial: int
    family: str
    binding: str
    params: dict[str, Any]
    outcome: str
    us: float | None
    pitfall: str = ""
    protected: bool = False
    masked: bool = False
    piece: bool = False


@dataclass(frozen=True)
class Brief:
    """What a proposer sees. `memory` holds unmasked records only; `generation` grows with each dropout reset and
    `shown` are the documents that the run has retrieved so far, in order, those of `passages` among them."""

    workload: Workload
    chip: Chip
    baseline_us: float
    best: Trial | None
    memory: tuple[MemoryRecord, ...]
    passages: tuple[Passage, ...]
    generation: int
    seed: int
    trial: int
    shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Event:
    """One journal line."""

    seq: int
    type: str
    data: dict[str, Any]
    t_wall: float = 0.0


@dataclass(frozen=True)
class ShapeResult:
    label: str
    baseline_us: float
    best_us: float | None
    speedup: float | None
    confidence: str
    baseline_confidence: str


@dataclass(frozen=True)
class RunResult:
    """The answer of `aka optimize` (the fields of `--json`). Times are geometric means over `shapes`."""

    status: Literal["improved", "no_improvement"]
    chip: str
    source: Source
    confidence: str
    hardware: str
    baseline_us: float
    best_us: float | None
    speedup: float | None
    roofline_fraction: float | None
    shapes: tuple[ShapeResult, ...]
    trials: int
    stop_reason: str
    best_path: str | None
    run: str
    sandbox: str
    versions: dict[str, str]
    weak: tuple[str, ...] = ()


def geomean(values: list[float]) -> float:
    """Geometric mean of positive numbers."""
    return math.exp(sum(math.log(v) for v in values) / len(values))


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def encode(value: Any) -> Any:
    """A dataclass of this module (or a tuple of them) as JSON values."""
    return _adapter(cast(Hashable, type(value))).dump_python(value, mode="json")


def decode(kind: type[T], data: Any) -> T:
    """The inverse of `encode`; raises ValueError (pydantic's) if `data` does not have the form of `kind`."""
    made: T = _adapter(cast(Hashable, kind)).validate_json(json.dumps(data), strict=False)
    return made

"""From cycles, bytes and FLOP to a time, and to what bounds it. Pure arithmetic, no compiler.

The simulation knows DMA latency but no shared HBM bandwidth, and misses the work of some fusions altogether, so each
op takes the largest of three: cycles / clock, HBM bytes / bandwidth, matrix FLOP / peak. Ops run one after another;
asynchronous copies run beside them and count only in the floor of all bytes over the bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aka.targets.chips import peak_flops_per_s
from aka.targets.llo import Bundles
from aka.types import Chip

# From best to worst; a sum is worth what its worst part is worth.
CONFIDENCES = ("exact loop", "extrapolated", "bundle count", "data-dependent control flow", "floor")
# Below these cycles a grid step is mostly bookkeeping: JAX's matmul tutorial comes to about 540 (v5e, 128-blocks).
SMALL_STEP_CYCLES = 1000
# A unit whose slots are this full over the whole static schedule leaves the scheduler no room.
FULL_SLOTS = 0.5
# An op without simulated cycles spoils the confidence from this share of the time on.
UNSEEN_SHARE = 0.02


@dataclass(frozen=True)
class Op:
    """One op's cost per run. `cycles` None: not simulated. `steps`: grid steps of a kernel, 0 for XLA's ops."""

    name: str
    opcode: str
    cycles: float | None
    hbm_bytes: int
    flops: float
    flops_dtype: str
    trips: int
    overlaps: bool
    steps: int
    confidence: str
    bundles: Bundles | None = None


@dataclass(frozen=True)
class Need:
    """What the workload itself needs on any machine: every input read once, every output written once, its FLOP."""

    min_bytes: int
    flops: float
    dtype: str = "bfloat16"

    def floor_s(self, chip: Chip) -> float:
        """Roofline time in seconds."""
        return max(self.min_bytes / chip.hbm_bytes_per_s, self.flops / peak_flops_per_s(chip, self.dtype))


@dataclass(frozen=True)
class Parts:
    """Seconds of one op by what could bound it, all its trips together."""

    cycles_s: float
    hbm_s: float
    flops_s: float

    @property
    def total_s(self) -> float:
        return max(self.cycles_s, self.hbm_s, self.flops_s)


@dataclass(frozen=True)
class Program:
    """The ops of one compiled program and the VMEM it uses."""

    ops: Sequence[Op]
    vmem_bytes: int | None = None
    shape: str = ""


def parts(op: Op, chip: Chip) -> Parts:
    """Seconds of the op's cycles, bytes and FLOP; a copy that overlaps has none of its own."""
    if op.overlaps:
        return Parts(0.0, 0.0, 0.0)
    return Parts(
        cycles_s=(op.cycles or 0.0) * op.trips / chip.clock_hz,
        hbm_s=op.hbm_bytes * op.trips / chip.hbm_bytes_per_s,
        flops_s=op.flops * op.trips / peak_flops_per_s(chip, op.flops_dtype) if op.flops else 0.0,
    )


def total_bytes(ops: Sequence[Op]) -> int:
    """HBM bytes of all ops, asynchronous copies included."""
    return sum(op.hbm_bytes * op.trips for op in ops)


def total_s(ops: Sequence[Op], chip: Chip) -> float:
    """Seconds of the program: its ops in sequence, but no less than all its bytes take."""
    return max(sum(parts(op, chip).total_s for op in ops), total_bytes(ops) / chip.hbm_bytes_per_s)


def confidence(ops: Sequence[Op], chip: Chip) -> str:
    """The worst confidence among ops that matter: those of at least 2 % of the time."""
    whole = total_s(ops, chip) or 1.0
    worst = [CONFIDENCES.index(op.confidence) for op in ops if parts(op, chip).total_s >= UNSEEN_SHARE * whole]
    return CONFIDENCES[max(worst, default=0)]


def bound(ops: Sequence[Op], chip: Chip) -> str:
    """What the program waits for: of its longest op, "hbm", "mxu", the fullest unit, "dma-latency", "grid-overhead".

    "cycles" where the simulated schedule is longer than bytes and FLOP allow and nothing in it stands out.
    """
    longest = max(ops, key=lambda op: parts(op, chip).total_s, default=None)
    serial = sum(parts(op, chip).total_s for op in ops)
    if longest is None or total_bytes(ops) / chip.hbm_bytes_per_s > serial:
        return "hbm"
    part = parts(longest, chip)
    if part.total_s == part.hbm_s:
        return "hbm"
    return "mxu" if part.total_s == part.flops_s else _cycle_bound(longest)


def _cycle_bound(op: Op) -> str:
    if op.steps and op.cycles is not None and op.cycles / op.steps < SMALL_STEP_CYCLES:
        return "grid-overhead"
    if op.bundles is None:
        return "cycles"
    unit = max(op.bundles.slots, key=op.bundles.slots.__getitem__, default="cycles")
    if op.bundles.slots.get(unit, 0.0) >= FULL_SLOTS:
        return unit
    # The schedule as written is shorter than the simulated time: the rest is waiting for copies.
    waits = op.steps and op.cycles is not None and op.cycles > 2 * op.bundles.bundles * op.steps
    return "dma-latency" if waits else "cycles"


def profile(program: Program, chip: Chip, need: Need) -> dict[str, Any]:
    """The fields of `aka.types.Profile` as JSON values; times in microseconds, ops longest first."""
    ops = program.ops
    seconds = total_s(ops, chip)
    simulated = [op.cycles * op.trips for op in ops if op.cycles is not None and not op.overlaps]
    main = max((op for op in ops if op.bundles), key=lambda op: parts(op, chip).total_s, default=None)
    static = main.bundles if main else None
    return {
        "chip": chip.name,
        "shape": program.shape,
        "source": "estimated",
        "confidence": confidence(ops, chip),
        "estimated_us": seconds * 1e6,
        "cycles": sum(simulated) if simulated else None,
        "hbm_bytes": total_bytes(ops),
        "bound": bound(ops, chip),
        "roofline_fraction": need.floor_s(chip) / seconds if seconds else 0.0,
        "slots": static.slots if static else {},
        "spills": sum(op.bundles.spills for op in ops if op.bundles) if static else None,
        "fills": sum(op.bundles.fills for op in ops if op.bundles) if static else None,
        "vmem_bytes": program.vmem_bytes,
        "ops": [_op(op, chip) for op in sorted(ops, key=lambda op: -parts(op, chip).total_s)],
    }


def scaled(reduced: dict[str, Any], need: Need, whole: Need, chip: Chip) -> dict[str, Any]:
    """The profile of a larger shape that reaches the fraction of its roofline that the `reduced` profile reached.

    `need` is the reduced shape's, `whole` the larger one's. Ops and cycles are left out: they were not seen.
    """
    fraction = min(1.0, reduced["roofline_fraction"]) or 1.0
    worse = max(reduced["confidence"], "extrapolated", key=CONFIDENCES.index)
    return reduced | {
        "confidence": worse,
        "estimated_us": whole.floor_s(chip) / fraction * 1e6,
        "cycles": None,
        "hbm_bytes": round(reduced["hbm_bytes"] * whole.min_bytes / need.min_bytes),
        "roofline_fraction": fraction,
        "ops": [],
    }


def _op(op: Op, chip: Chip) -> dict[str, Any]:
    return {
        "name": op.name,
        "opcode": op.opcode,
        "us": parts(op, chip).total_s * 1e6,
        "cycles": op.cycles,
        "hbm_bytes": op.hbm_bytes,
        "flops": op.flops,
        "trips": op.trips,
        "steps": op.steps,
        "confidence": op.confidence,
    }

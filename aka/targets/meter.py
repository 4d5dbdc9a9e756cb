"""The meter: what a program would take on a TPU chip, from the TPU compiler's own schedule. Worker side.

Runs in a process of its own, started with `aot.environment(dump_dir, bundles, cycles=chip.cycle_profile)`: simulation
can take minutes or take the process along, so the caller caps time and memory and falls back to `floor`, which runs in
a process without a dump folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jax.export import Exported

from aka.artifact import decode, regrid
from aka.artifact.decode import Kernel
from aka.errors import BackendUnavailable
from aka.targets import aot, chips, estimate, hlo, llo, pairing
from aka.targets.aot import CompileFailure
from aka.targets.estimate import Need, Op, Program
from aka.targets.llo import Bundles
from aka.types import Chip

# Grids up to this many steps are simulated whole; larger ones at about 4 and 16 steps.
WHOLE_STEPS = 24
# Grids up to this many steps are never cut. A step of more than HEAVY_CYCLES simulates slowly (0.2 s and more), and
# fewer of them will do.
SHORT_STEPS = 8
HEAVY_CYCLES = 30_000
# Where axes that must stay whole already make a cut grid this long, the second one is only twice it.
LONG_STEPS = 128

Reply = tuple[dict[str, Any], list[bytes]]
Plan = tuple[regrid.Grid, regrid.Grid]


@dataclass(frozen=True)
class Run:
    """One compile: the ops of its HLO, and what the compiler dumped about them."""

    rows: list[hlo.Row]
    cycles: dict[str, int]
    bundles: dict[str, Bundles]
    vmem_bytes: int | None


def warm() -> None:
    """Import jax and load libtpu (which reads its flags now); nothing is compiled."""
    aot.device("v5e")


def profile(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    """A candidate's Profile on one chip, as JSON, or {"failure": {code, message, evidence}}.

    `blobs[0]` is the TPU artifact; args are chip, shape (its label), min_bytes and flops (the workload's).
    """
    target = _target(args)
    exported = decode.load(blobs[0])
    kernels = decode.kernels(exported)
    measured = _simulated(exported, kernels, target) if target.cycle_profile else _counted(exported, kernels, target)
    if isinstance(measured, CompileFailure):
        return {"failure": asdict(measured)}, []
    program = Program(measured[0], measured[1], str(args["shape"]))
    return estimate.profile(program, target, _need(args, exported)), []


def baseline(args: dict[str, Any], blobs: list[bytes]) -> Reply:
    """A lower bound of XLA's time for the reference, as a Profile or {"failure": ...}; args as for `profile`.

    With scale_bytes and scale_flops (min_bytes and flops of the production shape) the artifact is the op at reduced
    dimensions: its fraction of the roofline is carried over. Its arrays must be larger than VMEM to be like the whole.
    """
    target = _target(args)
    exported = decode.load(blobs[0])
    run = _run(exported, target)
    if isinstance(run, CompileFailure):
        return {"failure": asdict(run)}, []
    program = Program([_xla_op(row, run) for row in run.rows], run.vmem_bytes, str(args["shape"]))
    need = _need(args, exported)
    made = estimate.profile(program, target, need)
    if "scale_bytes" in args:
        whole = Need(int(args["scale_bytes"]), float(args["scale_flops"]), _dtype(exported))
        made = estimate.scaled(made, need, whole, target)
    return made, []


def floor_us(exported: Exported, hlo_text: str, chip: Chip | str) -> float:
    """Microseconds of a candidate's bytes and FLOP alone, as compiled (`hlo_text`): what its estimate cannot be below.
    Nothing is simulated. 0 where data decides how much it does."""
    kernels, ops = decode.kernels(exported), []
    rows = hlo.rows(hlo_text)
    pairs = pairing.pair(rows, kernels)
    for row in rows:
        kernel = kernels[pairs[row.name]] if row.name in pairs else None
        moved, exact = (row.hbm_bytes, not row.kernel) if kernel is None else pairing.kernel_bytes(kernel, row)
        if not row.exact_trips:
            return 0.0
        ops.append(_op(row, None, moved if exact else 0, 0, "floor", None))
    return 1e6 * estimate.total_s(ops, chips.chip(chip))


def _target(args: dict[str, Any]) -> Chip:
    target = chips.chip(str(args["chip"]))
    if "static_llo_profile" in os.environ.get("LIBTPU_INIT_ARGS", "") and not target.cycle_profile:
        raise BackendUnavailable(f"no cycle profile for {target.name}: start the worker with cycles=False")
    return target


def _need(args: dict[str, Any], exported: Exported) -> Need:
    return Need(int(args["min_bytes"]), float(args["flops"]), _dtype(exported))


def _dtype(exported: Exported) -> str:
    """The dtype whose matrix rate is the roofline's: that of the largest input that the chips have a rate for."""
    known = [a for a in exported.in_avals if str(a.dtype) in chips.V5E.peak_flops_per_s]
    return str(max(known, key=lambda a: a.size).dtype) if known else "bfloat16"


def _run(exported: Exported, target: Chip) -> Run | CompileFailure:
    folder = aot.dump_dir()
    if folder is not None:
        llo.clear(folder)
    compiled = aot.compile(exported, target)
    if isinstance(compiled, CompileFailure):
        return compiled
    return Run(
        rows=hlo.rows(compiled.hlo_text),
        cycles=llo.cycles(folder) if folder else {},
        bundles=llo.bundles(folder) if folder else {},
        vmem_bytes=compiled.vmem_bytes,
    )


def _simulated(
    exported: Exported, kernels: Sequence[Kernel], target: Chip
) -> tuple[list[Op], int | None] | CompileFailure:
    plans = [_plan(k) for k in kernels]
    runs: list[Run] = []
    for which in (0, 1) if any(a != b for a, b in plans) else (1,):
        cut = regrid.regrid(exported, [p[which] for p in plans]) if kernels else exported
        run = _run(cut, target)
        if isinstance(run, CompileFailure):
            return run
        if which == 0:
            plans = _replanned(run, kernels, plans)
        runs.append(run)
    first, last = runs[0], runs[-1]
    pairs = pairing.pair(last.rows, kernels)
    ops = [
        _kernel_op(row, (first, last), kernels[pairs[row.name]], plans[pairs[row.name]])
        if row.name in pairs
        else _xla_op(row, last)
        for row in last.rows
    ]
    return ops, last.vmem_bytes


def _plan(kernel: Kernel) -> Plan:
    """The two grids to simulate, equal where the whole one is short or nothing in it can be cut."""
    first, second = regrid.plan(kernel)
    if pairing.steps(kernel.grid) <= WHOLE_STEPS:
        return (first if pairing.steps(kernel.grid) > SHORT_STEPS else kernel.grid), kernel.grid
    if first != second and pairing.steps(first) > LONG_STEPS:
        return regrid.plan(kernel, ratio=2)
    return first, second


def _replanned(run: Run, kernels: Sequence[Kernel], plans: list[Plan]) -> list[Plan]:
    """After the first run: kernels of heavy steps get twice the first grid, not four times. Long steps dwarf what the
    pipeline does around them."""
    made = list(plans)
    for name, i in pairing.pair(run.rows, kernels).items():
        row = next(r for r in run.rows if r.name == name)
        cycles = _cycles(row, run) or 0
        second = regrid.plan(kernels[i], ratio=2)[1]
        longer = pairing.steps(second) > pairing.steps(plans[i][0])
        if longer and plans[i][0] != plans[i][1] and cycles > HEAVY_CYCLES * pairing.steps(plans[i][0]):
            made[i] = (plans[i][0], second)
    return made


def _kernel_op(row: hlo.Row, runs: tuple[Run, Run], kernel: Kernel, plan: Plan) -> Op:
    small, large = (_cycles(row, run) for run in runs)
    moved, exact = pairing.kernel_bytes(kernel, row)
    steps = pairing.steps(kernel.grid)
    cycles: float | None = large
    certain = "exact loop"
    if small is not None and large is not None and plan[0] != plan[1]:
        line = regrid.extrapolate(small, pairing.steps(plan[0]), large, pairing.steps(plan[1]), steps)
        cycles = max(line, large)
        certain = "exact loop" if plan[1] == kernel.grid else "extrapolated"
    static = runs[1].bundles.get(row.name)
    if large is None and static is not None and not pairing.has_loops(kernel):
        # Some kernels get bundles but no cycles: count as on chips without a cycle profile.
        cycles, certain, large = float(static.bundles * steps), "bundle count", static.bundles
    if large is None:
        certain = "floor"
    elif pairing.data_dependent(kernel) or not exact or not row.exact_trips:
        certain = "data-dependent control flow"
    return _op(row, cycles, moved, steps, certain, static)


def _counted(
    exported: Exported, kernels: Sequence[Kernel], target: Chip
) -> tuple[list[Op], int | None] | CompileFailure:
    """Without a cycle profile: a kernel takes its bundles once per grid step, other ops their bytes and FLOP."""
    run = _run(exported, target)
    if isinstance(run, CompileFailure):
        return run
    pairs = pairing.pair(run.rows, kernels)
    ops = [
        _counted_op(row, run, kernels[pairs[row.name]]) if row.name in pairs else _xla_op(row, run) for row in run.rows
    ]
    return ops, run.vmem_bytes


def _counted_op(row: hlo.Row, run: Run, kernel: Kernel) -> Op:
    static = run.bundles.get(row.name)
    moved, exact = pairing.kernel_bytes(kernel, row)
    steps = pairing.steps(kernel.grid)
    certain = "bundle count"
    if static is None or pairing.has_loops(kernel):
        certain = "floor"
    elif pairing.data_dependent(kernel) or not exact or not row.exact_trips:
        certain = "data-dependent control flow"
    return _op(row, float(static.bundles * steps) if static else None, moved, steps, certain, static)


def _xla_op(row: hlo.Row, run: Run) -> Op:
    cycles = _cycles(row, run)
    certain = "floor" if cycles is None else "exact loop" if row.exact_trips else "data-dependent control flow"
    return _op(row, cycles, row.hbm_bytes, 0, certain, run.bundles.get(row.name))


def _cycles(row: hlo.Row, run: Run) -> int | None:
    """Simulated cycles; an estimate of 0 is the compiler's way of saying that it does not know."""
    return run.cycles.get(row.name, row.cycles) or None


def _op(row: hlo.Row, cycles: float | None, moved: int, steps: int, certain: str, static: Bundles | None) -> Op:
    return Op(
        name=row.name,
        opcode=row.opcode,
        cycles=cycles,
        hbm_bytes=moved,
        flops=row.flops,
        flops_dtype=row.flops_dtype,
        trips=row.trips,
        overlaps=row.overlaps,
        steps=steps,
        confidence=certain,
        bundles=static,
    )


# `floor` is `baseline` in a process without dump flags: nothing is simulated, bytes and FLOP remain.
OPS: dict[str, Callable[[dict[str, Any], list[bytes]], Reply]] = {
    "profile": profile,
    "baseline": baseline,
    "floor": baseline,
}

"""`aka profile`: what bounds a kernel on one or more chips, beside XLA's version of the op."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aka.cli.options import Unsafe
from aka.types import Profile

if TYPE_CHECKING:
    from aka.types import Evaluation


def profile(
    kernel: Annotated[
        Path, typer.Argument(help="A file that defines workload(*inputs), a reference kernel, or a run (its best.py).")
    ],
    op: Annotated[Path, typer.Option(help="The workload file that it computes.")],
    chip: Annotated[str | None, typer.Option(help="One chip, or several separated by commas (default v5e).")] = None,
    unsafe: Unsafe = False,
    json_: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object per chip and shape.")] = False,
) -> None:
    """Profile a kernel by the TPU compiler's own schedule: estimated time, what bounds it, issue slots, spills, VMEM
    and HBM bytes, against the roofline and against XLA. Correctness is not judged here (see aka check).

    Example: aka profile last --op examples/softmax.py --chip v5e,v6e
    """
    from aka.cli import compose, console
    from aka.config import load_settings
    from aka.workload.read import read_kernel, read_workload

    source = read_workload(op)
    brought = read_kernel(compose.kernel_path(kernel))
    rows: list[dict[str, Any]] = []
    wanted = [load_settings({"chip": c.strip() or None}) for c in (chip or "").split(",")]
    for name, settings in {s.chip: s for s in wanted}.items():
        with compose.bench(name, settings.sandbox, unsafe=unsafe) as bench:
            workload = bench.client.describe(source)
            candidate = compose.candidate_of(brought, workload, bench.client)
            console.note(f"{name}: profiling {kernel.name} and XLA's version ...")
            evaluation = bench.judge.profile(workload, candidate)
            if (failed := evaluation.failed) is not None:
                console.note(f"aka: {name}: {failed.code} at the {failed.gate} gate: {failed.message}")
                raise typer.Exit(1)
            rows += _rows(evaluation, bench.judge.baseline(workload))
    console.answer_json(rows) if json_ else console.answer("\n\n".join(map(_text, rows)))


def _rows(evaluation: Evaluation, baseline: Evaluation) -> list[dict[str, Any]]:
    from aka.report import words

    wall = words.wall(evaluation.sandbox)
    return [_row(p, b) | {"sandbox": wall} for p, b in zip(evaluation.profiles, baseline.profiles, strict=True)]


def _row(made: Profile, xla: Profile) -> dict[str, Any]:
    return {
        "chip": made.chip, "shape": made.shape, "source": made.source, "confidence": made.confidence,
        "estimated_us": made.estimated_us, "cycles": made.cycles, "hbm_bytes": made.hbm_bytes, "bound": made.bound,
        "roofline_fraction": made.roofline_fraction, "slots": made.slots, "spills": made.spills, "fills": made.fills,
        "vmem_bytes": made.vmem_bytes, "baseline_us": xla.estimated_us, "baseline_confidence": xla.confidence,
        "speedup": xla.estimated_us / made.estimated_us, "hardware": "unverified",
    }  # fmt: skip


def _text(row: dict[str, Any]) -> str:
    slots = ", ".join(f"{u} {f:.0%}" for u, f in sorted(row["slots"].items(), key=lambda kv: -kv[1]) if f >= 0.005)
    lines = [
        f"{row['chip']}  {row['shape']}  ({row['source']}, {row['confidence']}; hardware: {row['hardware']}, sandbox:"
        f" {row['sandbox']})",
        f"  time      {row['estimated_us']:.1f} us; XLA {row['baseline_us']:.1f} us ({row['baseline_confidence']}):"
        f" {row['speedup']:.2f}x",
        f"  bound by  {row['bound']}, at {row['roofline_fraction']:.0%} of the roofline",
        f"  HBM       {row['hbm_bytes'] / 1e6:.1f} MB",
        f"  VMEM      {row['vmem_bytes'] / 2**20:.1f} MiB" if row["vmem_bytes"] is not None else "  VMEM      unknown",
        f"  cycles    {row['cycles']:.0f}" if row["cycles"] is not None else "  cycles    unknown on this chip",
        f"  slots     {slots or 'unknown'}",
        f"  spills    {row['spills']}, fills {row['fills']}" if row["spills"] is not None else "  spills    unknown",
    ]
    return "\n".join(lines)

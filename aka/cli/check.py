"""`aka check`: put one kernel through the gates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aka.cli.options import Unsafe
from aka.types import Evaluation, encode


def check(
    kernel: Annotated[
        Path, typer.Argument(help="A file that defines workload(*inputs), a reference kernel, or a run (its best.py).")
    ],
    op: Annotated[Path, typer.Option(help="The workload file that it must compute.")],
    chip: Annotated[str | None, typer.Option(help="v4, v5e, v5p, v6e or tpu7x (default v5e).")] = None,
    production_s: Annotated[
        float, typer.Option(min=0, help="Seconds for a run at the production shapes; what takes longer is said.")
    ] = 120.0,
    unsafe: Unsafe = False,
    json_: Annotated[bool, typer.Option("--json", help="Print verdict and gates as one JSON object.")] = False,
) -> None:
    """Judge a kernel as the finalist of a run is judged: static rules, export, structure, VMEM, compile, correctness on
    inputs that only the judge holds, a race detector, its production shapes, and its estimated time.

    The kernel's Python runs in a sandbox; what is judged is the TPU artifact that it exports.

    Exit code 0: accepted; 1: rejected, with the reason. Example: aka check last --op examples/rmsnorm.py
    """
    from aka.cli import compose, console
    from aka.config import load_settings
    from aka.workload.read import read_kernel, read_workload

    settings = load_settings({"chip": chip})
    source = read_workload(op)
    brought = read_kernel(compose.kernel_path(kernel))
    with compose.bench(settings.chip, settings.sandbox, unsafe=unsafe) as bench:
        workload = compose.admitted(bench, source)
        candidate = compose.candidate_of(brought, workload, bench.client)
        bench.judge.whole_s = production_s
        bench.judge.progress = lambda gate: console.note(f"gate {gate} ...")
        evaluation = bench.judge.check(workload, candidate)
    if json_:
        console.answer_json(_json(evaluation))
    else:
        console.answer(_text(evaluation))
    raise typer.Exit(0 if evaluation.accepted else 1)


def _json(evaluation: Evaluation) -> dict[str, object]:
    from aka.report import words

    made = encode(evaluation)
    return {
        "verdict": evaluation.verdict,
        "chip": evaluation.chip,
        "hardware": "unverified",
        "sandbox": words.wall(evaluation.sandbox),
        "gates": made["gates"],
        "timings": made["timings"],
    }


def _text(evaluation: Evaluation) -> str:
    from aka.report import words

    rows = [
        f"  {'ok  ' if g.passed else 'FAIL'} {g.gate:<12} {g.seconds:6.2f} s  {g.message}".rstrip()
        for g in evaluation.gates
    ]
    failed = evaluation.failed
    evidence = ["", failed.evidence.rstrip()] if failed and failed.evidence else []
    wall = words.wall(evaluation.sandbox)
    label = f"{evaluation.verdict} on {evaluation.chip} (hardware: unverified, sandbox: {wall})"
    return "\n".join([label, *rows, *evidence])

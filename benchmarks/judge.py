"""What one full judgement of a small kernel costs, gate by gate: cold (the first of new workers) and warm (a later).

Run `python benchmarks/judge.py` on a quiet machine; it prints one Markdown table. The kernel is the library's softmax
at f32[512,1024] for v5e, judged anew each time: another name of its body makes it another program. The performance gate
works beside compile and correctness: the gates' times add up to more than the whole.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import machine

from aka.cli import compose
from aka.types import Candidate, Evaluation, Workload
from aka.workload.read import read_kernel, read_workload

CHIP = "v5e"
COLD, WARM = 3, 5
KERNEL = Path(__file__).parents[1] / "reference_kernels" / "softmax" / "row_blocks.py"
OP = """
import jax
import jax.numpy as jnp

TEST_SHAPES = [{"rows": 64, "cols": 256}]
CONFIG = {"rows": 512, "cols": 1024}


def create_inputs(dtype=jnp.float32):
    return (jax.random.normal(jax.random.key(0), (CONFIG["rows"], CONFIG["cols"]), dtype),)


def workload(x):
    return jax.nn.softmax(x, axis=-1)
"""


@dataclass(frozen=True)
class Session:
    """One set of workers: seconds to describe the op and bind the kernel, then the judgements in order."""

    planned_s: float
    judged: tuple[tuple[float, Evaluation], ...]


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        op = Path(folder) / "softmax.py"
        op.write_text(OP)
        sessions = [_session(op, 1) for _ in range(COLD - 1)] + [_session(op, 1 + WARM)]
    cold = [session.judged[0] for session in sessions]
    warm = sessions[-1].judged[1:]
    print(f"{machine.line()}; sandbox: {cold[0][1].sandbox}\n")
    print(f"| gate | cold, median of {COLD} | warm, median of {WARM} |\n|---|---|---|")
    for place, gate in enumerate(cold[0][1].gates):
        times = [statistics.median(e.gates[place].seconds for _, e in group) for group in (cold, warm)]
        print(f"| {gate.gate} | {machine.shown(times[0])} | {machine.shown(times[1])} |")
    total = [statistics.median(seconds for seconds, _ in group) for group in (cold, warm)]
    print(f"| whole judgement | {machine.shown(total[0])} | {machine.shown(total[1])} |")
    planned = statistics.median(session.planned_s for session in sessions)
    print(f"\nBefore the first judgement, to start a planner, describe the op and bind the kernel: {planned:.2f} s.")


def _session(op: Path, judgements: int) -> Session:
    start = time.perf_counter()
    with compose.bench(CHIP) as bench:
        workload = bench.client.describe(read_workload(op))
        candidate = compose.candidate_of(read_kernel(KERNEL), workload, bench.client)
        planned_s = time.perf_counter() - start
        return Session(planned_s, tuple(_judge(bench, workload, candidate, i) for i in range(judgements)))


def _judge(bench: compose.Bench, workload: Workload, candidate: Candidate, number: int) -> tuple[float, Evaluation]:
    start = time.perf_counter()
    code = re.sub(r"\b_body\b", f"_body_{number}", candidate.code)
    evaluation = bench.judge.evaluate(workload, replace(candidate, code=code))
    seconds = time.perf_counter() - start
    if not evaluation.accepted:
        raise SystemExit(f"the kernel was rejected: {evaluation.gates[-1]}")
    return seconds, evaluation


if __name__ == "__main__":
    main()

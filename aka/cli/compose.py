"""Build the real collaborators from settings: the one place that knows all of them."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from aka.cli import console
from aka.errors import UsageError
from aka.types import Candidate, Chip, ReferenceKernel, Workload

if TYPE_CHECKING:
    from aka.evaluate.client import PlannerClient
    from aka.evaluate.judge import OfflineJudge
    from aka.evaluate.pool import Pool
    from aka.kb.retriever import HybridRetriever
    from aka.workload.read import SourceFile

GIB = 1 << 30
METER_CPU_S, BASELINE_CPU_S = 120, 60
"""Processor seconds for one simulation. A candidate must get its time; an XLA baseline that takes longer than its own
cap is answered at reduced sizes or by its floor."""
METER_DUMP = "{tmp}/aka-dump"
"""Where the compiler writes its schedules: in the worker's private temporary folder, whose name the sandbox knows."""


@dataclass(frozen=True)
class Bench:
    """The judge's machinery for one chip."""

    pool: Pool
    client: PlannerClient
    judge: OfflineJudge
    chip: Chip


@contextlib.contextmanager
def bench(chip_name: str, sandbox: str = "auto", *, unsafe: bool = False, trials: bool = True) -> Iterator[Bench]:
    """Workers, planner and judge for a chip; everything is killed when the block ends. `trials` warms the workers
    that judge candidates, beside the planner. `sandbox` and `unsafe` are as in `choose_sandbox`."""
    from aka.evaluate.client import PlannerClient
    from aka.evaluate.judge import OfflineJudge
    from aka.targets import chips

    chip = chips.chip(chip_name)
    choose_sandbox(sandbox, unsafe)
    with worker_pool(chip) as pool:
        pool.prepare("planner", *(("runner", "exporter", "meter") if trials else ()))
        client = PlannerClient(pool, chip.name)
        yield Bench(pool, client, OfflineJudge(pool, client, chip), chip)


def choose_sandbox(named: str, unsafe: bool) -> None:
    """Every worker that starts from now on stands on the rung that is named; "auto" is the best wall that works here.

    `unsafe` (--unsafe-no-sandbox) names `rlimits` where none does. Raises BackendUnavailable if the rung cannot run, or
    none can and that was not said.
    """
    from aka.evaluate import rungs

    if named == "auto" and unsafe and rungs.best() is None:
        named = rungs.NO_WALL
    if named != "auto":
        os.environ["AKA_SANDBOX"] = named
    rungs.probe()


def worker_pool(chip: Chip) -> Pool:
    """Limits per role: a candidate's process gets the least, our own runner and meter what big shapes need."""
    from aka.evaluate.pool import Limits, Pool
    from aka.targets import aot

    plain = aot.environment(None, False)
    metered = aot.environment(METER_DUMP, True, cycles=chip.cycle_profile)
    limits = {
        "planner": Limits(memory_bytes=8 * GIB),
        "exporter": Limits(memory_bytes=4 * GIB, cpu_s=120, wall_s=120),
        "runner": Limits(memory_bytes=12 * GIB),
        "meter": Limits(memory_bytes=8 * GIB, cpu_s=METER_CPU_S, file_bytes=1 << 30, tmp_bytes=2 * GIB),
        "baseline": Limits(memory_bytes=8 * GIB, cpu_s=BASELINE_CPU_S, file_bytes=1 << 30, tmp_bytes=2 * GIB),
        "floor": Limits(memory_bytes=8 * GIB),
    }
    env = dict.fromkeys(("planner", "exporter", "runner", "floor"), plain) | {"meter": metered, "baseline": metered}
    return Pool(limits, env)


def admitted(bench: Bench, source: SourceFile) -> Workload:
    """The workload of a file, its weaknesses named aloud. Raises WorkloadError for one that cannot judge a kernel."""
    workload = bench.judge.admit(bench.client.describe(source))
    for reason in workload.weak:
        console.note(f"weak workload: {reason}")
    return workload


def retriever() -> HybridRetriever:
    """The library, its index built first if need be; progress goes to stderr."""
    from aka.kb.opening import open_retriever
    from aka.kb.places import find_places

    return open_retriever(find_places(), announce=console.note)


def reference_kernel(library: HybridRetriever, doc_id: str) -> ReferenceKernel | None:
    """The library's kernel of that id as the proposer needs it; None if the document is no kernel."""
    document = library.document(doc_id)
    if document.kind != "kernel":
        return None
    return kernel_of(document.source, document.matter)


def kernel_of(source: str, matter: dict[str, object]) -> ReferenceKernel:
    """A reference kernel from its source text and front matter."""
    from aka.types import decode

    fields = {**{k: matter[k] for k in ("id", "family", "title", "signature", "statics", "chips")}, "source": source}
    return decode(ReferenceKernel, fields)


def run_folder(given: str) -> Path:
    """The folder of the run that `given` names ("last", an id, a prefix or a folder). Raises UsageError."""
    from aka.config import load_settings
    from aka.journal.runs import find_run

    return find_run(given, Path(load_settings().out))


def kernel_path(given: Path) -> Path:
    """The file itself, or best.py of the run that `given` names ("last", an id, a prefix or a folder)."""
    if given.is_file() or given.suffix == ".py":
        return given
    best = run_folder(str(given)) / "best.py"
    if not best.exists():
        raise UsageError(f"{best.parent} has no best.py: the run found no kernel that is faster than XLA")
    return best


def candidate_of(source: SourceFile, workload: Workload, client: PlannerClient) -> Candidate:
    """A candidate from a file: one that defines `workload(*inputs)`, or a reference kernel, which is bound to the
    workload with its tuned defaults. Raises WorkloadError."""
    if not source.is_reference_kernel:
        return Candidate(source.text, f"read from {source.path.name}", f"file:{source.path.name}")
    from aka.errors import WorkloadError
    from aka.kb.documents import kernel_matter
    from aka.propose.render import render

    kernel = kernel_of(source.text, kernel_matter(str(source.path), source.text))
    answer = client.bind(workload, [kernel])
    if not answer.bindings:
        raise WorkloadError(f"{source.path}: does not compute {workload.name}: {answer.refused[kernel.id]}")
    binding = answer.bindings[0]
    space = client.space(workload, kernel, binding)
    code = render(kernel, binding, space.tuned, workload)
    return Candidate(
        code, kernel.title, f"catalog:{kernel.id}", family=kernel.family, binding=binding.key, params=space.tuned
    )


def versions() -> dict[str, str]:
    """Versions that a result depends on; a package that is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in ("aka-kernels", "jax", "jaxlib", "libtpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found

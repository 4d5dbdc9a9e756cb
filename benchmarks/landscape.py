"""Record what every point of some kernels' search spaces takes, by the real compiler and meter, as a JSON table.

    python benchmarks/landscape.py OP.py --chip v6e --kernel reference_kernels/F/V.py --out TABLE.json

Only the exporter and the meter are asked: a table is about times. One that is there is gone on with. A point takes
seconds, and minutes on a busy machine. It is what `tests/search` replays a search on.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aka.cli import compose
from aka.cli.compose import Bench
from aka.evaluate.correctness import Fault
from aka.evaluate.performance import Meter
from aka.evaluate.pool import WorkerError
from aka.kb.documents import kernel_matter
from aka.propose.render import render
from aka.types import ReferenceKernel, Workload, encode
from aka.workload.read import read_workload

EXPORT_S = 300.0


def main() -> None:
    """Measure what the table lacks, writing it after every point."""
    args = _arguments()
    kernels = [compose.kernel_of(p.read_text(), kernel_matter(str(p), p.read_text())) for p in args.kernel]
    with compose.bench(args.chip) as bench:
        meter = Meter(bench.pool, bench.client, bench.chip)
        workload = bench.client.describe(read_workload(args.op))
        table = json.loads(args.out.read_text()) if args.out.exists() else _head(bench, workload, kernels)
        known = {json.dumps([row["kernel"], row["params"]], sort_keys=True) for row in table["rows"]}
        for kernel, binding, params in _points(table, kernels, workload, bench):
            if json.dumps([kernel.id, params], sort_keys=True) in known:
                continue
            made = _measured(bench, meter, workload, render(kernel, binding, params, workload))
            table["rows"].append({"kernel": kernel.id, "params": params, **made})
            print(json.dumps(table["rows"][-1]), file=sys.stderr, flush=True)
            args.out.write_text(_text(table))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("op", type=Path)
    parser.add_argument("--chip", required=True)
    parser.add_argument("--kernel", type=Path, action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def _head(bench: Bench, workload: Workload, kernels: list[ReferenceKernel]) -> dict[str, Any]:
    """What was measured with what: command, versions, date, baseline, and each kernel's binding and space."""
    answer = bench.client.bind(workload, kernels)
    by_id = {k.id: k for k in kernels}
    spaces = {b.kernel: bench.client.space(workload, by_id[b.kernel], b).space for b in answer.bindings}
    return {
        "command": shlex.join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {k: v for k, v in compose.versions().items() if k in ("jax", "jaxlib", "libtpu")},
        "source": "estimated",
        "chip": bench.chip.name,
        "baseline_us": bench.judge.baseline(workload).us,
        "bindings": [encode(b) for b in answer.bindings],
        "spaces": spaces,
        "rows": [],
    }


def _points(
    table: dict[str, Any], kernels: list[ReferenceKernel], workload: Workload, bench: Bench
) -> Iterator[tuple[ReferenceKernel, Any, dict[str, Any]]]:
    answer = bench.client.bind(workload, kernels)
    by_id = {k.id: k for k in kernels}
    for binding in answer.bindings:
        space = table["spaces"][binding.kernel]
        for values in itertools.product(*space.values()):
            yield by_id[binding.kernel], binding, dict(zip(space, values, strict=True))


def _measured(bench: Bench, meter: Meter, workload: Workload, code: str) -> dict[str, Any]:
    """One point: its time, or the gate that it failed with code and message."""
    case = workload.primary
    args = {
        "source": code, "filename": "candidate.py", "chip": bench.chip.name, "shapes": [encode(case.inputs)],
        "cpu": False,
    }  # fmt: skip
    with bench.pool.borrow("exporter") as worker:
        try:
            _, blobs = worker.call("export", args, timeout_s=EXPORT_S, reply_bytes=256 << 20)
        except WorkerError as error:
            return {"gate": "export", "code": "candidate_error", "message": f"{error.kind}: {error.message}"[:200]}
    made = meter.profile(blobs[0], case)
    if isinstance(made, Fault):
        return {"gate": "performance", "code": made.code, "message": made.message[:200]}
    return {"us": round(made.estimated_us, 2), "roofline": round(made.roofline_fraction, 4)}


def _text(table: dict[str, Any]) -> str:
    """JSON with one row on a line."""
    head = {k: v for k, v in table.items() if k != "rows"}
    rows = ",\n  ".join(json.dumps(row) for row in table["rows"])
    return json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n  {rows}\n ]\n}}\n'


if __name__ == "__main__":
    main()

"""Compiles the snippets of knowledge notes with the real TPU compiler, ahead of time, on any Linux machine.

    python -m tests.knowledge.compile_snippets v5e,v6e knowledge/techniques/t02-*.md [--cycles]

prints one JSON line per chip and snippet. `--cycles` adds the compiler's own estimate of cycles per HLO op (seconds
to minutes a snippet: the schedule is simulated). Snippets run in a child process, because a bad kernel can abort
the compiler and its whole process; the child is started again behind a snippet that did so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from aka.kb.snippets import Snippet, extract

TOPOLOGY = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}
SECONDS_PER_CHILD = 900


@dataclass(frozen=True)
class Outcome:
    """What became of a snippet on a chip: "compiled", "failed" (`text` is the error), "wrong" (`text` says how far off)
    or "aborted" (the process died; `text` is the tail of its stderr). `cycles` maps HLO ops to estimated cycles."""

    id: str
    chip: str
    status: str
    text: str = ""
    cycles: dict[str, int] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chips", help="comma-separated")
    parser.add_argument("notes", nargs="+", type=Path)
    parser.add_argument("--cycles", action="store_true")
    parser.add_argument("--only", type=int, help="index of one snippet of each note")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="override a constant of the code"
    )
    args = parser.parse_args()
    snippets = [_override(s, args.set) for note in args.notes for s in extract(note) if args.only in (None, s.index)]
    for chip in args.chips.split(","):
        for outcome in run(chip, [s for s in snippets if chip in s.chips], cycles=args.cycles):
            print(json.dumps(asdict(outcome)), flush=True)


def _override(snippet: Snippet, settings: Sequence[str]) -> Snippet:
    """The snippet with its lines `NAME = ...` replaced: sweeps without a second copy of the kernel."""
    code = snippet.code
    for name, _, value in (setting.partition("=") for setting in settings):
        code, count = re.subn(rf"(?m)^{re.escape(name)} = .*$", f"{name} = {value}", code)
        if count != 1:
            raise SystemExit(f"{snippet.id} has {count} lines '{name} = ...'")
    return replace(snippet, code=code)


def run(chip: str, snippets: Sequence[Snippet], *, cycles: bool = False) -> Iterator[Outcome]:
    """One outcome per snippet, in order. With `cycles`, each has a child of its own, so that profiles don't mix."""
    if cycles:
        for snippet in snippets:
            with tempfile.TemporaryDirectory() as folder:
                (outcome,) = _batch(chip, [snippet], folder)
                yield Outcome(outcome.id, chip, outcome.status, outcome.text, _read_cycles(Path(folder)))
        return
    rest = list(snippets)
    while rest:
        outcomes = _batch(chip, rest, None)
        yield from outcomes
        rest = rest[len(outcomes) :]


def _batch(chip: str, snippets: Sequence[Snippet], profile: str | None) -> list[Outcome]:
    """Outcomes of the first snippets, up to and including one that killed the child."""
    work = json.dumps({"chip": chip, "snippets": [[s.id, s.code, chip == _checked_on(s)] for s in snippets]})
    command = [sys.executable, __file__, "--child"]
    try:
        child = subprocess.run(
            command, input=work, capture_output=True, text=True, env=_environment(profile), timeout=SECONDS_PER_CHILD
        )
        stdout, stderr, end = child.stdout, child.stderr, f"exit {child.returncode}"
    except subprocess.TimeoutExpired as late:
        stdout, stderr, end = _text(late.stdout), _text(late.stderr), "timeout"
    outcomes = [Outcome(**json.loads(line)) for line in stdout.splitlines()]
    if len(outcomes) < len(snippets):
        outcomes.append(Outcome(snippets[len(outcomes)].id, chip, "aborted", f"{end}: {stderr[-2000:]}"))
    return outcomes


def _checked_on(snippet: Snippet) -> str:
    """Values don't depend on the chip, so they are compared once: where the quick tests run, if possible."""
    return "v5e" if "v5e" in snippet.chips else snippet.chips[0]


def _text(output: str | bytes | None) -> str:
    """What a child had written when its time was up: bytes even in text mode, and perhaps half a line."""
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    return text[: text.rfind("\n") + 1]


def _environment(profile: str | None) -> dict[str, str]:
    # without check_llo_types=false the profile aborts on v6e and tpu7x whenever values are packed (bf16, int8)
    flags = ["--xla_tpu_check_llo_types=false"]
    if profile is not None:
        flags.append(f"--xla_jf_dump_static_llo_profile_to={profile}")
    return {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_LOG_DIR": "disabled",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "LIBTPU_INIT_ARGS": " ".join(flags),
    }


def _read_cycles(folder: Path) -> dict[str, int]:
    found = {}
    for file in sorted(folder.glob("*.textproto")):
        cycles = re.search(r"estimated_cycles:\s*(\d+)", file.read_text(errors="replace"))
        if cycles:
            found[file.name.partition("_static_llo")[0]] = int(cycles[1])
    return found


def child() -> None:
    """Reads {"chip", "snippets": [[id, code, check values?], ...]} from stdin, answers with a JSON line per outcome."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a snippet or the compiler prints must not mix with the answers
    work = json.load(sys.stdin)
    for snippet_id, code, check in work["snippets"]:
        status, text = _judge(code, work["chip"], check)
        answers.write(json.dumps({"id": snippet_id, "chip": work["chip"], "status": status, "text": text}) + "\n")
        answers.flush()


def _judge(code: str, chip: str, check: bool) -> tuple[str, str]:
    scope: dict[str, Any] = {}
    try:
        exec(compile(code, "snippet", "exec"), scope)
        _compile(scope["workload"], scope["ARGS"], chip)
        problem = _check(scope) if check and "reference" in scope else ""
    except Exception as error:  # this is a worker's entry: whatever a snippet raises is its answer
        return "failed", f"{type(error).__name__}: {error}"
    return ("wrong", problem) if problem else ("compiled", "")


def _compile(workload: Any, args: Any, chip: str) -> None:
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, SingleDeviceSharding, use_abstract_mesh

    device = topologies.get_topology_desc(TOPOLOGY[chip], platform="tpu").devices[0]
    there = SingleDeviceSharding(device)
    struct: Any = jax.ShapeDtypeStruct
    specs = [struct(shape, jax.numpy.dtype(dtype), sharding=there) for shape, dtype in args]
    # some lowering rules ask the mesh for the chip, and die on the host's CPU without it
    with use_abstract_mesh(Mesh(np.array([device]), ("x",)).abstract_mesh):
        jax.jit(workload).trace(*specs).lower(lowering_platforms=("tpu",)).compile()


def _check(scope: dict[str, Any]) -> str:
    """Compares workload and reference at CHECK_ARGS on the CPU in TPU interpret mode; "" if they agree."""
    import jax
    import numpy as np
    from jax.experimental.pallas import tpu as pltpu

    keys = jax.random.split(jax.random.key(0), len(scope["CHECK_ARGS"]))
    args = [
        jax.random.normal(key, shape).astype(dtype)
        for key, (shape, dtype) in zip(keys, scope["CHECK_ARGS"], strict=True)
    ]
    with jax.default_matmul_precision("highest"), pltpu.force_tpu_interpret_mode():
        got = np.asarray(jax.jit(scope["workload"])(*args))
    with jax.default_matmul_precision("highest"):
        want = np.asarray(jax.jit(scope["reference"])(*args))
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    got, want = got.astype(np.float64), want.astype(np.float64)
    # bf16 has 8 bits of mantissa; f32 sums of a few hundred terms in another order stay well below 1e-4
    tolerance = 2e-2 if scope["CHECK_ARGS"][0][1] == "bfloat16" else 1e-4
    worst = float(np.max(np.abs(got - want) / (1 + np.abs(want))))
    return "" if worst <= tolerance else f"largest error {worst:.3g}, allowed {tolerance}"


if __name__ == "__main__":
    child() if sys.argv[1:] == ["--child"] else main()

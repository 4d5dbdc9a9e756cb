"""The parent's side of the planner: questions about a workload, answered in the sandbox, checked on the way back."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aka.errors import WorkerDied, WorkerTimeout, WorkloadError
from aka.evaluate import wire
from aka.evaluate.pool import Pool, WorkerError
from aka.types import Binding, Bindings, Piece, ReferenceKernel, ShapeCase, Space, Templates, Workload, decode, encode
from aka.workload.read import SourceFile

DESCRIBE_S = 60.0
"""Reading an op traces it a few times; more than this is a hang (imports that never end, an endless loop)."""
MESSAGE_CHARS = 400


@dataclasses.dataclass(frozen=True)
class ReferenceArtifacts:
    """The op for the CPU: `exact` in float64 (None: `why` it has no such twin), `chip` with the MXU's rounding (None:
    no dots), `native` as it is, `draws` with its inner roundings drawn anew. `jumps`: the op rounds to whole numbers
    or to 8 bits; `odd` is then `exact` with another integer wherever a NaN is cast to one."""

    exact: bytes | None
    chip: bytes | None
    native: bytes
    draws: tuple[bytes, ...]
    why: str | None
    jumps: bool
    odd: bytes | None


class PlannerClient:
    """One planner process per workload: op.py is the user's own code, but it stays in the sandbox all the same."""

    def __init__(self, pool: Pool, chip: str) -> None:
        self._pool, self._chip = pool, chip
        self._pieces: dict[str, Workload] = {}

    def describe(self, source: SourceFile) -> Workload:
        """The workload of a file. Raises WorkloadError in one line for anything that is wrong with it."""
        result, _ = self._ask("describe", {"source": source.text, "filename": source.path.name}, path=source.path)
        made = {**result, "name": result["name"] or source.path.stem, "path": str(source.path), "source": source.text}
        workload = decode(Workload, made)
        if not workload.test_shapes:
            workload = dataclasses.replace(workload, test_shapes=self._derived(workload))
        if not workload.test_shapes:
            raise WorkloadError(
                f"{source.path}: no small shapes found for the correctness gate; list some in TEST_SHAPES = [{{...}}]"
            )
        return workload

    def _derived(self, workload: Workload) -> tuple[ShapeCase, ...]:
        made = [self.case(workload, sizes) for sizes in small_sizes(workload.primary.knobs)]
        return tuple({case.inputs.leaves: case for case in made if case is not None}.values())

    def case(self, workload: Workload, knobs: dict[str, int]) -> ShapeCase | None:
        """The workload at other sizes, or None where it does not trace at them."""
        args = {**_named(workload), "base": encode(workload.primary), "knobs": knobs}
        try:
            result, _ = self._ask("case", args, path=Path(workload.path))
        except WorkloadError:
            return None
        return decode(ShapeCase, result)

    def reference(self, workload: Workload, case: ShapeCase) -> ReferenceArtifacts:
        """The op itself for the CPU, exact and as it may err."""
        result, blobs = self._ask("reference", {**_named(workload), "case": encode(case)}, path=Path(workload.path))
        exact, chip, native, odd, *draws = blobs
        made = tuple(draws), result["why"], result["jumps"], odd or None
        return ReferenceArtifacts(exact or None, chip or None, native, *made)

    def baseline(self, workload: Workload, case: ShapeCase) -> bytes:
        """The workload as plain XLA for the chip: a TPU artifact."""
        args = {**_named(workload), "case": encode(case), "chip": self._chip}
        return self._ask("baseline", args, path=Path(workload.path))[1][0]

    def sample(self, workload: Workload, case: ShapeCase, seed: int) -> list[np.ndarray[Any, Any]]:
        """Real input values of a small case, from make_inputs or create_inputs."""
        args = {**_named(workload), "case": encode(case), "seed": seed}
        result, blobs = self._ask("sample", args, path=Path(workload.path))
        return wire.unpack(result["arrays"], blobs)

    def bind(self, workload: Workload, kernels: Sequence[ReferenceKernel]) -> Bindings:
        case = workload.test_shapes[-1]
        specs, blobs = wire.pack(self.sample(workload, case, 0))
        asked = [{"id": k.id, "source": k.source, "signature": k.signature, "statics": k.statics} for k in kernels]
        args = {
            **_named(workload), "case": encode(case), "production": encode(workload.primary), "inputs": specs,
            "literals": list(workload.literals), "kernels": asked,
        }  # fmt: skip
        result, _ = self._ask("bind", args, blobs, path=Path(workload.path))
        found = tuple(Binding(b["id"], tuple(b["arguments"]), b["statics"]) for b in result["bindings"])
        return Bindings(found, result["refused"])

    def space(self, workload: Workload, kernel: ReferenceKernel, binding: Binding) -> Space:
        leaves = [encode(workload.primary.inputs.leaves[i]) for i in binding.arguments]
        args = {"kernel": kernel.source, "id": kernel.id, "arguments": leaves, "chip": self._chip}
        result, _ = self._ask("space", args, path=Path(workload.path))
        return decode(Space, result)

    def templates(self, workload: Workload) -> Templates:
        """Kernels written from the workload's own program. It is traced at several sizes, since a size is told from
        another by how it changes."""
        others = [self.case(workload, sizes) for sizes in small_sizes(workload.primary.knobs, 3)]
        cases = [workload.primary, *workload.test_shapes, *(c for c in others if c is not None)]
        args = {
            **_named(workload), "cases": [encode(c) for c in cases], "names": leaf_names(workload), "chip": self._chip,
            "op": workload.name, "ranges": self._ranges(workload),
        }  # fmt: skip
        result, _ = self._ask("templates", args, path=Path(workload.path))
        return Templates(tuple(map(self._template, result["templates"])), result["refused"])

    def piece(self, workload: Workload, op: str) -> Workload:
        """A piece of a template as a workload of its own; `op` is its file's text."""
        if op not in self._pieces:
            self._pieces[op] = self.describe(SourceFile(Path(workload.path), op, frozenset()))
        return self._pieces[op]

    def _template(self, made: dict[str, Any]) -> ReferenceKernel:
        """Its family is its own id: templates of one op are as different as the kernels of the library."""
        name = f"template/{made['name']}"
        pieces = decode(tuple[Piece, ...], made["pieces"])
        between_us = float(made["between_us"])
        return ReferenceKernel(name, name, made["how"], "", {}, (self._chip,), made["source"], pieces, between_us)

    def _ranges(self, workload: Workload) -> dict[str, tuple[int, int]]:
        """The least and the largest of each integer input, as a small case has them."""
        if not any(leaf.dtype.startswith(("int", "uint")) for leaf in workload.primary.inputs.leaves):
            return {}
        drawn = self.sample(workload, workload.test_shapes[-1], 0)
        return {str(i): (int(a.min()), int(a.max())) for i, a in enumerate(drawn) if a.dtype.kind in "iu" and a.size}

    def _ask(
        self, op: str, args: dict[str, Any], blobs: Sequence[bytes] = (), *, path: Path
    ) -> tuple[dict[str, Any], list[bytes]]:
        try:
            return self._pool.keep("planner").call(op, args, blobs, timeout_s=DESCRIBE_S)
        except WorkerError as error:
            raise WorkloadError(f"{path}: {_where(error, path.name)}{_sentence(error.message)}") from error
        except WorkerTimeout:
            raise WorkloadError(f"{path}: no answer within {DESCRIBE_S:.0f} s (an endless loop at import?)") from None
        except WorkerDied as error:
            raise WorkloadError(f"{path}: the process ended while it ran the file: {error}") from None


def small_sizes(knobs: dict[str, int], count: int = 2) -> list[dict[str, int]]:
    """`count` sets of small sizes for the correctness gate. Within a set, sizes differ from each other where they can
    (a transposed or mixed-up dimension must show), and each set differs from the others. Multiples of 128 stay
    multiples of 128; other sizes are halved as long as they stay whole; sizes up to 16 stay (head counts, groups)."""
    return [
        {n: _small(size, 1 + (i + shift) % 3) for i, (n, size) in enumerate(knobs.items())} for shift in range(count)
    ]


def _small(size: int, multiple: int) -> int:
    if size <= 16:
        return size
    if size % 128 == 0:
        return min(size, 128 * multiple)
    while size % 2 == 0 and size > 128 * multiple:
        size //= 2
    return size


def leaf_names(workload: Workload) -> list[str]:
    """A name for each input leaf, from the argument's name and the keys on the way to it."""
    named = [(workload.argument_names[int(at)], *keys) for at, *keys in workload.primary.inputs.paths]
    return [re.sub(r"\W", "_", "_".join(map(str, path))) for path in named]


def _named(workload: Workload) -> dict[str, str]:
    return {"source": workload.source, "filename": Path(workload.path).name}


def _where(error: WorkerError, filename: str) -> str:
    """ "line N: " of the user's file, from the last frame of the trace that lies in it, and the exception's kind."""
    marker = f'File "{filename}", line '
    at = error.trace.rfind(marker)
    line = error.trace[at + len(marker) :].split(",")[0].split("\n")[0] if at >= 0 else ""
    kind = "" if error.kind == "Refused" else f"{error.kind}: "
    return (f"line {line}: " if line.isdigit() else "") + kind


def _sentence(message: str) -> str:
    """The first paragraph of an exception's text on one line: JAX's own go on for pages, and end in a ruled note."""
    return " ".join(re.split(r"\n\n|\n-{8}", message.strip())[0].split())[:MESSAGE_CHARS]

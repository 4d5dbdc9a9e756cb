"""What only the judge holds: inputs of each family, and the reference's results on them.

Both are made from a secret seed when they are first needed and kept for the run: every candidate faces the same ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aka.evaluate import inputs, numerics, sampling, wire
from aka.evaluate.client import PlannerClient, ReferenceArtifacts
from aka.evaluate.numerics import Standard
from aka.evaluate.patience import Patience
from aka.evaluate.pool import Pool
from aka.evaluate.sampling import Rows
from aka.types import ShapeCase, Workload

Array = np.ndarray[Any, Any]
CALL_S = 120.0
NUDGES = 4
SMALL_BYTES = 8 << 20
"""Above this a single nudged reference has to do: the few families that large shapes see need them least."""


HELD_BYTES = 3 << 30
"""What is kept of references; beyond it those go that were not asked for the longest. A many-step shape of 256 MiB
takes about 1.2 GiB in two families."""


@dataclass(frozen=True)
class Wanted:
    """What is asked of the references: inputs of this family, these rows, so many draws, within this time."""

    family: str = "normal"
    rows: list[Rows | None] | None = None
    draws: int | None = None
    patience: Patience | None = None


@dataclass(frozen=True)
class Held:
    """One argument list, and what every candidate's outputs on it are held to; `exactly` is for outputs whose dots were
    exact, None where there are no dots to round or no narrower floats to tell apart. `rows` is what of each output is
    meant, where not all of it."""

    arguments: list[Array]
    standard: Standard
    exactly: Standard | None = None
    rows: list[Rows | None] | None = None

    @property
    def size_bytes(self) -> int:
        held = self.standard.size_bytes + (0 if self.exactly is None else self.exactly.size_bytes)
        return sum(a.nbytes for a in self.arguments) + held


class References:
    """`seed` has 128 bits and never reaches a proposer. `notes` names shapes whose op has no float64 twin. What is no
    longer kept is made again alike."""

    def __init__(
        self, pool: Pool, client: PlannerClient, workload: Workload, seed: int, held_bytes: int = HELD_BYTES
    ) -> None:
        self._pool, self._client, self._workload, self._seed = pool, client, workload, seed
        self._artifacts: dict[str, ReferenceArtifacts] = {}
        self._samples: dict[str, list[Array]] = {}
        self._held: dict[tuple[str, str], Held] = {}
        self._held_bytes = held_bytes
        self.notes: dict[str, str] = {}

    def get(self, case: ShapeCase, family: str) -> Held:
        """The family's arguments at a case and the reference's results. Raises WorkloadError or WorkerError if the
        op itself cannot be run."""
        key = (case.label, family)
        held = self._held.pop(key, None) or self._make(case, self.arguments(case, family), Wanted(family=family))
        self._held[key] = held
        while len(self._held) > 1 and sum(h.size_bytes for h in self._held.values()) > self._held_bytes:
            self._held.pop(next(iter(self._held)))
        return held

    def afresh(self, case: ShapeCase, family: str, seed: int) -> Held:
        """As `get`, on other draws of the same family. Not kept."""
        return self._make(case, self.arguments(case, family, seed), Wanted(family=family))

    def arguments(self, case: ShapeCase, family: str, seed: int = 0) -> list[Array]:
        """The family's arguments at a case; another `seed` draws them afresh."""
        verbatim = self._workload.has_make_inputs
        return inputs.make(family, case.inputs.leaves, self._seed + seed, self._sample(case), verbatim=verbatim)

    def answers(self, case: ShapeCase, arguments: Sequence[Array]) -> list[Array]:
        """What the op gives on these: in float64, or in its own precision where it has no such twin."""
        made = self._of(case)
        return self._call(made.exact or made.native, arguments)

    def production(self, case: ShapeCase, patience: Patience) -> Held:
        """The same for a shape of any size, on ordinary inputs, with one nudge and one draw, and for rows that only
        this process knows where it is large. Not kept. Raises WorkerDied, WorkerTimeout or WireError if it is too much
        for this machine, Expired if `patience` ends."""
        rows = sampling.choose(case.outputs.leaves, self._seed)
        return self._make(case, self.arguments(case, "normal"), Wanted(rows=rows, draws=1, patience=patience))

    def _make(self, case: ShapeCase, arguments: list[Array], wanted: Wanted) -> Held:
        """`exact` in float64, `chip` with the MXU's rounding of float32 operands (None: no dots), `native` as the op
        runs on a CPU, `nudged` as exact on inputs moved by a rounding, `draws` as exact with the op's inner roundings
        drawn anew."""
        made = self._of(case)
        native = self._call(made.native, arguments, wanted)
        held_to = functools.partial(
            numerics.standard,
            dtypes=[leaf.dtype for leaf in case.outputs.leaves],
            rtol=self._workload.rtol,
            atol=self._workload.atol,
        )
        if made.exact is None:
            return Held(arguments, held_to([_wide(n) for n in native], native, None), rows=wanted.rows)
        exact = self._call(made.exact, arguments, wanted)
        chip = self._call(made.chip, arguments, wanted) if made.chip is not None else None
        count = NUDGES if case.min_bytes <= SMALL_BYTES else 1
        nudged = [self._call(made.exact, inputs.nudge(arguments, self._seed + i), wanted) for i in range(count)]
        draws = [self._call(draw, arguments, wanted) for draw in made.draws[: wanted.draws]]
        moot = self._moot(made.exact, arguments) if wanted.family == "nonfinite" else None
        free = None if made.odd is None else _differing(exact, self._call(made.odd, arguments, wanted))
        held_to = functools.partial(
            held_to, exact, native, nudged=nudged, draws=draws, moot=moot, free=free, jumps=made.jumps
        )
        exactly = held_to(chip=None) if chip is not None and wanted.rows is None and _plain(case) else None
        return Held(arguments, held_to(chip=chip), exactly, wanted.rows)

    def _moot(self, exact: bytes, arguments: list[Array]) -> list[Array]:
        """Elements that come out alike whatever finite numbers stand where NaN and infinities stood: in all arguments,
        or in one of them (a masked value, while a key before it has an infinity that matters)."""
        found = self._alike(exact, arguments, range(len(arguments)))
        broken = [i for i, a in enumerate(arguments) if not np.isfinite(_wide(a)).all()]
        for index in broken if len(broken) > 1 else ():
            alone = self._alike(exact, arguments, [index])
            found = [a | b for a, b in zip(found, alone, strict=True)]
        return found

    def _alike(self, exact: bytes, arguments: list[Array], chosen: Sequence[int]) -> list[Array]:
        """Elements that are finite and the same with 1 as with -3 for what is not finite in the `chosen` arguments."""
        made = []
        for value in (1.0, -3.0):
            mended = inputs.mended(arguments, value)
            made.append(self._call(exact, [mended[i] if i in chosen else a for i, a in enumerate(arguments)]))
        return [(a == b) & np.isfinite(a) for a, b in zip(*made, strict=True)]

    def _of(self, case: ShapeCase) -> ReferenceArtifacts:
        if case.label not in self._artifacts:
            made = self._artifacts[case.label] = self._client.reference(self._workload, case)
            if made.why:
                self.notes[case.label] = made.why
        return self._artifacts[case.label]

    def _sample(self, case: ShapeCase) -> list[Array]:
        """Values of the right shape where make_inputs gives them structure; else the first case's, whose spread and
        ranges hold at every size."""
        label = case.label if self._workload.has_make_inputs else ""
        if label not in self._samples:
            self._samples[label] = self._client.sample(self._workload, case, self._seed % 2**31)
        return self._samples[label]

    def _call(self, artifact: bytes, arguments: Sequence[Array], wanted: Wanted | None = None) -> list[Array]:
        specs, blobs = wire.pack(arguments)
        args = {"arrays": specs, "rows": wanted.rows if wanted else None}
        timeout_s = wanted.patience.cut(math.inf) if wanted and wanted.patience else CALL_S
        result, data = self._pool.keep("runner").call("call", args, [artifact, *blobs], timeout_s=timeout_s)
        return wire.unpack(result["arrays"], data)


def _plain(case: ShapeCase) -> bool:
    """Whether every float that goes in or comes out is a float32."""
    leaves = [*case.inputs.leaves, *case.outputs.leaves]
    return all(leaf.dtype == "float32" for leaf in leaves if "float" in leaf.dtype)


def _differing(one: Sequence[Array], other: Sequence[Array]) -> list[Array]:
    """Where two answers are not the same; two NaN are."""
    return [(a != b) & ((a == a) | (b == b)) for a, b in zip(one, other, strict=True)]


def _wide(array: Array) -> Array:
    """Floats as float64 and complex numbers as complex128; integers and booleans as they are."""
    if array.dtype.kind in "iub":
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)

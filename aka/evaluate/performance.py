"""Performance gate: the meter's process asked for a candidate's profile, and for the baseline under a cap.

The baseline is always a lower bound of XLA's time: where the compiler cannot simulate the whole op, its fraction of the
roofline at reduced sizes is carried over, and where that fails too the roofline itself stands. A speedup may be
understated, never inflated.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 and its kin with NumPy)
import numpy as np

from aka.errors import UsageError, WireError, WorkerDied, WorkerTimeout
from aka.evaluate.client import PlannerClient
from aka.evaluate.correctness import Fault
from aka.evaluate.pool import Pool, WorkerError
from aka.types import Chip, Profile, ShapeCase, Workload, decode, encode

PROFILE_S = BASELINE_S = 600.0
"""Wall-clock caps. What really bounds a simulation is the processor time of the meter's `Limits`: a busy machine must
not turn a good estimate into a worse one."""
MATRIX_CYCLES = 3e6
"""An op whose dots alone take more cycles at the chip's peak isn't simulated whole. Measured on one core: a kernel of
dots simulates 29,000 cycles in a second, and XLA's matmul of 4.2e6 cycles does not end within the minute it has."""
WHOLE_BYTES = 2_000_000_000
"""Nor is an op with dots that moves more than this through HBM, by the compiler's own count: attention over 8 heads of
4096 tokens (2.2e9 bytes on v5e, 4.6e9 on v6e: its scores do not fit VMEM) does not end within its minute either."""
CACHE_VERSION = 2


class Meter:
    """Profiles on one chip. Baselines are cached on disk by the program, the chip and the compiler's version."""

    def __init__(self, pool: Pool, client: PlannerClient, chip: Chip, cache: Path | None = None) -> None:
        self._pool, self._client, self._chip = pool, client, chip
        self._cache = cache or _cache_folder()
        self._known: dict[tuple[str, str], Profile] = {}
        self._floors: dict[bytes, Profile] = {}
        self._late = False

    def profile(self, artifact: bytes, case: ShapeCase, timeout_s: float = PROFILE_S) -> Profile | Fault:
        """A candidate's profile at a case, or the fault that kept it from having one. A candidate is never timed by
        the roofline alone: that is a lower bound, and would inflate its speedup. The same program is timed once: a
        finalist's time is known, and so is that of a candidate that differs in nothing but its text."""
        key = (hashlib.sha256(artifact).hexdigest(), case.label)
        if key not in self._known:
            made = self._profile(artifact, case, timeout_s)
            if isinstance(made, Fault):
                return made
            self._known[key] = made
        return self._known[key]

    def end(self) -> None:
        """End the profile that another thread is waiting for."""
        self._pool.renew("meter")

    def _profile(self, artifact: bytes, case: ShapeCase, timeout_s: float) -> Profile | Fault:
        try:
            result, _ = self._pool.keep("meter").call("profile", self._args(case), [artifact], timeout_s=timeout_s)
        except (WorkerTimeout, WorkerDied, WireError) as error:
            text = f"the compiler could not simulate the kernel for {self._chip.name} within its limits"
            return Fault("unsupported_feature", text, str(error))
        except WorkerError as error:
            return Fault("compile_error", f"the compiler refused the kernel under the meter: {error}", error.trace)
        made = self._decoded(result)
        if isinstance(made, Profile) and made.confidence == "floor":
            text = f"the compiler told no cycles for the kernel on {self._chip.name}, so it has no time"
            return Fault("unsupported_feature", text)
        return made

    def _decoded(self, result: dict[str, Any]) -> Profile | Fault:
        if "failure" in result:
            return Fault(result["failure"]["code"], result["failure"]["message"], result["failure"]["evidence"])
        return decode(Profile, result)

    def baseline(self, workload: Workload, case: ShapeCase) -> Profile:
        """XLA's own version of the op at a case. Raises UsageError if not even its floor can be had."""
        artifact = self._client.baseline(workload, case)
        path = self._cache / f"{self._key(artifact)}.json"
        if (kept := _read(path)) is not None:
            return kept
        self._late = False
        made = self._whole(artifact, case) or self._reduced(workload, case) or self._floor(artifact, case)
        if not self._late:
            _write(path, made)
        return made

    def _whole(self, artifact: bytes, case: ShapeCase) -> Profile | None:
        """The op as it is, where its simulation is short enough."""
        cycles = self._chip.clock_hz * case.flops / self._chip.peak_flops_per_s["bfloat16"]
        if _largest(case) > 2 * self._chip.vmem_bytes or cycles > MATRIX_CYCLES:
            return None
        if case.flops and self._floor(artifact, case).hbm_bytes > WHOLE_BYTES:
            return None
        return self._capped(self._args(case), artifact)

    def _reduced(self, workload: Workload, case: ShapeCase) -> Profile | None:
        """The op at sizes that simulate within the cap, its fraction of the roofline carried over."""
        small = self._smaller(workload, case)
        if small is None:
            return None
        args = {**self._args(small), "shape": case.label, "scale_bytes": case.min_bytes, "scale_flops": case.flops}
        return self._capped(args, self._client.baseline(workload, small))

    def _smaller(self, workload: Workload, case: ShapeCase) -> ShapeCase | None:
        """Leading dimensions halved, as far as the largest array stays larger than VMEM: below that XLA keeps it on
        the chip, and the op is no longer like the whole (measured: softmax and RMSNorm keep their fraction of the
        roofline within 0.1% down to 128 MiB, and gain a third below)."""
        if case.label != workload.primary.label:
            return None
        sizes, found = dict(workload.primary.knobs), None
        for name in _leading(workload):
            while sizes[name] % 2 == 0:
                made = self._client.case(workload, {**sizes, name: sizes[name] // 2})
                if made is None or _largest(made) < self._chip.vmem_bytes:
                    break
                sizes[name] //= 2
                found = made
        return found

    def _floor(self, artifact: bytes, case: ShapeCase) -> Profile:
        if artifact not in self._floors:
            self._floors[artifact] = self._floor_of(artifact, case)
        return self._floors[artifact]

    def _floor_of(self, artifact: bytes, case: ShapeCase) -> Profile:
        try:
            result, _ = self._pool.keep("floor").call("floor", self._args(case), [artifact], timeout_s=BASELINE_S)
        except (WorkerTimeout, WorkerDied, WireError, WorkerError) as error:
            raise UsageError(f"XLA itself does not compile the op for {self._chip.name}: {error}") from error
        made = self._decoded(result)
        if isinstance(made, Fault):
            raise UsageError(f"XLA itself does not compile the op for {self._chip.name}: {made.message}")
        return made

    def _capped(self, args: dict[str, Any], artifact: bytes) -> Profile | None:
        """None when the simulation outlasts the cap or takes its process along; both happen to good ops. What comes of
        a wall-clock cap isn't kept on disk: another day the machine is less busy."""
        with self._pool.borrow("baseline") as worker:
            try:
                result, _ = worker.call("baseline", args, [artifact], timeout_s=BASELINE_S)
            except WorkerTimeout:
                self._late = True
                return None
            except (WorkerDied, WireError):
                return None
        made = self._decoded(result)
        return made if isinstance(made, Profile) else None

    def _args(self, case: ShapeCase) -> dict[str, Any]:
        return {"chip": self._chip.name, "shape": case.label, "min_bytes": case.min_bytes, "flops": case.flops}

    def _key(self, artifact: bytes) -> str:
        from importlib import metadata

        versions = [metadata.version("jax"), metadata.version("libtpu")]
        text = json.dumps([CACHE_VERSION, self._chip.name, versions, hashlib.sha256(artifact).hexdigest()])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _largest(case: ShapeCase) -> int:
    """Bytes of the largest array among inputs and outputs."""
    leaves = (*case.inputs.leaves, *case.outputs.leaves)
    return max(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in leaves)


def _leading(workload: Workload) -> list[str]:
    """The knobs of the largest input's dimensions, leading ones first; its last dimension is left as it is."""
    largest = max(workload.primary.inputs.leaves, key=lambda leaf: leaf.size)
    names = {size: name for name, size in workload.primary.knobs.items()}
    return [names[n] for n in largest.shape[:-1] if n in names]


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "aka" / "baselines"


def _read(path: Path) -> Profile | None:
    """A cached profile; one that cannot be read counts as absent."""
    try:
        return decode(Profile, json.loads(path.read_text()))
    except (OSError, ValueError):
        return None


def _write(path: Path, made: Profile) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_text(json.dumps(encode(made)))
    aside.replace(path)

"""Worker side: a candidate under Pallas's TPU interpret mode, which simulates its copies, semaphores and cores.

This runs in the exporter, beside the candidate's own Python: what it answers can be forged, so it can only accuse.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from aka.evaluate import loading, nans, wire
from aka.targets import aot

RACE = "RACE DETECTED"
"""How the detector begins what it prints of each race. Its flag would be that of a program's last kernel alone."""
CORES = 2
"""Cores that share the steps of an axis that is declared parallel."""
CLOCKS = 64
"""Copies share the entries that are left for them in the detector's clocks: those that share one look ordered."""
COMPILER: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""The program runs once, on small arrays, and spends its time in callbacks."""
SAID_CHARS = 3000


def run_interpret(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Run the candidate once on the arrays in the blobs, in place of the kernels' interpreter.

    args: source, filename, chip, inputs (a signature), config (the op's CONFIG overrides), arrays (specs of the blobs).
    Result: `races` (how many), `said` (the detector's words about the first of them), `arrays` (specs of the outputs in
    the blobs; none if the interpreter stopped after a race). Raises whatever else keeps the candidate or the
    interpreter from running.
    """
    nans.keep_in_reductions()
    arrays = wire.unpack(args["arrays"], blobs)
    said = _Said()
    with contextlib.redirect_stdout(said):
        fn = loading.function(loading.load_candidate(args["source"], args["filename"], args["config"]), "workload")
        try:
            outputs = _outputs(fn, args["chip"], args["inputs"], arrays)
        except jax.errors.JaxRuntimeError:
            if not said.races:
                raise
            outputs = []
    specs, data = wire.pack(outputs)
    return {"races": said.races, "said": said.text, "arrays": specs}, data


def _outputs(fn: Callable[..., Any], chip: str, sig: Mapping[str, Any], arrays: Sequence[Any]) -> list[Any]:
    def flat(*leaves: Any) -> list[Any]:
        made = loading.as_arrays(fn(*loading.build_tree(sig["tree"], leaves)))
        return loading.describe_tree(made)[0]

    how = pltpu.InterpretParams(
        detect_races=True, dma_execution_mode="on_wait", uninitialized_memory="nan",
        out_of_bounds_reads="uninitialized", num_cores_or_threads=CORES, vector_clock_size=CLOCKS,
    )  # fmt: skip
    with pltpu.force_tpu_interpret_mode(how), aot.abstract_mesh(chip):
        lowered = jax.jit(flat, keep_unused=True).lower(*loading.structs(sig))
    return [np.asarray(leaf) for leaf in lowered.compile(COMPILER)(*arrays)]


class _Said(io.TextIOBase):
    """Counts the races that are printed, and keeps the words about the first ones: a racy loop prints thousands."""

    def __init__(self) -> None:
        self.text, self.races = "", 0

    def write(self, text: str) -> int:
        self.races += text.count(RACE)
        if self.races:
            self.text += text[: max(0, SAID_CHARS - len(self.text))]
        return len(text)

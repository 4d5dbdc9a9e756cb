"""What a candidate of ours exports for the TPU, as text without the places of its source: equal texts are one program.

Only for kernels that are made here: they are traced in this process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Iterator
from typing import Any

CHIP = "v5e"
TRACE_S = 30
EQUAL, STILLBORN = "equal", "stillborn"


def set_environment() -> None:
    """Before jax is imported: no device is looked for, and libtpu describes a chip to a machine without one."""
    from aka.targets import aot

    os.environ.update({k: v for k, v in aot.environment(None, False).items() if k not in os.environ})


def difference(op: str, original: str, mutant: str) -> str | None:
    """None if the two candidates export different programs at some shape of the op's TEST_SHAPES; EQUAL if they do at
    none, STILLBORN if the mutant exports none."""
    from aka.evaluate.opfile import Op

    for case in range(len(Op(op, "op.py").listed("TEST_SHAPES"))):
        try:
            with _limited(TRACE_S):
                made = _exported(op, mutant, case)
        except Exception:  # whatever a mutant raises when it is traced is an answer
            return STILLBORN
        if made != exported(op, original, case):
            return None
    return EQUAL


@functools.lru_cache(maxsize=32)
def exported(op: str, candidate: str, case: int) -> str:
    """`text` of the candidate's artifact at TEST_SHAPES[case]."""
    return _exported(op, candidate, case)


def _exported(op: str, candidate: str, case: int) -> str:
    from aka.evaluate import export, loading
    from aka.targets import aot

    fn = loading.function(loading.load(candidate, "candidate.py"), "workload")
    with aot.abstract_mesh(CHIP):
        return text(export.tpu_bytes(export.trace(fn, _signature(op, case))[0]))


@functools.lru_cache(maxsize=32)
def _signature(op: str, case: int) -> Any:
    from aka.evaluate.opfile import Op

    made = Op(op, "op.py")
    return made.inputs(made.listed("TEST_SHAPES")[case])


def text(artifact: bytes) -> str:
    """StableHLO and the Mosaic bodies in it, both printed without locations."""
    from jaxlib.mlir import ir

    from aka.artifact import decode, mlir

    exported = decode.load(artifact)
    with mlir.context():
        module = mlir.module_of(exported)
        found = []
        for op in mlir.kernel_calls(module):
            config = mlir.config(op)
            body = str(ir.Module.parse(mlir.body(config)))
            config["custom_call_config"].pop("body")
            found.append(f"{sorted(config.items())}\n{body}")
            op.attributes["backend_config"] = ir.StringAttr.get(f"kernel {len(found)}")
        return "\n".join([str(module), *found])


@contextlib.contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """TimeoutError in this (the main) thread after so long: a fault may make a loop endless."""

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"not traced within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)

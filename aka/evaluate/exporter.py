"""Role `exporter`: the only process that runs a candidate's Python. It returns artifacts and decides nothing."""

from __future__ import annotations

from typing import Any

from aka.evaluate import loading


def warm() -> None:
    """Import what an export needs and touch nothing that a candidate could find changed."""
    import jax
    import jax.experimental.pallas
    import jax.experimental.pallas.tpu

    from aka.evaluate import export
    from aka.targets import aot

    del jax, export, aot


def run_export(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Trace the candidate at each shape inside the chip's mesh and export the same jaxpr for TPU (and CPU if asked).

    args: source, filename, chip, shapes (input signatures), configs (the op's CONFIG overrides at each), cpu (bool).
    Result: `shapes`, one dict each with `outputs` (signature) and `cpu` (None, or why the CPU export failed); blobs:
    the TPU artifact, then the CPU one or b"".
    """
    from aka.evaluate import export
    from aka.targets import aot

    shapes: list[dict[str, Any]] = []
    made: list[bytes] = []
    for sig, config in zip(args["shapes"], args["configs"], strict=True):
        fn = loading.function(loading.load_candidate(args["source"], args["filename"], config), "workload")
        try:
            with aot.abstract_mesh(args["chip"]):
                closed, outputs = export.trace(fn, sig, twice=True)
                export.forbid(closed)
                made.append(export.tpu_bytes(closed))
        except (export.Forbidden, export.Nondeterministic) as error:
            return {"fault": type(error).__name__, "message": str(error)}, []
        cpu, why = _cpu(closed) if args["cpu"] else (b"", "not asked for")
        made.append(cpu)
        shapes.append({"outputs": outputs, "cpu": why})
    return {"shapes": shapes}, made


def _cpu(closed: Any) -> tuple[bytes, str | None]:
    from aka.evaluate import export

    try:
        return export.cpu_bytes(closed), None
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        return b"", f"{type(error).__name__}: {error}"[:500]


def run_interpret(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """See `aka.evaluate.interpreter`, which is imported when it is needed: most candidates never get there."""
    from aka.evaluate import interpreter

    return interpreter.run_interpret(args, blobs)


OPS = {"export": run_export, "interpret": run_interpret}

"""`aka doctor`: what works on this machine, and what is lost where something does not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from aka.evaluate.pool import Pool

_DEVICES = ("accel*", "vfio/[0-9]*")  # where the drivers of TPU VMs put them
PROBE = """
import jax
from jax.experimental import pallas as pl


def _body(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1.0


def workload(x):
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        _body, grid=(8,), in_specs=[block], out_specs=block, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype)
    )(x)
"""


def doctor(json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Try everything that aka rests on: each sandbox, the TPU compiler and its flags per chip, index and embedder,
    devices and key. Each is tried by running it. Exit code 0: kernels can be compiled and judged here; 6: they cannot.
    Where no sandbox works, that needs --unsafe-no-sandbox.

    Example: aka doctor --json
    """
    from aka.cli import compose, console
    from aka.errors import AkaError

    checks: dict[str, Any] = {"versions": compose.versions()}
    for name, probe in _PROBES.items():
        console.note(f"trying the {name} ...")
        try:
            checks[name] = probe()
        except (AkaError, OSError) as error:
            checks[name] = {"ok": False, "detail": str(error)}
    console.answer_json(checks) if json_ else console.answer(_text(checks))
    raise typer.Exit(0 if checks["compiler"]["ok"] else 6)


def _sandbox() -> dict[str, Any]:
    """The rung that a run would stand on, and what is wrong with each wall, "" where it works."""
    from aka.cli import compose
    from aka.config import load_settings
    from aka.errors import BackendUnavailable
    from aka.evaluate import rungs

    walls = {name: rungs.complaint(name) for name in rungs.WALLS}
    try:
        compose.choose_sandbox(load_settings().sandbox, unsafe=False)
        rung = rungs.probe()
    except BackendUnavailable as error:
        return {"ok": False, "rung": None, "lost": [], "detail": str(error), "walls": walls}
    return {
        "ok": rung.name in rungs.WALLS, "rung": rung.name, "lost": list(rung.lost), "detail": rung.note, "walls": walls,
    }  # fmt: skip


def _compiler() -> dict[str, Any]:
    """A small kernel compiled and profiled for each chip, in the sandbox. It is our own, so that it may run without
    one where none works."""
    from aka.cli import compose
    from aka.config import load_settings
    from aka.targets import chips

    compose.choose_sandbox(load_settings().sandbox, unsafe=True)
    made: dict[str, Any] = {}
    for name, chip in chips.CHIPS.items():
        with compose.worker_pool(chip) as pool:
            made[name] = _chip(pool, name)
    return {"ok": any(c["ok"] for c in made.values()), "chips": made}


def _chip(pool: Pool, name: str) -> dict[str, Any]:
    """Export the smallest honest kernel, then profile it: the whole way that a candidate goes."""
    from aka.errors import WorkerDied, WorkerTimeout
    from aka.evaluate.pool import WorkerError

    shape = {"leaves": [{"shape": [64, 128], "dtype": "float32"}], "tree": {"tuple": [0]}}
    args = {"source": PROBE, "filename": "probe.py", "chip": name, "shapes": [shape], "configs": [{}], "cpu": False}
    want = {"chip": name, "shape": "probe", "min_bytes": 2 * 64 * 128 * 4, "flops": 0.0}
    try:
        with pool.borrow("exporter") as exporter, pool.borrow("meter") as meter:
            _, blobs = exporter.call("export", args, timeout_s=60.0)
            found, _ = meter.call("profile", want, blobs[:1], timeout_s=60.0)
    except (WorkerError, WorkerDied, WorkerTimeout) as error:
        return {"ok": False, "detail": str(error)[:300]}
    if "failure" in found:
        return {"ok": False, "detail": found["failure"]["message"]}
    slots = "slots, spills and VMEM told" if found["slots"] else "no slots told: profiles lack them"
    cycles = "cycles simulated" if found["cycles"] else "no cycles told: estimates are rooflines only"
    return {
        "ok": True,
        "confidence": found["confidence"],
        "detail": f"compiles; {cycles} ({found['confidence']}); {slots}",
    }


def _library() -> dict[str, Any]:
    from aka.errors import IndexMissing
    from aka.kb.manifest import read_manifest
    from aka.kb.places import cache_folder, find_places

    places = find_places()
    where = {"index": str(places.index), "cache": str(cache_folder())}
    try:
        manifest = read_manifest(places.index)
    except IndexMissing:
        if not places.has_sources:
            raise
        return {"ok": True, **where, "detail": f"the first search builds the index {places.index}"}
    engines = ", ".join(f"{k} {v}" for k, v in manifest.engines.items()) or "keywords only"
    return {
        "ok": True, **where, "documents": len(manifest.documents), "passages": manifest.passages,
        "model": manifest.model, "engines": engines,
    }  # fmt: skip


def _devices() -> dict[str, Any]:
    """Device files of a TPU; none is opened."""
    found = sorted(str(path) for pattern in _DEVICES for path in Path("/dev").glob(pattern))
    return {"ok": bool(found), "found": found, "detail": ", ".join(found) or "no TPU: times are estimated"}


def _key() -> dict[str, Any]:
    """Only whether there is one; it is never read further, let alone shown."""
    there = bool(os.environ.get("ANTHROPIC_API_KEY"))
    detail = "ANTHROPIC_API_KEY is set" if there else "no ANTHROPIC_API_KEY: the offline proposer needs none"
    return {"ok": there, "detail": detail}


_PROBES = {"sandbox": _sandbox, "compiler": _compiler, "library": _library, "devices": _devices, "key": _key}


def _text(checks: dict[str, Any]) -> str:
    from aka.cli import console
    from aka.report import words

    lines = ["versions   " + ", ".join(f"{k} {v}" for k, v in checks["versions"].items())]
    for name in ("sandbox", "library", "devices", "key"):
        found = checks[name]
        detail = found.get("detail") or ", ".join(f"{k} {v}" for k, v in found.items() if k != "ok")
        rung = f"{words.wall(found['rung'])}: " if found.get("rung") else ""
        lines.append(f"{name:<10} {'ok  ' if found['ok'] else 'no  '} {rung}{detail}")
        if found.get("lost"):
            lines.append(f"{'':<15} not held back: {', '.join(found['lost'])}")
        whys = found.get("walls", {}) if found.get("rung") else {}  # else the detail names them
        lines += [f"{'':<15} {wall} does not work: {console.one_line(why)}" for wall, why in whys.items() if why]
    for chip, found in checks["compiler"].get("chips", {}).items():
        lines.append(f"{'compiler':<10} {'ok  ' if found['ok'] else 'no  '} {chip}: {found['detail']}")
    if "chips" not in checks["compiler"]:
        lines.append(f"{'compiler':<10} no   {checks['compiler']['detail']}")
    return "\n".join(lines)

"""Role `planner`: reads op.py and reference kernels in the sandbox; answers with JSON, source text and artifacts.

op.py is trusted like a script that the user runs, yet it runs here, away from files, network and keys.
"""

from __future__ import annotations

import math
from typing import Any

from aka.evaluate import loading
from aka.evaluate.opfile import Op, argument_names, as_arguments, tolerance

ROUNDING_GRIDS = (1.17, 1.41)
SMALL_VMEM, SMALL_VMEM_SHARE, VMEM_SHARE = 16 << 20, 0.85, 0.5
"""What a template's kernel may take of VMEM: XLA keeps arrays between kernels there too, and the compiler spills."""
VECTOR_LANES = 2048
"""Elements that a core takes up per cycle, as a rough guess: two registers of 8 x 128. It only ranks plans
that are then judged."""


def warm() -> None:
    import jax
    import jax.experimental.pallas.tpu

    from aka.evaluate import analysis, binding, export, float64, nans
    from aka.targets import aot

    nans.keep_in_reductions()
    del jax, analysis, binding, export, float64, aot


def run_describe(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: source, filename. Result: everything of `aka.types.Workload` that is read by running the file."""
    from aka.evaluate import analysis, export

    op = Op(args["source"], args["filename"])
    overrides = op.listed("SHAPES") or [{}]
    cases = [op.case(c) for c in overrides]
    if not all(any(math.prod(leaf["shape"]) for leaf in c["outputs"]["leaves"]) for c in cases):
        raise loading.Refused("workload returns arrays without elements: there is nothing to make faster")
    knobs = op.knobs(overrides[0])
    cases[0]["knobs"] = knobs
    tests = [op.case(c) | {"knobs": op.sizes(knobs, c)} for c in op.listed("TEST_SHAPES")]
    try:
        closed, _ = export.trace(op.function(overrides[0], "workload"), cases[0]["inputs"], twice=True)
    except export.Nondeterministic as error:
        raise loading.Refused(f"workload: {error}; draw its random numbers in create_inputs, or take a key") from None
    module = op.module(overrides[0])
    return {
        "name": str(op.config().get("name") or ""),
        "shapes": cases,
        "test_shapes": tests,
        "primitives": analysis.primitives(closed.jaxpr),
        "literals": analysis.literals(closed),
        "argument_names": argument_names(op.function({}, "workload"), len(cases[0]["inputs"]["tree"]["tuple"])),
        "rtol": tolerance(module, "rtol"),
        "atol": tolerance(module, "atol"),
        "has_make_inputs": callable(getattr(module, "make_inputs", None)),
        "has_starting_kernel": callable(getattr(module, "starting_kernel", None)),
    }, []


def run_case(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: source, filename, base (a case's JSON), knobs (name -> size). The same workload at other sizes, accepted
    only if it still traces; raises Refused otherwise."""
    op = Op(args["source"], args["filename"])
    return op.resized(args["base"], args["knobs"]), []


def run_reference(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: source, filename, case. blobs: the reference for CPU in float64 (exact), in float64 with the MXU's bf16
    rounding of float32 operands (b"" for an op without dots), and natively; then, for an op that rounds intermediates
    to bfloat16 or float16, two more draws of these roundings. `odd` (last, if the op rounds to whole numbers) is exact
    with another integer wherever a NaN is cast to one. Only the native one where the op has no float64 twin
    (`lifted` False: `why` says). `jumps`: it rounds to whole numbers or 8 bits."""
    import jax

    from aka.evaluate import analysis, export, float64

    op, case = Op(args["source"], args["filename"]), args["case"]
    fn = op.function(case["config"], "workload")
    closed, _ = export.trace(fn, case["inputs"])
    native = export.cpu_bytes(closed)
    avals = loading.structs(case["inputs"])
    wide = [jax.ShapeDtypeStruct(a.shape, float64.lifted_dtype(a.dtype)) for a in avals]
    try:
        with jax.enable_x64(True):
            exact = export.to_bytes(lambda *a: float64.evaluate64(closed, *a), wide, "cpu")
            chip = b""
            if analysis.uses_mxu(closed.jaxpr):
                chip = export.to_bytes(lambda *a: float64.evaluate64(closed, *a, mxu_bf16=True), wide, "cpu")
            grids = ROUNDING_GRIDS if float64.rounds_inside(closed, wide) else ()
            draws = [export.to_bytes(_drawn(closed, grid), wide, "cpu") for grid in grids]
            jumps = analysis.jumps(closed.jaxpr)
            odd = export.to_bytes(lambda *a: float64.evaluate64(closed, *a, nan_as=77), wide, "cpu") if jumps else b""
    except float64.NotLiftable as error:
        return {"lifted": False, "why": str(error), "jumps": False}, [b"", b"", native, b""]
    return {"lifted": True, "why": None, "jumps": jumps}, [exact, chip, native, odd, *draws]


def _drawn(closed: Any, grid: float) -> Any:
    from aka.evaluate import float64

    return lambda *args: float64.evaluate64(closed, *args, grid=grid)


def run_baseline(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: source, filename, case, chip. blob: the workload itself as a plain XLA artifact for TPU."""
    from aka.evaluate import export
    from aka.targets import aot

    op, case = Op(args["source"], args["filename"]), args["case"]
    with aot.abstract_mesh(args["chip"]):
        closed, _ = export.trace(op.function(case["config"], "workload"), case["inputs"])
        return {}, [export.tpu_bytes(closed)]


def run_sample(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: source, filename, case, seed. Real input values of a small case: from make_inputs(seed, shape) if the
    file has it, else create_inputs(); cut to the case's shapes, which sizes that are no CONFIG keys make smaller than
    what the file itself creates. Result: `arrays` specs, blobs: their bytes."""
    import jax.numpy as jnp
    import numpy as np

    from aka.evaluate import wire

    op, case = Op(args["source"], args["filename"]), args["case"]
    module = op.module(case["config"])
    if callable(getattr(module, "make_inputs", None)):
        value = module.make_inputs(args["seed"], op.merged(case["config"]))
    else:
        value = op.create(module)()
    leaves, _ = loading.describe_tree(as_arguments(loading.as_arrays(value)))
    shapes = [leaf["shape"] for leaf in case["inputs"]["leaves"]]
    cut = [jnp.asarray(a)[tuple(map(slice, shape))] for a, shape in zip(leaves, shapes, strict=True)]
    specs, data = wire.pack([np.asarray(a) for a in cut])
    return {"arrays": specs}, list(data)


def run_bind(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: source, filename, case (small), production (the scored case), inputs (array specs), literals,
    kernels [{id, source, signature, statics}]. Result: `bindings` of the kernels whose `reference` computes the
    workload, and `refused` with a reason each."""
    from aka.evaluate import binding, export, wire

    op, case = Op(args["source"], args["filename"]), args["case"]
    fn = op.function(case["config"], "workload")
    arrays = wire.unpack(args["inputs"], blobs)
    closed, _ = export.trace(fn, case["inputs"])
    production = [loading.structs(args["production"][side]) for side in ("inputs", "outputs")]
    return binding.bind_all(closed, arrays, args["kernels"], args["literals"], *production), []


def run_space(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: kernel (source), id, arguments (leaf specs in the kernel's order), chip. The kernel's search space
    at these shapes."""
    module = loading.load(args["kernel"], args["id"])
    shapes = loading.structs({"leaves": args["arguments"]})
    space = loading.function(module, "search_space")(shapes, args["chip"])
    return {"space": {k: list(v) for k, v in space.items()}}, []


def run_templates(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: source, filename, cases (the scored one first, then others of other sizes), names (of the input leaves),
    chip, op, ranges (of integer leaves, by leaf). Result: `templates` [{name, how, source, between_us, pieces [{op,
    source, params}]}], best first by a rough plan, and `refused` with reasons."""
    from aka.evaluate import export
    from aka.fuse.plan import Machine
    from aka.fuse.sizes import named_sizes
    from aka.fuse.templates import templates
    from aka.targets import chips

    op, cases = Op(args["source"], args["filename"]), args["cases"]
    programs = [export.trace(op.function(c["config"], "workload"), c["inputs"])[0] for c in cases]
    chip = chips.chip(args["chip"])
    machine = Machine(
        vmem_bytes=int(chip.vmem_bytes * (SMALL_VMEM_SHARE if chip.vmem_bytes <= SMALL_VMEM else VMEM_SHARE)),
        bytes_per_s=chip.hbm_bytes_per_s,
        flops_per_s=chip.peak_flops_per_s,
        elements_per_s=VECTOR_LANES * chip.clock_hz,
    )
    words = named_sizes([c["knobs"] | _numbers(op.merged(c["config"])) for c in cases])
    ranges = {int(leaf): (low, high) for leaf, (low, high) in args["ranges"].items()}
    made, refused = templates(programs, args["names"], words, machine, args["op"], ranges)
    found = [
        {
            "name": t.name, "how": t.how, "source": t.source, "between_us": t.between_us,
            "pieces": [vars(p) for p in t.links],
        }
        for t in made
    ]  # fmt: skip
    return {"templates": found, "refused": refused}, []


def _numbers(config: dict[str, Any]) -> dict[str, int]:
    """The CONFIG's whole numbers, by the names that knobs have: one that moves no input's shape may set a size inside
    the op."""
    return {f"config:{k}": v for k, v in config.items() if isinstance(v, int) and not isinstance(v, bool) and v > 0}


OPS = {
    "describe": run_describe,
    "case": run_case,
    "reference": run_reference,
    "baseline": run_baseline,
    "sample": run_sample,
    "bind": run_bind,
    "space": run_space,
    "templates": run_templates,
}

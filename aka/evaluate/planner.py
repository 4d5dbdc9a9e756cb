"""Role `planner`: reads op.py and reference kernels in the sandbox; answers with JSON, source text and artifacts.

op.py is trusted like a script that the user runs, yet it runs here, away from files, network and keys.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from aka.evaluate import loading
from aka.evaluate.loading import Refused

MAX_INPUT_BYTES = 64 << 30
"""More than any chip's share of HBM that a single op could hold at once; refused before anything is allocated."""


def warm() -> None:
    import jax
    import jax.experimental.pallas.tpu

    from aka.evaluate import analysis, binding, export, float64
    from aka.targets import aot

    del jax, analysis, binding, export, float64, aot


def run_describe(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: source, filename. Result: everything of `aka.types.Workload` that is read by running the file."""
    from aka.evaluate import analysis, export

    op = Op(args["source"], args["filename"])
    overrides = op.listed("SHAPES") or [{}]
    cases = [op.case(c) for c in overrides]
    knobs = op.knobs(overrides[0])
    cases[0]["knobs"] = knobs
    tests = [op.case(c) | {"knobs": {}} for c in op.listed("TEST_SHAPES")]
    closed, _ = export.trace(op.function(overrides[0], "workload"), cases[0]["inputs"])
    module = op.module(overrides[0])
    return {
        "name": str(op.config().get("name") or ""),
        "shapes": cases,
        "test_shapes": tests,
        "primitives": analysis.primitives(closed.jaxpr),
        "literals": analysis.literals(closed),
        "argument_names": _argument_names(op.function({}, "workload"), len(cases[0]["inputs"]["tree"]["tuple"])),
        "rtol": _number(module, "rtol"),
        "atol": _number(module, "atol"),
        "has_make_inputs": callable(getattr(module, "make_inputs", None)),
    }, []


def run_case(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: source, filename, base (a case's JSON), knobs (name -> size). The same workload at other sizes, accepted
    only if it still traces; raises Refused otherwise."""
    op = Op(args["source"], args["filename"])
    return op.resized(args["base"], args["knobs"]), []


def run_reference(args: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """args: source, filename, case. blobs: the reference for CPU in float64 (exact), in float64 with the MXU's bf16
    rounding of float32 operands, and natively; b"" where one cannot be made (`lifted` False: `why` says)."""
    import jax

    from aka.evaluate import export, float64

    op, case = Op(args["source"], args["filename"]), args["case"]
    fn = op.function(case["config"], "workload")
    closed, _ = export.trace(fn, case["inputs"])
    native = export.cpu_bytes(closed)
    avals = loading.structs(case["inputs"])
    wide = [jax.ShapeDtypeStruct(a.shape, float64.lifted_dtype(a.dtype)) for a in avals]
    try:
        with jax.enable_x64(True):
            exact = export.to_bytes(lambda *a: float64.evaluate64(closed, *a), wide, "cpu")
            chip = export.to_bytes(lambda *a: float64.evaluate64(closed, *a, mxu_bf16=True), wide, "cpu")
    except float64.NotLiftable as error:
        return {"lifted": False, "why": str(error)}, [b"", b"", native]
    return {"lifted": True, "why": None}, [exact, chip, native]


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
    file has it, else create_inputs(). Result: `arrays` specs, blobs: their bytes."""
    import numpy as np

    from aka.evaluate import wire

    op, case = Op(args["source"], args["filename"]), args["case"]
    module = op.module(case["config"])
    if callable(getattr(module, "make_inputs", None)):
        value = module.make_inputs(args["seed"], dict(op.config(), **case["config"]))
    else:
        value = op.create(module)()
    leaves, _ = loading.describe_tree(_tuple(value))
    specs, data = wire.pack([np.asarray(leaf) for leaf in leaves])
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
    """args: kernel (source), id, arguments (leaf specs in the kernel's order), chip. The kernel's search space and
    defaults at these shapes."""
    module = loading.load(args["kernel"], args["id"])
    shapes = loading.structs({"leaves": args["arguments"]})
    space = loading.function(module, "search_space")(shapes, args["chip"])
    return {"space": {k: list(v) for k, v in space.items()}, "defaults": dict(getattr(module, "TUNED_PARAMS", {}))}, []


class Op:
    """A workload file, loaded afresh for each set of CONFIG overrides."""

    def __init__(self, source: str, filename: str) -> None:
        self.source, self.filename = source, filename
        self._modules: dict[str, Any] = {}

    def module(self, config: dict[str, Any]) -> Any:
        key = repr(sorted(config.items()))
        if key not in self._modules:
            self._modules[key] = loading.load(self.source, self.filename, config)
        return self._modules[key]

    def function(self, config: dict[str, Any], name: str) -> Callable[..., Any]:
        return loading.function(self.module(config), name)

    def config(self) -> dict[str, Any]:
        made = getattr(self.module({}), "CONFIG", {})
        if not isinstance(made, dict):
            raise Refused("CONFIG is not a dict")
        return made

    def listed(self, name: str) -> list[dict[str, Any]]:
        made = getattr(self.module({}), name, [])
        if not (isinstance(made, list | tuple) and all(isinstance(m, dict) for m in made)):
            raise Refused(f"{name} is not a list of CONFIG overrides (dicts)")
        return list(made)

    def create(self, module: Any) -> Callable[[], Any]:
        """create_inputs with its own default arguments."""
        fn = loading.function(module, "create_inputs")
        missing = [
            p.name
            for p in inspect.signature(fn).parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ]
        if missing:
            raise Refused(
                f"create_inputs needs arguments {missing}; expected create_inputs(dtype=...) -> tuple of arrays"
            )
        return fn

    def inputs(self, config: dict[str, Any]) -> dict[str, Any]:
        """Signature of create_inputs(), by eval_shape: nothing is allocated."""
        import jax

        sig = loading.signature(_tuple(jax.eval_shape(self.create(self.module(config)))))
        if not sig["leaves"]:
            raise Refused("create_inputs returned no arrays")
        return sig

    def case(self, config: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
        """JSON of `aka.types.ShapeCase`; raises Refused, or whatever the workload raises when it is traced."""
        from aka.evaluate import analysis, export

        sig = inputs or self.inputs(config)
        if (size := analysis.nbytes(sig["leaves"])) > MAX_INPUT_BYTES:
            raise Refused(f"inputs of {size / 2**30:.0f} GiB; at most {MAX_INPUT_BYTES >> 30} GiB")
        closed, outputs = export.trace(self.function(config, "workload"), sig)
        if not outputs["leaves"]:
            raise Refused("workload returned no arrays")
        counter = getattr(self.module(config), "get_flops", None)
        flops = float(counter()) if callable(counter) and inputs is None else analysis.dot_flops(closed.jaxpr)
        label = " ".join(f"{k}={v}" for k, v in config.items()) or " ".join(
            f"{leaf['dtype']}[{','.join(map(str, leaf['shape']))}]" for leaf in sig["leaves"]
        )
        moved = analysis.nbytes(sig["leaves"]) + analysis.nbytes(outputs["leaves"])
        return {
            "label": label, "config": config, "inputs": sig, "outputs": outputs,
            "flops": flops, "min_bytes": moved, "knobs": {},
        }  # fmt: skip

    def knobs(self, config: dict[str, Any]) -> dict[str, int]:
        """The sizes that can be changed on their own: CONFIG keys that move the inputs' shapes, and every dimension
        size that no such key explains."""
        base = self.inputs(config)
        merged = {**self.config(), **config}
        found: dict[str, int] = {}
        explained: set[int] = set()
        for key, value in merged.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 2:
                continue
            moved = self._moved(config, key, value, base)
            if moved:
                found[f"config:{key}"] = value
                explained |= moved
        sizes = {n for leaf in base["leaves"] for n in leaf["shape"] if n > 1}
        return found | {f"dim:{n}": n for n in sorted(sizes - explained)}

    def _moved(self, config: dict[str, Any], key: str, value: int, base: dict[str, Any]) -> set[int]:
        """Dimension sizes that change when a CONFIG value is doubled (empty: it is not a size)."""
        try:
            other = self.inputs({**config, key: 2 * value})
        except (Refused, TypeError, ValueError, ZeroDivisionError, IndexError, KeyError):
            return set()
        if other["tree"] != base["tree"]:
            return set()
        pairs = [
            (a, b)
            for x, y in zip(base["leaves"], other["leaves"], strict=True)
            for a, b in zip(x["shape"], y["shape"], strict=False)
        ]
        return {a for a, b in pairs if a != b}

    def resized(self, base: dict[str, Any], knobs: dict[str, int]) -> dict[str, Any]:
        """`base` with its knobs set to other sizes."""
        config = base["config"] | {k.removeprefix("config:"): v for k, v in knobs.items() if k.startswith("config:")}
        dims = {int(k.removeprefix("dim:")): v for k, v in knobs.items() if k.startswith("dim:")}
        sig = self.inputs(config)
        if dims:
            leaves = [{**leaf, "shape": [dims.get(n, n) for n in leaf["shape"]]} for leaf in sig["leaves"]]
            sig = {**sig, "leaves": leaves}
        case = self.case(config, sig)
        sizes = " ".join(f"{k.partition(':')[2]}={v}" for k, v in knobs.items())
        return case | {"label": sizes or case["label"], "knobs": dict(knobs)}


def _tuple(value: Any) -> tuple[Any, ...]:
    """create_inputs may return one array, or a tuple or list of arguments."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    names = [
        p.name
        for p in inspect.signature(fn).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return (names + [f"x{i}" for i in range(len(names), count)])[:count]


def _number(module: Any, name: str) -> float | None:
    value = getattr(module, name, None)
    if value is None:
        value = getattr(module, "CONFIG", {}).get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise Refused(f"{name} = {value!r}; expected a number from 0 to 1")
    return float(value)


OPS = {
    "describe": run_describe,
    "case": run_case,
    "reference": run_reference,
    "baseline": run_baseline,
    "sample": run_sample,
    "bind": run_bind,
    "space": run_space,
}

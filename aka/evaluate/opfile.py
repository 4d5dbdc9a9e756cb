"""Worker side: a workload file at work. It is run afresh for each set of CONFIG overrides, traced, and resized."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from aka.evaluate import loading
from aka.evaluate.loading import Refused

MAX_BYTES = 64 << 30
"""More than any chip's share of HBM that a single op could hold at once; refused before anything is allocated."""
USER_FAULTS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What code of a workload or kernel may be expected to raise at sizes that it was not written for."""


class Op:
    """A workload file. Raises Refused where it breaks the form, and whatever its own code raises."""

    def __init__(self, source: str, filename: str) -> None:
        self.source, self.filename = source, filename
        self._modules: dict[str, Any] = {}
        self._structures: dict[str, Any] = {}

    def module(self, config: Mapping[str, Any]) -> Any:
        key = repr(sorted(config.items()))
        if key not in self._modules:
            self._modules[key] = self._load(self._thawed(config) if config else {})
        return self._modules[key]

    def _load(self, config: dict[str, Any]) -> Any:
        try:
            return loading.load(self.source, self.filename, config)
        except SystemExit:
            raise Refused("the file ends the process when it is run (sys.exit, exit or quit)") from None

    def _thawed(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Overrides that came over the wire: a list is a tuple again where CONFIG has a tuple."""
        own = self.config()
        return {k: tuple(v) if isinstance(v, list) and isinstance(own.get(k), tuple) else v for k, v in config.items()}

    def function(self, config: Mapping[str, Any], name: str) -> Callable[..., Any]:
        fn = loading.function(self.module(config), name)
        return self._named(fn, config) if name == "workload" else fn

    def _named(self, fn: Callable[..., Any], config: Mapping[str, Any]) -> Callable[..., Any]:
        """The function, handed the NamedTuples that create_inputs makes: over the wire they are tuples."""
        import jax

        key = repr(sorted(config.items()))
        if key not in self._structures:
            made = as_arguments(jax.eval_shape(self.create(self.module(config))))
            own = jax.tree.flatten(made, is_leaf=_is_named)
            self._structures[key] = jax.tree.structure(made) if any(map(_is_named, own[0])) else None
        structure = self._structures[key]
        if structure is None:
            return fn

        @functools.wraps(fn)
        def call(*arguments: Any) -> Any:
            return fn(*jax.tree.unflatten(structure, jax.tree.leaves(arguments)))

        return call

    def config(self) -> dict[str, Any]:
        made = getattr(self.module({}), "CONFIG", {})
        if not isinstance(made, dict):
            raise Refused("CONFIG is not a dict")
        return made

    def merged(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The whole CONFIG under these overrides."""
        return {**self.config(), **self._thawed(config)}

    def listed(self, name: str) -> list[dict[str, Any]]:
        made = getattr(self.module({}), name, [])
        if not (isinstance(made, list | tuple) and all(isinstance(m, dict) for m in made)):
            raise Refused(f"{name} is not a list of CONFIG overrides (dicts)")
        for override in made:
            if not _is_plain(override):
                raise Refused(f"{name} holds {override!r}; keys are names, values numbers, strings, booleans or lists")
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

    def inputs(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Signature of create_inputs(), by eval_shape: nothing is allocated."""
        import jax

        sig = loading.signature(as_arguments(jax.eval_shape(self.create(self.module(config)))))
        if not sig["leaves"]:
            raise Refused("create_inputs returned no arrays")
        return sig

    def case(self, config: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
        """JSON of `aka.types.ShapeCase`; raises Refused, or whatever the workload raises when it is traced."""
        from aka.evaluate import analysis, export

        sig = inputs or self.inputs(config)
        read = _bounded("inputs", analysis.nbytes(sig["leaves"]))
        closed, outputs = export.trace(self.function(config, "workload"), sig)
        if not outputs["leaves"]:
            raise Refused("workload returned no arrays")
        written = _bounded("outputs", analysis.nbytes(outputs["leaves"]))
        counter = getattr(self.module(config), "get_flops", None)
        flops = _counted(counter()) if callable(counter) and inputs is None else analysis.dot_flops(closed.jaxpr)
        return {
            "label": _label(config) or arrays_label(sig), "config": config, "inputs": sig, "outputs": outputs,
            "flops": flops, "min_bytes": read + written, "knobs": {},
        }  # fmt: skip

    def knobs(self, config: dict[str, Any]) -> dict[str, int]:
        """The sizes that can be changed on their own: CONFIG keys that move the inputs' shapes, and every dimension
        size that no such key explains."""
        base = self.inputs(config)
        found: dict[str, int] = {}
        explained: set[int] = set()
        for key, value in self.merged(config).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 2:
                continue
            moved = self._moved(config, key, value, base)
            if moved:
                found[f"config:{key}"] = value
                explained |= moved
        sizes = {n for leaf in base["leaves"] for n in leaf["shape"] if n > 1}
        return found | {f"dim:{n}": n for n in sorted(sizes - explained)}

    def sizes(self, knobs: Mapping[str, int], config: Mapping[str, Any]) -> dict[str, int]:
        """The values that `knobs` have under other CONFIG overrides."""
        merged = self.merged(config)
        return {name: int(merged.get(name.removeprefix("config:"), size)) for name, size in knobs.items()}

    def _moved(self, config: dict[str, Any], key: str, value: int, base: dict[str, Any]) -> set[int]:
        """Dimension sizes that change when a CONFIG value is doubled (empty: it is not a size)."""
        try:
            other = self.inputs({**config, key: 2 * value})
        except USER_FAULTS:
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
        """`base` with its knobs set to other sizes. A dimension that a CONFIG key has changed is left as it is."""
        config = base["config"] | {k.removeprefix("config:"): v for k, v in knobs.items() if k.startswith("config:")}
        dims = {int(k.removeprefix("dim:")): v for k, v in knobs.items() if k.startswith("dim:")}
        sig = self.inputs(config)
        if dims:
            pairs = zip(sig["leaves"], base["inputs"]["leaves"], strict=True)
            leaves = [{**new, "shape": _scaled(new["shape"], old["shape"], dims)} for new, old in pairs]
            sig = {**sig, "leaves": leaves}
        label = " ".join([*filter(None, [_label(config)]), *(f"{n}->{v}" for n, v in dims.items())])
        case = self.case(config, sig)
        return case | {"label": label or case["label"], "knobs": dict(knobs)}


def _is_named(node: Any) -> bool:
    return isinstance(node, tuple) and hasattr(node, "_fields")


def as_arguments(value: Any) -> tuple[Any, ...]:
    """create_inputs may return one array, or a tuple or list of arguments."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    """`count` distinct names: those of the function's parameters, and x0, x1, ... for what `*args` takes."""
    names = [
        p.name
        for p in inspect.signature(fn).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    spare = (name for i in range(2 * count) if (name := f"x{i}") not in names)
    return [*names[:count], *(next(spare) for _ in range(count - len(names)))]


def tolerance(module: Any, name: str) -> float | None:
    """`rtol` or `atol` of the file or its CONFIG, or None."""
    value = getattr(module, name, None)
    if value is None:
        value = getattr(module, "CONFIG", {}).get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise Refused(f"{name} = {value!r}; expected a number from 0 to 1")
    return float(value)


def arrays_label(sig: Mapping[str, Any]) -> str:
    return " ".join(f"{leaf['dtype']}[{','.join(map(str, leaf['shape']))}]" for leaf in sig["leaves"])


def _label(config: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in config.items())


def _scaled(new: list[int], old: list[int], dims: Mapping[int, int]) -> list[int]:
    if len(new) != len(old):
        return new
    return [dims.get(a, a) if a == b else a for a, b in zip(new, old, strict=True)]


def _bounded(what: str, size: int) -> int:
    if size > MAX_BYTES:
        raise Refused(f"{what} of {size / 2**30:.0f} GiB; at most {MAX_BYTES >> 30} GiB")
    return size


def _counted(flops: Any) -> float:
    made = float(flops)
    if not (math.isfinite(made) and made >= 0):
        raise Refused(f"get_flops() returned {made}; expected a count")
    return made


def _is_plain(value: Any) -> bool:
    """What survives JSON: and so a trip to the parent and back."""
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or (isinstance(value, bool | int | str)) or (isinstance(value, float) and math.isfinite(value))

"""Each reference kernel before the judge: its own `reference` as the workload, its `kernel` as the candidate.

A face is one listed case of a kernel (`kernels_<group>.py` in tests/reference_kernels): its statics and its tunables.
The sizes of the case give every grid axis two steps or more, three on a reduction axis, so that the workload needs no
other shape for that; the sizes of the other cases and the small ones, which no block divides, stand beside them. A
mutant is judged at the faces at which its artifact differs from the original's, up to the first that rejects it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIBRARY = ROOT / "reference_kernels"
sys.path.append(str(HERE.parent / "reference_kernels"))

from kernel_table import Arg, Fixed, Ints, Listed  # noqa: E402

MAX_SHAPES = 3
TAIL = """

import jax.random

CONFIG = {{"name": {name!r}, "case": 0}}
TEST_SHAPES = [{{"case": case}} for case in range({cases})]
ARGUMENTS = {arguments}


def _drawn(key, shape, dtype, low, high):
    if low is None:
        return jax.random.normal(key, shape, jnp.float32).astype(dtype)
    if dtype.startswith("float"):
        return jax.random.uniform(key, shape, jnp.float32, low, high).astype(dtype)
    return jax.random.randint(key, shape, low, high + 1).astype(dtype)


def _inputs(seed):
    arguments = ARGUMENTS[CONFIG["case"]]
    keys = jax.random.split(jax.random.key(seed), len(arguments))
    return tuple(_drawn(key, *argument) for key, argument in zip(keys, arguments))


def create_inputs():
    return _inputs(0)

{make_inputs}
def workload({names}):
    return reference({names}{statics})
"""
MAKE_INPUTS = """
def make_inputs(seed, shape):
    return _inputs(seed)

"""


@dataclass(frozen=True)
class Face:
    """`op` is the workload's file; `call` what turns the kernel's file, or a mutant of it, into a candidate."""

    file: str
    name: str
    op: str
    call: str

    def candidate(self, source: str) -> str:
        return source + self.call


def listed() -> list[Listed]:
    """Every kernel of the library as its own tests list it, in the order of the files."""
    names = sorted(path.stem for path in (HERE.parent / "reference_kernels").glob("kernels_*.py"))
    found = [made for name in names for made in importlib.import_module(name).KERNELS]
    return sorted(found, key=lambda made: made.file)


def source_of(file: str) -> str:
    return (LIBRARY / file).read_text()


@functools.cache
def faces(file: str) -> tuple[Face, ...]:
    """The faces of a kernel in float32, one for each listed case, and its first case in bfloat16."""
    made = next(kernel for kernel in listed() if kernel.file == file)
    options = [(i, made.dtypes[0]) for i in range(len(made.cases))] + [(0, dtype) for dtype in made.dtypes[1:]]
    return tuple(_face(made, number, dtype) for number, dtype in options)


def _face(made: Listed, number: int, dtype: str) -> Face:
    source = source_of(made.file)
    module = _module(source, made.file)
    options = made.cases[number][1]
    wanted = [made.cases[number][0], *(a for i, (a, _) in enumerate(made.cases) if i != number), made.small]
    arguments = [shape for shape in wanted if _fits(module, shape, dtype, options)][:MAX_SHAPES]
    statics = {k: v for k, v in options.items() if k in inspect.signature(module.reference).parameters}
    names = list(inspect.signature(module.reference).parameters)[: len(arguments[0])]
    whole = any(isinstance(a, Ints) for a in arguments[0])
    name = f"{made.file.removesuffix('.py').replace('/', '_')}_{number}_{dtype}"
    tail = TAIL.format(
        name=name, cases=len(arguments), names=", ".join(names), statics=_keywords(statics),
        arguments=[[_plain(a, dtype) for a in shape] for shape in arguments],
        make_inputs=MAKE_INPUTS if whole else "",
    )  # fmt: skip
    call = f"\n\ndef workload({', '.join(names)}):\n    return kernel({', '.join(names)}{_keywords(options)})\n"
    return Face(made.file, name, source + tail, call)


def _keywords(values: dict[str, Any]) -> str:
    return "".join(f", {name}={value!r}" for name, value in values.items())


def _plain(arg: Arg, dtype: str) -> tuple[tuple[int, ...], str, int | None, int | None]:
    if isinstance(arg, Ints):
        return arg.shape, arg.dtype, arg.low, arg.high
    return (arg.shape, arg.dtype, None, None) if isinstance(arg, Fixed) else (tuple(arg), dtype, None, None)


@functools.lru_cache(maxsize=4)
def _module(source: str, file: str) -> types.ModuleType:
    module = types.ModuleType(file)
    exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
    return module


def _fits(module: types.ModuleType, args: Sequence[Arg], dtype: str, options: dict[str, Any]) -> bool:
    """Whether reference and kernel both take arguments of these shapes: not every static goes with every size."""
    import jax

    structs = [jax.ShapeDtypeStruct(shape, kind) for shape, kind, _, _ in (_plain(a, dtype) for a in args)]
    statics = {k: v for k, v in options.items() if k in inspect.signature(module.reference).parameters}
    try:
        jax.eval_shape(functools.partial(module.reference, **statics), *structs)
        jax.eval_shape(functools.partial(module.kernel, **options), *structs)
    except (TypeError, ValueError):
        return False
    return True

"""Each reference kernel equals its reference on the CPU, says what it takes, and compiles for real chips.

Run as a program it is the compiler's child process: it reads jobs from stdin and answers one JSON line for each, so
that an aborting compiler takes no test session along.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernel_table import Fixed, Ints, Listed

ROOT = Path(__file__).resolve().parents[2] / "reference_kernels"
TOPOLOGIES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}


def listed() -> list[Listed]:
    """KERNELS of every `kernels_<group>.py` beside this file."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("kernels_*.py"))
    return [made for name in names for made in importlib.import_module(name).KERNELS]


KERNELS = listed()
SOFTMAX = "softmax/row_blocks.py"


def by_file(made: Listed) -> str:
    return made.file


def load(file: str) -> Any:
    spec = importlib.util.spec_from_file_location(file.replace("/", "_")[:-3], ROOT / file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def front_matter(file: str) -> dict[str, Any]:
    import frontmatter

    docstring = ast.get_docstring(ast.parse((ROOT / file).read_text()))
    assert docstring is not None
    return dict(frontmatter.loads(docstring).metadata)


def statics_of(module: Any, options: dict[str, Any]) -> dict[str, Any]:
    known = inspect.signature(module.reference).parameters
    return {name: value for name, value in options.items() if name in known}


def error(got: Any, want: Any, dtype: str) -> float:
    """The largest error in units of the tolerance: 2e-5 for f32, 2e-2 for bf16, relative and absolute alike."""
    import numpy as np

    tolerance = 2e-5 if dtype == "float32" else 2e-2
    got, want = np.asarray(got, np.float32), np.asarray(want, np.float32)
    assert got.shape == want.shape and np.isfinite(got).all()
    return float(np.max(np.abs(got - want) / (tolerance * (1 + np.abs(want)))))


def structs(args: list[Any], dtype: str) -> list[Any]:
    import jax
    import jax.numpy as jnp

    plain = [Fixed(a, dtype) if isinstance(a, tuple) else a for a in args]
    return [jax.ShapeDtypeStruct(a.shape, jnp.dtype(a.dtype)) for a in plain]


def arrays(args: list[Any], dtype: str) -> list[Any]:
    import jax
    import jax.numpy as jnp

    made = []
    for key, arg, aval in zip(jax.random.split(jax.random.key(7), len(args)), args, structs(args, dtype), strict=True):
        if isinstance(arg, Ints):
            made.append(jax.random.randint(key, aval.shape, arg.low, arg.high + 1).astype(aval.dtype))
        else:
            made.append(jax.random.normal(key, aval.shape, jnp.float32).astype(aval.dtype))
    return made


def equal_cases() -> list[Any]:
    """The first case of every kernel in its first dtype; in the slow run its other dtypes, and its other cases in the
    first one."""
    made = []
    for kernel in KERNELS:
        for i, (args, options) in enumerate(kernel.cases):
            for dtype in kernel.dtypes if i == 0 else kernel.dtypes[:1]:
                marks = [] if i == 0 and dtype == kernel.dtypes[0] else [pytest.mark.slow]
                made.append(pytest.param(kernel, args, options, dtype, marks=marks, id=f"{kernel.file}-{i}-{dtype}"))
    return made


@pytest.mark.parametrize(("made", "args", "options", "dtype"), equal_cases())
def test_kernel_equals_reference(made: Listed, args: list[Any], options: dict[str, Any], dtype: str) -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas import tpu as pltpu

    module = load(made.file)
    inputs = arrays(args, dtype)
    wide = [x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in inputs]
    statics = statics_of(module, options)
    with jax.default_matmul_precision("highest"):
        want = jax.tree.leaves(module.reference(*wide, **statics))
    with pltpu.force_tpu_interpret_mode():
        got = jax.tree.leaves(module.kernel(*inputs, **options))
    plain = jax.tree.leaves(jax.eval_shape(lambda *a: module.reference(*a, **statics), *inputs))
    assert [(g.dtype, g.shape) for g in got] == [(p.dtype, p.shape) for p in plain]
    for g, w in zip(got, want, strict=True):
        assert error(g, w, dtype) <= made.tolerance


def test_large_and_masked_logits() -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas import tpu as pltpu

    x = jax.random.normal(jax.random.key(1), (40, 256)) * 100 + 3e4
    x = x.at[::3, 5:90].set(-jnp.inf)
    module = load(SOFTMAX)
    with pltpu.force_tpu_interpret_mode():
        assert error(module.kernel(x, block_rows=16), module.reference(x), "float32") <= 1


@pytest.mark.parametrize("made", KERNELS, ids=by_file)
def test_front_matter_matches_the_functions(made: Listed) -> None:
    file = made.file
    facts, module = front_matter(file), load(file)
    assert facts["family"] == Path(file).parent.name
    assert facts["sources"] and facts["when_to_use"] and facts["when_xla_wins"]
    parameters = inspect.signature(module.kernel).parameters
    arrays = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [part.split(":")[0].strip() for part in split_arguments(facts["signature"])] == arrays
    assert set(parameters) == {*arrays, *facts["statics"], *module.TUNED_PARAMS}
    assert {name: parameters[name].default for name in module.TUNED_PARAMS} == module.TUNED_PARAMS
    assert set(inspect.signature(module.reference).parameters) == {*arrays, *facts["statics"]}
    assert facts["chips"] and set(facts["chips"]) <= set(TOPOLOGIES)


def split_arguments(signature: str) -> list[str]:
    """`a:f[m,k], b:f[k] -> f[m]` as its arguments: a comma counts only outside brackets."""
    return [part + "]" for part in signature.split("->")[0].replace("],", "]").split("]") if part.strip()]


def test_ids_are_unique() -> None:
    ids = [front_matter(made.file)["id"] for made in KERNELS]
    assert len(set(ids)) == len(ids)


def test_every_kernel_of_the_library_is_listed_once() -> None:
    files = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("*/*.py"))
    assert sorted(made.file for made in KERNELS) == files


@pytest.mark.parametrize("made", KERNELS, ids=by_file)
def test_empty_arrays_are_refused(made: Listed) -> None:
    import jax

    empty = [jax.ShapeDtypeStruct((0,) * len(a.shape), a.dtype) for a in structs(made.small, made.dtypes[0])]
    with pytest.raises(ValueError, match="empty"):
        jax.eval_shape(load(made.file).kernel, *empty)


@pytest.mark.parametrize("made", [k for k in KERNELS if k.oversized], ids=by_file)
def test_oversized_blocks_are_refused(made: Listed) -> None:
    import jax

    module = load(made.file)
    grown = [
        jax.ShapeDtypeStruct(tuple(8192 if size >= 100 else size for size in a.shape), a.dtype)
        for a in structs(made.small, made.dtypes[0])
    ]
    kernel = functools.partial(module.kernel, **dict.fromkeys(module.TUNED_PARAMS, 8192))
    with pytest.raises(ValueError, match="not fit in VMEM"):
        jax.eval_shape(kernel, *grown)


def jobs_of(made: Listed, args: list[Any], dtype: str, chip: str, every: bool) -> list[dict[str, Any]]:
    """The first value of every tunable together, then (if `every`) each other value in place of its first."""
    avals = structs(args, dtype)
    space = load(made.file).search_space(avals, chip)
    first = {name: values[0] for name, values in space.items()}
    points = [first] + [first | {name: v} for name, values in space.items() for v in values[1:] if every]
    arrays = [[list(a.shape), str(a.dtype)] for a in avals]
    return [{"file": made.file, "arrays": arrays, "chip": chip, "params": point} for point in points]


def run_child(jobs: list[dict[str, Any]], tmp_path: Path, timeout_s: float) -> list[dict[str, Any]]:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_LOG_DIR": "disabled",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TMPDIR": str(tmp_path),
    }
    command = [sys.executable, __file__]
    done = subprocess.run(
        command, input=json.dumps(jobs), capture_output=True, text=True, env=environment, timeout=timeout_s
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def some_quick(step: int) -> list[Any]:
    """Every `step`th kernel now, as many others in the slow run."""
    return [
        pytest.param(made, marks=[] if i % step == 0 else [pytest.mark.slow], id=made.file)
        for i, made in enumerate(KERNELS)
        if i % step in (0, 2)
    ]


@pytest.mark.parametrize("made", some_quick(5))
def test_search_space_compiles_at_small_shapes(made: Listed, tmp_path: Path) -> None:
    """Every value on one chip, the advised ones on both."""
    jobs = [job for chip in ("v5e", "v6e") for job in jobs_of(made, made.small, made.dtypes[-1], chip, chip == "v5e")]
    answers = run_child(jobs, tmp_path, timeout_s=280)
    assert len(answers) == len(jobs)
    assert [a for a in answers if a["error"]] == []


def sampled(chip: str) -> list[Listed]:
    """Every third kernel on the two chips that runs are made for most, every eighth on the others, other ones on each:
    a compile at production shapes takes seconds."""
    step = 3 if chip in ("v5e", "v6e") else 8
    return KERNELS[list(TOPOLOGIES).index(chip) // 2 :: step]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chip", list(TOPOLOGIES))
def test_production_shapes_compile(chip: str, tmp_path: Path) -> None:
    jobs = [
        job
        for made in sampled(chip)
        if chip in front_matter(made.file)["chips"]
        for args, dtype in made.production[:1]
        for job in jobs_of(made, args, dtype, chip, False)
    ]
    answers = run_child(jobs, tmp_path, timeout_s=1700)
    assert jobs and len(answers) == len(jobs)
    assert [a for a in answers if a["error"]] == []


def compile_job(job: dict[str, Any]) -> str | None:
    """The compiler's complaint about one job, or None."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, SingleDeviceSharding

    device = topologies.get_topology_desc(TOPOLOGIES[job["chip"]], platform="tpu").devices[0]
    sharding = SingleDeviceSharding(device)
    arrays = [jax.ShapeDtypeStruct(tuple(s), jnp.dtype(d), sharding=sharding) for s, d in job["arrays"]]
    kernel = load(job["file"]).kernel
    mesh = Mesh(np.array([device]), ("x",)).abstract_mesh
    try:
        with jax.sharding.use_abstract_mesh(mesh):
            jax.jit(lambda *a: kernel(*a, **job["params"])).trace(*arrays).lower(lowering_platforms=("tpu",)).compile()
    except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError) as fault:
        return str(fault)[:600]
    return None


if __name__ == "__main__":
    for line in json.load(sys.stdin):
        print(json.dumps({**line, "error": compile_job(line)}), flush=True)

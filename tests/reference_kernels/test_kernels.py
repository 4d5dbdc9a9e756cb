"""Each reference kernel equals its reference on the CPU, says what it takes, and compiles for real chips.

Run as a program it is the compiler's child process: it reads jobs from stdin and answers one JSON line for each, so
that an aborting compiler takes no test session along.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2] / "reference_kernels"
TOPOLOGIES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}
RMS, SOFTMAX, CHAIN = "rms_norm/row_blocks.py", "softmax/row_blocks.py", "elementwise/bias_gelu_residual.py"
MATMUL, EPILOGUE = "matmul/tiled_f32_accumulator.py", "matmul/bias_gelu_epilogue.py"
ATTENTION = "attention/flash_causal.py"
FILES = [RMS, SOFTMAX, CHAIN, MATMUL, EPILOGUE, ATTENTION]
TILES = {"block_m": 16, "block_n": 128, "block_k": 128}

# (file, shapes, statics and tunables): two steps or more on each grid axis, three on a reduction.
CASES: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    (RMS, [(3, 13, 200), (200,)], {"block_rows": 16, "eps": 1e-2}),
    (SOFTMAX, [(3, 13, 200)], {"block_rows": 16}),
    (CHAIN, [(3, 13, 200), (200,), (3, 13, 200)], {"block_rows": 16, "block_cols": 128, "approximate": False}),
    (MATMUL, [(32, 384), (384, 256)], TILES),
    (MATMUL, [(40, 300), (300, 200)], TILES),
    (EPILOGUE, [(32, 384), (384, 256), (256,)], TILES),
    (EPILOGUE, [(40, 300), (300, 200), (200,)], {**TILES, "approximate": False}),
    (ATTENTION, [(2, 256, 128)] * 3, {"block_q": 128, "block_kv": 128}),
    (ATTENTION, [(1, 2, 300, 64)] * 3, {"block_q": 128, "block_kv": 128, "scale": 0.3}),
    (ATTENTION, [(300, 64)] * 3, {"block_q": 64, "block_kv": 128, "causal": False}),
    (ATTENTION, [(300, 192)] * 3, {"block_q": 128, "block_kv": 256, "causal": True}),
    (ATTENTION, [(1, 72, 64)] * 3, {"block_q": 32, "block_kv": 512}),
]

# Sizes that no block divides, large enough to keep the values of every tunable apart.
SMALL: dict[str, list[tuple[int, ...]]] = {
    RMS: [(3, 200, 200), (200,)],
    SOFTMAX: [(3, 100, 200)],
    CHAIN: [(100, 1200), (1200,), (100, 1200)],
    MATMUL: [(300, 300), (300, 200)],
    EPILOGUE: [(300, 300), (300, 200), (200,)],
    ATTENTION: [(2, 300, 64)] * 3,
}
PRODUCTION: list[tuple[str, list[tuple[int, ...]], str]] = [
    (RMS, [(8, 4096, 8192), (8192,)], "bfloat16"),
    (SOFTMAX, [(8192, 8192)], "float32"),
    (MATMUL, [(4096, 4096), (4096, 4096)], "bfloat16"),
    (MATMUL, [(8192, 8192), (8192, 28672)], "bfloat16"),
    (EPILOGUE, [(4096, 8192), (8192, 8192), (8192,)], "float32"),
    (ATTENTION, [(8, 4096, 128)] * 3, "bfloat16"),
    (CHAIN, [(8192, 8192), (8192,), (8192, 8192)], "bfloat16"),
]


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


@pytest.mark.parametrize(
    ("file", "shapes", "options", "dtype"),
    [(*case, "float32") for case in CASES] + [(*case, "bfloat16") for case in CASES[:3] + CASES[4:9:2]],
)
def test_kernel_equals_reference(file: str, shapes: list[tuple[int, ...]], options: dict[str, Any], dtype: str) -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas import tpu as pltpu

    module = load(file)
    keys = jax.random.split(jax.random.key(7), len(shapes))
    inputs = [jax.random.normal(key, shape, jnp.dtype(dtype)) for key, shape in zip(keys, shapes, strict=True)]
    with jax.default_matmul_precision("highest"):
        want = module.reference(*(x.astype(jnp.float32) for x in inputs), **statics_of(module, options))
    with pltpu.force_tpu_interpret_mode():
        got = module.kernel(*inputs, **options)
    assert got.dtype == module.reference(*inputs).dtype
    assert error(got, want, dtype) <= 1


def test_large_and_masked_logits() -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas import tpu as pltpu

    x = jax.random.normal(jax.random.key(1), (40, 256)) * 100 + 3e4
    x = x.at[::3, 5:90].set(-jnp.inf)
    module = load(SOFTMAX)
    with pltpu.force_tpu_interpret_mode():
        assert error(module.kernel(x, block_rows=16), module.reference(x), "float32") <= 1


@pytest.mark.parametrize("file", FILES)
def test_front_matter_matches_the_functions(file: str) -> None:
    facts, module = front_matter(file), load(file)
    assert facts["family"] == Path(file).parent.name
    assert facts["sources"] and facts["when_to_use"] and facts["when_xla_wins"]
    parameters = inspect.signature(module.kernel).parameters
    arrays = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [part.split(":")[0].strip() for part in split_arguments(facts["signature"])] == arrays
    assert set(parameters) == {*arrays, *facts["statics"], *module.TUNED_PARAMS}
    assert {name: parameters[name].default for name in module.TUNED_PARAMS} == module.TUNED_PARAMS
    assert set(inspect.signature(module.reference).parameters) == {*arrays, *facts["statics"]}
    assert set(facts["chips"]) == set(TOPOLOGIES)


def split_arguments(signature: str) -> list[str]:
    """`a:f[m,k], b:f[k] -> f[m]` as its arguments: a comma counts only outside brackets."""
    return [part + "]" for part in signature.split("->")[0].replace("],", "]").split("]") if part.strip()]


def test_ids_are_unique() -> None:
    ids = [front_matter(file)["id"] for file in FILES]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("file", FILES)
def test_empty_arrays_are_refused(file: str) -> None:
    import jax

    arrays = [jax.ShapeDtypeStruct((0,) * len(shape), "float32") for shape in SMALL[file]]
    with pytest.raises(ValueError, match="empty"):
        jax.eval_shape(load(file).kernel, *arrays)


@pytest.mark.parametrize("file", [RMS, SOFTMAX, MATMUL, EPILOGUE, ATTENTION])
def test_oversized_blocks_are_refused(file: str) -> None:
    import jax

    module = load(file)
    grown = [tuple(8192 if size >= 100 else size for size in shape) for shape in SMALL[file]]
    kernel = functools.partial(module.kernel, **dict.fromkeys(module.TUNED_PARAMS, 8192))
    with pytest.raises(ValueError, match="not fit in VMEM"):
        jax.eval_shape(kernel, *(jax.ShapeDtypeStruct(shape, "float32") for shape in grown))


def jobs_of(file: str, dtype: str, shapes: list[tuple[int, ...]], chip: str, every: bool) -> list[dict[str, Any]]:
    """The first value of every tunable together, then (if `every`) each other value in place of its first."""
    import jax
    import jax.numpy as jnp

    space = load(file).search_space([jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in shapes], chip)
    first = {name: values[0] for name, values in space.items()}
    points = [first] + [first | {name: v} for name, values in space.items() for v in values[1:] if every]
    return [{"file": file, "dtype": dtype, "shapes": shapes, "chip": chip, "params": point} for point in points]


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


def test_search_space_compiles_at_small_shapes(tmp_path: Path) -> None:
    jobs = [
        job for chip in ("v5e", "v6e") for file in FILES for job in jobs_of(file, "bfloat16", SMALL[file], chip, True)
    ]
    answers = run_child(jobs, tmp_path, timeout_s=280)
    assert len(answers) == len(jobs)
    assert [a for a in answers if a["error"]] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chip", list(TOPOLOGIES))
def test_production_shapes_compile(chip: str, tmp_path: Path) -> None:
    jobs = [job for file, shapes, dtype in PRODUCTION for job in jobs_of(file, dtype, shapes, chip, False)]
    answers = run_child(jobs, tmp_path, timeout_s=1700)
    assert len(answers) == len(PRODUCTION)
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
    arrays = [jax.ShapeDtypeStruct(tuple(s), jnp.dtype(job["dtype"]), sharding=sharding) for s in job["shapes"]]
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

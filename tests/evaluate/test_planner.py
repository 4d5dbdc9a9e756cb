"""The planner in its sandbox: what it reads off workload files, and how it refuses those that it cannot use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aka.cli import compose
from aka.errors import WorkloadError
from aka.evaluate import wire
from aka.evaluate.client import PlannerClient, leaf_names
from aka.evaluate.pool import Pool
from aka.targets import chips
from aka.types import Binding, ReferenceKernel, Workload
from aka.workload.read import read_workload

HEAD = "import jax\nimport jax.numpy as jnp\n\n"
RMS = (
    HEAD
    + """
CONFIG = {"name": "rms", "batch": 4, "seq": 512, "d": 1024, "eps": 1e-5}
SHAPES = [{"seq": 1024}, {"d": 2048}]
TEST_SHAPES = [{"batch": 2, "seq": 64, "d": 256}]
WIDTH = CONFIG["d"]
rtol = 0.01


def create_inputs(dtype=jnp.bfloat16):
    x = jax.random.normal(jax.random.key(0), (CONFIG["batch"], CONFIG["seq"], WIDTH), dtype)
    return jnp.ones((WIDTH,), dtype), x


def workload(scale, x):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + CONFIG["eps"]) * scale).astype(x.dtype)


def get_flops():
    return 7.0 * CONFIG["batch"] * CONFIG["seq"] * WIDTH
"""
)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    with compose.worker_pool(chips.chip("v5e")) as made:
        yield made


@pytest.fixture(scope="session")
def client(pool: Pool) -> PlannerClient:
    return PlannerClient(pool, "v5e")


class Reader:
    def __init__(self, client: PlannerClient, folder: Path) -> None:
        self.client, self.path = client, folder / "op.py"

    def __call__(self, text: str) -> Workload:
        self.path.write_text(text)
        return self.client.describe(read_workload(self.path))

    def refusal(self, text: str) -> str:
        with pytest.raises(WorkloadError) as caught:
            self(text)
        said = str(caught.value)
        assert said.startswith(f"{self.path}: ") and "\n" not in said and len(said) < 700
        assert "JAX has removed its internal frames" not in said
        return said.removeprefix(f"{self.path}: ")


@pytest.fixture
def read(client: PlannerClient, tmp_path: Path) -> Reader:
    return Reader(client, tmp_path)


def test_a_file_with_config_shapes_and_test_shapes(read: Reader) -> None:
    op = read(RMS)
    assert op.name == "rms" and op.argument_names == ("scale", "x") and op.rtol == 0.01 and op.atol is None
    assert [c.label for c in op.shapes] == ["seq=1024", "d=2048"]
    assert [str(c.inputs) for c in op.shapes] == [
        "bfloat16[1024], bfloat16[4,1024,1024]",
        "bfloat16[2048], bfloat16[4,512,2048]",
    ]
    assert str(op.test_shapes[0].inputs) == "bfloat16[256], bfloat16[2,64,256]"
    assert op.primary.knobs == {"config:batch": 4, "config:seq": 1024, "config:d": 1024}
    assert op.primary.flops == 7.0 * 4 * 1024 * 1024 and op.primary.min_bytes == 2 * 2 * 4 * 1024 * 1024 + 2 * 1024
    assert 1e-5 in op.literals and op.primitives["rsqrt"] == 1 and "pjit" not in op.primitives


MLP = (
    HEAD
    + """
def create_inputs():
    return (
        {"w": jnp.ones((2048, 4096)), "b": jnp.zeros(4096)},
        [jax.random.normal(jax.random.key(0), (512, 2048)), jnp.arange(512) % 7],
    )


def workload(params, batch):
    y = batch[0] @ params["w"] + params["b"]
    return {"y": y, "aux": (y.sum(-1), batch[1] > 3)}
"""
)


def test_pytrees_and_sizes_that_are_only_literals(read: Reader) -> None:
    op = read(MLP)
    assert op.primary.inputs.tree == {"tuple": [{"dict": {"b": 0, "w": 1}}, {"list": [2, 3]}]}
    assert op.primary.outputs.tree == {"dict": {"aux": {"tuple": [0, 1]}, "y": 2}}
    assert str(op.primary.outputs) == "float32[512], bool[512], float32[512,4096]"
    assert op.primary.knobs == {"dim:512": 512, "dim:2048": 2048, "dim:4096": 4096}
    assert op.primary.flops == 2 * 512 * 2048 * 4096
    assert [c.inputs.leaves[1].shape for c in op.test_shapes] == [(256, 384), (384, 128)]
    arrays = read.client.sample(op, op.test_shapes[0], 0)
    assert [(a.shape, a.dtype.name) for a in arrays] == [(s.shape, s.dtype) for s in op.test_shapes[0].inputs.leaves]
    assert set(arrays[3]) == set(range(7))  # labels keep their range


def test_leaves_are_named_after_their_arguments_and_keys(read: Reader) -> None:
    assert leaf_names(read(MLP)) == ["params_b", "params_w", "batch_0", "batch_1"]


def test_each_template_is_a_family_of_its_own(read: Reader) -> None:
    """Lines about a trial name the family: all of them called alike would not tell which template was tried."""
    op = read(RMS)
    made = read.client.templates(op)
    assert made.kernels and [k.family for k in made.kernels] == [k.id for k in made.kernels]
    assert made.kernels[0].id == "template/fused" and "def kernel(scale: " in made.kernels[0].source


NAMED = """
from typing import NamedTuple
import jax, jax.numpy as jnp

class Quantized(NamedTuple):
    q: jax.Array
    scale: jax.Array

def create_inputs():
    return jnp.ones((64, 128)), Quantized(jnp.ones((64, 128), jnp.int8), jnp.ones((1, 128)))

def workload(x, w):
    return x + w.q.astype(jnp.float32) * w.scale
"""


def test_a_named_tuple_reaches_the_op_as_one(read: Reader) -> None:
    op = read(NAMED)
    assert op.argument_names == ("x", "w") and leaf_names(op) == ["x", "w_0", "w_1"]
    assert [str(leaf) for leaf in op.primary.inputs.leaves] == ["float32[64,128]", "int8[64,128]", "float32[1,128]"]


def test_one_array_alone_and_a_variadic_workload(read: Reader) -> None:
    op = read(HEAD + "def create_inputs(): return jnp.ones((96, 256))\ndef workload(x1, *rest): return x1 * 2, None")
    assert op.primary.inputs.tree == {"tuple": [0]} and op.argument_names == ("x1",)
    assert op.primary.outputs.tree == {"tuple": [0, None]} and op.name == "op"
    op = read(HEAD + "def create_inputs(): return (jnp.ones(96),) * 4\ndef workload(x1, *rest): return x1 + rest[2]")
    assert len(set(op.argument_names)) == 4


def test_dataclasses_asserts_and_numpy_may_be_used(read: Reader) -> None:
    op = read(
        "from __future__ import annotations\nimport dataclasses\nimport numpy as np\n"
        + HEAD[0:0]
        + """
import jax.numpy as jnp
CONFIG = {"heads": 6, "model": 384, "shape": (32, 4)}
SHAPES = [{"shape": (64, 4)}]

@dataclasses.dataclass
class Sizes:
    heads: int

def create_inputs():
    assert CONFIG["model"] == 64 * Sizes(CONFIG["heads"]).heads
    return np.ones((*(CONFIG["shape"] + (CONFIG["heads"],)), CONFIG["model"])), 3

def workload(x, n):
    return jnp.sin(x) * n
"""
    )
    assert [str(leaf) for leaf in op.primary.inputs.leaves] == ["float32[64,4,6,384]", "int32[]"]
    assert set(op.primary.knobs) == {"dim:64", "dim:4", "dim:6", "dim:384"}
    assert [a.dtype.name for a in read.client.sample(op, op.test_shapes[0], 0)] == ["float32", "int32"]


SAME = "def workload(x): return x"
ONE = "def create_inputs(): return (jnp.ones((8, 128)),)\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + ONE + "x = 1 / 0\n" + SAME, r"line 5: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(0)\ndef create_inputs(): 0\ndef workload(x): 0", r"ends the process when it is run"),
        ("import os\nos._exit(3)\ndef create_inputs(): 0\ndef workload(x): 0", r"process ended .* exit code 3"),
        (HEAD + ONE + "def workload(x):\n    y = x + 1\n    raise KeyError('no')", r"line 7: KeyError: 'no'"),
        (HEAD + ONE + "def workload(x):\n    return x if x.sum() > 0 else -x", r"line 6: TracerBoolConversionError"),
        (HEAD + ONE + "def workload(x, y): return x", r"TypeError: .*missing 1 required positional argument: 'y'"),
        (HEAD + ONE + "def workload(x): return ['a', 'b']", r"expected arrays .* found str"),
        (HEAD + ONE + "def workload(x): return None", r"workload returned no arrays"),
        (HEAD + ONE + "def workload(x): return {1: x}", r"keys that are not strings"),
        (HEAD + ONE + "def workload(x): return object()", r"found object"),
        (HEAD + "workload = 3\n" + ONE, r"`workload` is int, not a function"),
        (HEAD + "def create_inputs(): return ()\ndef workload(): return 1", r"create_inputs returned no arrays"),
        (HEAD + "def create_inputs(n): return (jnp.ones(n),)\n" + SAME, r"needs arguments \['n'\]"),
        (HEAD + "def create_inputs(): return jnp.ones((1<<20, 1<<21))\n" + SAME, r"inputs of 8192 GiB"),
        (HEAD + ONE + "def workload(x): return jnp.ones((1<<20, 1<<21)) + x[0, 0]", r"outputs of 8192 GiB"),
        (HEAD + ONE + "SHAPES = 3\n" + SAME, r"SHAPES is not a list"),
        (HEAD + ONE + "SHAPES = [3]\n" + SAME, r"SHAPES is not a list"),
        (HEAD + ONE + "TEST_SHAPES = [{'a': 1}]\n" + SAME, r"no top-level CONFIG"),
        (HEAD + ONE + "CONFIG = {}\nSHAPES = [{'d': jnp.int8}]\n" + SAME, r"SHAPES holds .*int8"),
        (HEAD + ONE + "CONFIG = 3\n" + SAME, r"CONFIG is not a dict"),
        (HEAD + ONE + "rtol = -1\n" + SAME, r"rtol = -1; expected a number from 0 to 1"),
        (HEAD + ONE + "def get_flops(): return float('nan')\n" + SAME, r"get_flops\(\) returned nan"),
        (HEAD + ONE + "from nowhere import x\n" + SAME, r"line 5: ModuleNotFoundError: .*nowhere"),
        (HEAD + "def create_inputs(): return jax.random.key(0)\n" + SAME, r"key<fry>"),
    ],
    ids=lambda v: v[:24] if v.startswith(("line", "`")) else "",
)  # fmt: skip
def test_a_bad_file_is_refused_in_one_line(read: Reader, text: str, words: str) -> None:
    assert re.search(words, said := read.refusal(text)), said


def test_the_same_op_at_other_sizes(read: Reader) -> None:
    op = read(RMS)
    made = read.client.case(op, {"config:batch": 2, "config:seq": 128, "config:d": 256})
    assert made is not None and str(made.inputs) == "bfloat16[256], bfloat16[2,128,256]"
    assert made.knobs["config:seq"] == 128 and made.label == "seq=128 batch=2 d=256"
    assert read.client.case(op, {"config:batch": -1}) is None


def test_a_dimension_knob_leaves_alone_what_a_config_knob_has_set(read: Reader) -> None:
    op = read(
        HEAD + "CONFIG = {'rows': 4096}\ndef create_inputs(): return jnp.ones((CONFIG['rows'], 256))\n"
        "def workload(x): return x * 2"
    )
    made = read.client.case(op, {"config:rows": 256, "dim:256": 128})
    assert made is not None and made.inputs.leaves[0].shape == (256, 128)


def test_cases_of_different_arrays_have_different_labels(read: Reader) -> None:
    """Artifacts and references are kept by label."""
    op = read(
        HEAD + "CONFIG = {'rows': 512, 'dt': 'float32'}\nSHAPES = [{'dt': 'bfloat16'}]\nTEST_SHAPES = [{'rows': 128}]\n"
        "def create_inputs(): return jnp.ones((CONFIG['rows'], 128), CONFIG['dt'])\ndef workload(x): return x * 2"
    )
    made = read.client.case(op, {"config:rows": 128})
    assert made is not None and made.inputs != op.test_shapes[0].inputs and made.label != op.test_shapes[0].label


def call(pool: Pool, artifact: bytes, arrays: list[Any]) -> list[Any]:
    specs, blobs = wire.pack(arrays)
    result, data = pool.keep("runner").call("call", {"arrays": specs}, [artifact, *blobs], timeout_s=60.0)
    return wire.unpack(result["arrays"], data)


def test_the_exact_reference_agrees_with_the_native_one(read: Reader, pool: Pool) -> None:
    op = read(RMS)
    reference = read.client.reference(op, op.test_shapes[0])
    assert reference.exact is not None and (reference.chip, reference.draws, reference.why) == (None, (), None)
    arrays = read.client.sample(op, op.test_shapes[0], 0)
    (wide,), (made,) = call(pool, reference.exact, arrays), call(pool, reference.native, arrays)
    assert wide.dtype == np.float64 and made.dtype.name == "bfloat16"
    x = arrays[1].astype(np.float64)
    want = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5)
    assert np.abs(wide - want).max() < 1e-6  # the op's own constants are float32
    assert np.abs(made.astype(np.float64) - want).max() < 0.02


def test_an_op_with_products_has_a_reference_that_rounds_as_the_mxu_does(read: Reader, pool: Pool) -> None:
    op = read(
        HEAD + "def create_inputs(): return jnp.ones((64, 96)), jnp.ones((96, 32))\ndef workload(a, b): return a @ b"
    )
    reference = read.client.reference(op, op.primary)
    assert reference.exact is not None and reference.chip is not None
    a, b = (np.random.default_rng(i).normal(size=s).astype(np.float32) for i, s in enumerate([(64, 96), (96, 32)]))
    (wide,), (rounded,) = call(pool, reference.exact, [a, b]), call(pool, reference.chip, [a, b])
    assert np.abs(wide - a.astype(np.float64) @ b).max() < 1e-12
    assert 1e-4 < np.abs(rounded - wide).max() < 0.5


def test_an_op_that_rounds_inside_has_more_draws_of_its_roundings(read: Reader, pool: Pool) -> None:
    op = read(
        HEAD
        + "def create_inputs(): return jnp.ones((64, 96)), jnp.ones((96, 128), jnp.bfloat16)\n"
        + "def workload(a, b): return jnp.dot(a.astype(jnp.bfloat16), b, preferred_element_type=jnp.float32)"
    )
    reference = read.client.reference(op, op.primary)
    assert reference.exact is not None and len(reference.draws) == 2
    a = np.random.default_rng(0).normal(size=(64, 96)).astype(np.float32)
    b = np.random.default_rng(1).normal(size=(96, 128)).astype("bfloat16")
    exact, *drawn = (call(pool, artifact, [a, b])[0] for artifact in (reference.exact, *reference.draws))
    assert all(1e-4 < np.abs(d - exact).max() < 0.5 for d in drawn)
    assert np.abs(drawn[0] - drawn[1]).max() > 0


def test_an_op_without_a_float64_twin_says_why(read: Reader) -> None:
    body = "    return jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct(x.shape, x.dtype), x)"
    op = read(HEAD + "def create_inputs(): return jnp.ones((8, 128))\ndef workload(x):\n" + body)
    with pytest.raises(WorkloadError):
        read.client.reference(op, op.primary)


KERNEL = """
import jax
import jax.numpy as jnp
TUNED_PARAMS = {"block_rows": 256}

def reference(x, scale, *, eps=1e-6):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + eps) * scale).astype(x.dtype)

def kernel(x, scale, *, eps=1e-6, block_rows=256):
    return x

def search_space(shapes, chip):
    return {"block_rows": [b for b in (512, 256, 64) if b <= shapes[0].shape[1]], "wide": [chip, str(shapes[1].dtype)]}
"""


def kernel(id: str, text: str = KERNEL, signature: str = "x:f[*rows,d], scale:f[d] -> f[*rows,d]") -> ReferenceKernel:
    return ReferenceKernel(id, "rms_norm", id, signature, {"eps": "float"}, ("v5e",), text)


def test_the_kernel_that_computes_the_op_is_bound(read: Reader) -> None:
    op = read(RMS)
    wrong = KERNEL.replace("jnp.mean(wide * wide", "jnp.mean(wide")
    asked = [
        kernel("right"),
        kernel("other-op", wrong),
        kernel("misfit", signature="x:f[m,d], scale:f[d] -> f[m,d]"),
        kernel("broken", "raise ValueError('library')"),
        kernel("unreadable", signature="x f[d]"),
    ]
    found = read.client.bind(op, asked)
    assert [(b.kernel, b.arguments, b.statics) for b in found.bindings] == [("right", (1, 0), {"eps": 1e-5})]
    assert "computes something else" in found.refused["other-op"]
    assert "does not fit" in found.refused["misfit"]
    assert "library" in found.refused["broken"] and "without '->'" in found.refused["unreadable"]


def test_sizes_that_are_only_literals_bind_too(read: Reader) -> None:
    text = (
        HEAD
        + """
def create_inputs(): return jax.random.normal(jax.random.key(0), (2048, 4096)), jnp.ones(4096)
def workload(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale
"""
    )
    (binding,) = read.client.bind(read(text), [kernel("right")]).bindings
    assert binding.arguments == (0, 1) and binding.statics == {"eps": 1e-6}


def test_the_search_space_sees_the_kernels_own_argument_order(read: Reader) -> None:
    op = read(RMS)
    made = read.client.space(op, kernel("right"), Binding("right", (1, 0), {"eps": 1e-5}))
    assert made.space == {"block_rows": [512, 256, 64], "wide": ["v5e", "bfloat16"]}
    assert made.tuned == {"block_rows": 512, "wide": "v5e"}


def test_integer_inputs_come_from_the_file_itself(read: Reader) -> None:
    op = read(
        HEAD
        + """
CONFIG = {"rows": 4096, "classes": 1000}
def create_inputs():
    rows, classes = CONFIG["rows"], CONFIG["classes"]
    logits = jax.random.normal(jax.random.key(0), (rows, classes))
    return logits, jax.random.randint(jax.random.key(1), (rows,), 0, classes)
def make_inputs(seed, shape):
    key = jax.random.key(seed)
    return jnp.ones((shape["rows"], shape["classes"])), jax.random.randint(key, (shape["rows"],), 5, shape["classes"])
def workload(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()
"""
    )
    assert op.has_make_inputs and op.primary.outputs.tree == 0
    case = op.test_shapes[0]
    one, two, again = (read.client.sample(op, case, seed)[1] for seed in (1, 2, 1))
    classes = case.inputs.leaves[0].shape[1]
    assert one.dtype.name == "int32" and one.min() >= 5 and one.max() < classes
    assert np.array_equal(one, again) and not np.array_equal(one, two)


def test_the_baseline_is_an_artifact_for_the_chip(read: Reader, pool: Pool) -> None:
    op = read(RMS)
    result, _ = pool.keep("runner").call("inspect", {}, [read.client.baseline(op, op.primary)], timeout_s=60.0)
    assert result["kernels"] == [] and "stablehlo.rsqrt" in {o["name"] for o in result["outside"]}


MASKED_NORM = """
import jax, jax.numpy as jnp

def create_inputs():
    return jnp.ones((512, 1024)), jnp.arange(512, dtype=jnp.int32) % 7

def workload(x, ids):
    centred = x - jnp.mean(x, 0)
    return jnp.where(ids[:, None] > 2, centred * jax.lax.rsqrt(jnp.mean(centred * centred, 0) + 1e-5), 0.0)
"""


def test_each_kernel_of_a_template_is_a_workload_of_its_own(read: Reader) -> None:
    op = read(MASKED_NORM)
    template = next(k for k in read.client.templates(op).kernels if k.pieces)
    assert any("'int32', 0, 6)" in piece.op for piece in template.pieces)
    for piece in template.pieces:
        made = read.client.piece(op, piece.op)
        assert made.test_shapes and made.path == op.path and read.client.piece(op, piece.op) is made
        assert piece.op == made.source and set(piece.params.values()) <= set(re.findall(r"block_\w+", template.source))


GROUPED = """
import jax, jax.numpy as jnp
CONFIG = {"rows": 256, "width": 1024, "groups": 8, "clipped": True}
TEST_SHAPES = [{"rows": 64, "width": 640, "groups": 5}, {"rows": 40, "width": 768, "groups": 3}]
def create_inputs():
    return jax.random.normal(jax.random.key(0), (CONFIG["rows"], CONFIG["width"])),
def workload(x):
    grouped = x.reshape(x.shape[0], CONFIG["groups"], -1)
    return (grouped - grouped.max(-1, keepdims=True)).reshape(x.shape)
"""


def test_a_config_value_that_moves_no_input_may_set_a_size(read: Reader, client: PlannerClient) -> None:
    workload = read(GROUPED)
    assert "config:groups" not in workload.primary.knobs
    made = client.templates(workload)
    assert made.kernels, made.refused
    assert "CONFIG = {'groups': 8}" in made.kernels[0].source

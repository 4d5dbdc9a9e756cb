"""The promises of the commands on the real examples: speedups, fields of the JSON, kernels that stand alone."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import pytest
from cli_runs import Runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
RESULT = [
    "status", "chip", "source", "confidence", "hardware", "baseline_us", "best_us", "speedup", "roofline_fraction",
    "shapes", "trials", "stop_reason", "best_path", "run", "sandbox", "versions", "weak",
]  # fmt: skip
PROFILE = {
    "chip", "shape", "source", "confidence", "estimated_us", "cycles", "hbm_bytes", "bound", "roofline_fraction",
    "slots", "spills", "vmem_bytes", "baseline_us", "speedup",
}  # fmt: skip
GATES = ["static", "export", "structure", "vmem", "compile", "correctness", "performance"]
CHIPS = ("v5e", "v6e")
PAIRS = {
    "matmul/tiled_f32_accumulator": "matmul",
    "softmax/row_blocks": "softmax",
    "rms_norm/row_blocks": "rmsnorm",
    "elementwise/bias_gelu_residual": "bias_gelu_residual",
    "matmul/bias_gelu_epilogue": "matmul_bias_gelu",
    "attention/flash_causal": "attention_causal",
}
# Imports best.py with jax and without aka, and traces it at the shapes of the op.
ALONE = """
import importlib.util, json, sys

class NoAka:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "aka":
            raise ImportError("best.py must stand without aka")

sys.meta_path.insert(0, NoAka())
sys.path.append(sys.argv[1])

def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

import jax
best, op = load("best", sys.argv[2]), load("op", sys.argv[3])
inputs = jax.eval_shape(op.create_inputs)
print(json.dumps([str(jax.eval_shape(f, *inputs)) for f in (best.workload, op.workload)]))
"""


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def example(name: str) -> Path:
    return ROOT / "examples" / f"{name}.py"


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    """The whole of stdout as one JSON value."""
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(("name", "least"), [("rmsnorm", 1.3), ("softmax", 1.5)])
def test_optimize_beats_xla(runs: Runs, name: str, least: float, chip: str) -> None:
    begun = time.monotonic()
    result = answer(
        runs.aka("optimize", example(name), "--chip", chip, "--out", runs.run, "--json", timeout_s=700),
    )
    assert time.monotonic() - begun < 600
    assert list(result) == RESULT
    assert (result["status"], result["chip"], result["source"]) == ("improved", chip, "estimated")
    assert result["hardware"] == "unverified" and result["confidence"]
    assert result["speedup"] >= least
    assert result["speedup"] == pytest.approx(result["baseline_us"] / result["best_us"])
    (shape,) = result["shapes"]
    assert (shape["baseline_us"], shape["best_us"]) == pytest.approx((result["baseline_us"], result["best_us"]))
    assert {"jax", "libtpu", "aka-kernels"} <= set(result["versions"])
    best = Path(result["best_path"])
    assert best == runs.run / "best.py" and result == json.loads((runs.run / "result.json").read_text())
    runs.check_best()
    made, wanted = alone(best, example(name), runs.folder)
    assert made == wanted
    check_accepted(runs, best, name, chip)


@pytest.mark.parametrize(("kernel", "chip"), zip(PAIRS, itertools.cycle(CHIPS)))
def test_check_accepts_each_reference_kernel(runs: Runs, kernel: str, chip: str) -> None:
    check_accepted(runs, ROOT / "reference_kernels" / f"{kernel}.py", PAIRS[kernel], chip)


def test_profile_tells_what_bounds_a_kernel(runs: Runs) -> None:
    kernel = ROOT / "reference_kernels" / "softmax" / "row_blocks.py"
    rows = answer(
        runs.aka("profile", kernel, "--op", example("softmax"), "--chip", ",".join(CHIPS), "--json", timeout_s=600)
    )
    assert [row["chip"] for row in rows] == list(CHIPS)
    for row in rows:
        assert set(row) >= PROFILE and row["source"] == "estimated"
        # Every element is read once and written once, whatever the estimate makes of it.
        assert row["hbm_bytes"] >= 2 * 4 * 8192 * 8192
        assert 0 < row["roofline_fraction"] <= 1 and row["cycles"] > 0 and row["vmem_bytes"] > 0
        assert row["speedup"] == pytest.approx(row["baseline_us"] / row["estimated_us"]) and row["speedup"] > 1
        assert row["slots"] and all(0 <= share <= 1 for share in row["slots"].values())


def check_accepted(runs: Runs, kernel: Path, name: str, chip: str) -> None:
    how = ("--op", example(name), "--chip", chip, "--production-s", "10", "--json")
    judged = answer(runs.aka("check", kernel, *how, timeout_s=700))
    assert judged["verdict"] == "ACCEPT" and judged["chip"] == chip
    assert [(gate["gate"], gate["passed"]) for gate in judged["gates"]] == [(gate, True) for gate in GATES]


def alone(best: Path, op: Path, folder: Path) -> tuple[str, str]:
    """What best.py and the op make at the op's shapes, by a Python without site packages of its own."""
    command = [sys.executable, "-I", "-S", "-c", ALONE, sysconfig.get_path("purelib"), str(best), str(op)]
    env = {"JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, timeout=120, check=False)
    made, wanted = answer(done)
    return made, wanted

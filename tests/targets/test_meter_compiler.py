"""The meter on the real TPU compiler, in child processes: one simulates v5e, one dumps tpu7x, one only compiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aka.targets import aot
from aka.targets.chips import TPU7X, V5E
from aka.types import Profile, decode

HERE = Path(__file__).parent
MATMUL_BYTES = 3 * 4096 * 4096 * 2
MATMUL_FLOPS = 2 * 4096**3
ROWS_BYTES = 2 * 16384 * 2048 * 4
NEEDS = {
    "matmul": (MATMUL_BYTES, MATMUL_FLOPS),
    "double": (ROWS_BYTES, 0),
    "softmax_xla_small": (2 * 512 * 1024 * 4, 0),
}


class Child:
    """A worker process that answers one request at a time."""

    def __init__(self, environment: dict[str, str]) -> None:
        paths = os.pathsep.join([str(HERE.parents[1]), str(HERE)])
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "meter_child.py")],
            env={**os.environ, **environment, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, program: str, chip: str, op: str, **args: Any) -> dict[str, Any]:
        min_bytes, flops = NEEDS.get(program, (1, 1))
        request = {"program": program, "chip": chip, "op": op}
        request["args"] = {"shape": program, "min_bytes": min_bytes, "flops": flops, **args}
        assert self.process.stdin and self.process.stdout
        print(json.dumps(request), file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                answer.pop("wall_s")
                return answer
        raise AssertionError(f"the worker died with {self.process.wait()}")

    def profile(self, program: str, chip: str, op: str = "profile", **args: Any) -> Profile:
        return decode(Profile, self.ask(program, chip, op, **args))

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=20)


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Any:
    child = Child(aot.environment(str(tmp_path_factory.mktemp("cycles")), bundles=True))
    yield child
    child.close()


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Any:
    child = Child(aot.environment(str(tmp_path_factory.mktemp("bundles")), bundles=True, cycles=False))
    yield child
    child.close()


@pytest.fixture(scope="module")
def compiler() -> Any:
    child = Child(aot.environment(None, bundles=False))
    yield child
    child.close()


def test_a_good_matmul_comes_out_as_the_full_simulation_has_it(simulator: Child) -> None:
    made = simulator.profile("matmul", "v5e")
    assert made.estimated_us == pytest.approx(747, rel=0.02)  # 1 120 240 cycles simulated whole, libtpu 0.0.52
    assert made.hbm_bytes == 436_207_616  # by hand: a 4 times, b 8 times, out once
    assert made.confidence == "extrapolated"
    assert made.bound == "mxu"
    assert 0.9 < made.roofline_fraction < 1.0
    assert made.spills is not None and made.spills > 0


def test_a_streaming_kernel_stays_below_the_hbm_peak_on_two_chips_in_one_process(simulator: Child) -> None:
    for chip in ("v5e", "v6e"):
        made = simulator.profile("double", chip)
        assert made.hbm_bytes == ROWS_BYTES
        assert made.roofline_fraction <= 1.0
        assert made.bound == "hbm"
        assert made.cycles is not None


def test_a_kernel_whose_loop_reads_its_length_says_so(simulator: Child) -> None:
    assert simulator.profile("dynamic", "v5e").confidence == "data-dependent control flow"


def test_the_baseline_is_at_least_its_floor(simulator: Child, compiler: Child) -> None:
    simulated = simulator.profile("softmax_xla_small", "v5e", "baseline")
    floor = compiler.profile("softmax_xla_small", "v5e", "floor")
    assert simulated.estimated_us > floor.estimated_us
    assert (simulated.confidence, floor.confidence) == ("exact loop", "floor")
    assert floor.cycles is None


def test_the_fraction_of_a_reduced_baseline_is_carried_over(compiler: Child) -> None:
    small = compiler.profile("softmax_xla_small", "v5e", "floor")
    whole_bytes = 64 * NEEDS["softmax_xla_small"][0]
    whole = compiler.profile("softmax_xla_small", "v5e", "floor", scale_bytes=whole_bytes, scale_flops=0)
    floor_us = whole_bytes / V5E.hbm_bytes_per_s * 1e6
    assert whole.estimated_us == pytest.approx(floor_us / min(1.0, small.roofline_fraction))


def test_hbm_bytes_of_a_norm_count_its_weights_once(compiler: Child) -> None:
    made = compiler.profile("rmsnorm", "v5e")
    assert made.hbm_bytes == 2 * 32768 * 8192 * 2 + 8192 * 2
    assert made.confidence == "floor"


def test_too_much_vmem_fails_as_a_value(compiler: Child) -> None:
    failure = compiler.ask("hoarding", "v5e", "profile")["failure"]
    assert failure["code"] == "compile_error"
    assert "CompileTimeScopedVmemOom" in failure["evidence"]
    assert "exceeded scoped vmem limit" in failure["message"]
    assert "metadata" not in failure["evidence"]


def test_a_vmem_limit_above_the_chip_is_refused(compiler: Child) -> None:
    failure = compiler.ask("greedy", "v5e", "compile")
    assert failure["code"] == "vmem_limit"
    assert str(200 * 2**20) in failure["message"]
    assert compiler.ask("double", "v5e", "compile")["vmem_bytes"] < V5E.vmem_bytes


def test_without_a_cycle_profile_bundles_are_counted(counter: Child) -> None:
    made = counter.profile("matmul", "tpu7x")
    assert made.confidence == "bundle count"
    assert made.estimated_us >= MATMUL_FLOPS / TPU7X.peak_flops_per_s["bfloat16"] * 1e6
    assert made.slots["mxu"] > made.slots["valu"]


def test_xla_ops_around_a_kernel_are_added(counter: Child) -> None:
    made = counter.profile("wrapped", "v4")
    kernel, around = made.ops[0], made.ops[1]
    assert (kernel["steps"], around["steps"]) == (64, 0)
    assert made.hbm_bytes == kernel["hbm_bytes"] + around["hbm_bytes"]
    assert made.estimated_us == pytest.approx(sum(op["us"] for op in made.ops))

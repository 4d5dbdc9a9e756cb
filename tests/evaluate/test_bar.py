"""A candidate and the best time so far: what is not faster is rejected for its time, and never for anything later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aka.cli import compose
from aka.evaluate.judge import OfflineJudge
from aka.types import Candidate, Evaluation, Workload
from aka.workload.read import read_workload

HOSTILE = Path(__file__).parents[1] / "hostile"
BEATEN, MISSED = 1e9, 1e-3
"""Bars in microseconds: one that every kernel beats, and one that none does."""


@pytest.fixture(scope="module")
def bench() -> Iterator[compose.Bench]:
    with compose.bench("v5e") as made:
        yield made


@pytest.fixture(scope="module")
def softmax(bench: compose.Bench) -> Workload:
    return bench.client.describe(read_workload(HOSTILE / "op_softmax.py"))


def candidate(name: str) -> Candidate:
    return Candidate((HOSTILE / f"{name}.py").read_text(), "as written", "test")


def gates(evaluation: Evaluation) -> list[str]:
    return [gate.gate for gate in evaluation.gates]


WHOLE = ["static", "export", "structure", "vmem", "compile", "correctness", "performance"]


def test_a_good_candidate_that_is_slower_keeps_its_time_and_is_no_success(
    bench: compose.Bench, softmax: Workload
) -> None:
    good = candidate("h00_control_good")
    alone = bench.judge.evaluate(softmax, good)
    slower = bench.judge.evaluate(softmax, good, bar_us=alone.us)
    assert (slower.verdict, slower.accepted, slower.slower) == ("slower", False, True)
    assert gates(slower) == [*WHOLE[:5], "performance"]
    assert slower.timings == alone.timings and slower.profiles == alone.profiles and slower.us
    assert f"is no less than {alone.us:.1f}, so its values were not compared" in slower.gates[-1].message


def test_what_its_bytes_alone_keep_behind_is_not_simulated(bench: compose.Bench, softmax: Workload) -> None:
    good = candidate("h00_control_good")
    alone = bench.judge.evaluate(softmax, good)
    hopeless = bench.judge.evaluate(softmax, good, bar_us=MISSED)
    assert hopeless.slower and gates(hopeless) == [*WHOLE[:5], "performance"]
    assert "its bytes and FLOP alone take" in hopeless.gates[-1].message
    assert not hopeless.profiles and {t.confidence for t in hopeless.timings} == {"floor"}
    assert alone.us and hopeless.us and 1e6 * softmax.primary.min_bytes / bench.chip.hbm_bytes_per_s <= hopeless.us
    assert hopeless.us <= alone.us


def test_its_own_time_is_not_faster(bench: compose.Bench, softmax: Workload) -> None:
    good = candidate("h00_control_good")
    once = bench.judge.evaluate(softmax, good)
    assert bench.judge.evaluate(softmax, good, bar_us=once.us).slower
    assert once.us and bench.judge.evaluate(softmax, good, bar_us=1.001 * once.us).accepted


@pytest.mark.parametrize(
    ("name", "bar_us", "verdict", "last"),
    [
        ("h00_control_good", BEATEN, "ACCEPT", "performance"),
        ("h05_zeros", BEATEN, "incorrect", "correctness"),
        ("h05_zeros", MISSED, "slower", "performance"),
        ("h29_all_nan", MISSED, "slower", "performance"),
        ("h01_jnp_fallback", MISSED, "not_a_kernel", "structure"),
    ],
)
def test_the_bar_stands_before_the_values_and_after_the_rules(
    bench: compose.Bench, softmax: Workload, name: str, bar_us: float, verdict: str, last: str
) -> None:
    evaluation = bench.judge.evaluate(softmax, candidate(name), bar_us=bar_us)
    assert (evaluation.verdict, evaluation.gates[-1].gate) == (verdict, last)
    assert bool(evaluation.timings) == (verdict in ("ACCEPT", "slower"))
    if verdict != "slower":
        assert gates(evaluation) == WHOLE[: WHOLE.index(last) + 1]


def test_what_the_compiler_refuses_is_not_called_slower(bench: compose.Bench, softmax: Workload) -> None:
    """Blocks that fill their VMEM limit leave nothing for the kernel's own values: only the compiler can tell."""
    text = (HOSTILE / "h00_control_good.py").read_text()
    text = text.replace("b = 8", "b = 64").replace("**kw,", "compiler_params=pltpu.CompilerParams(**LIMIT), **kw,", 1)
    head = "from jax.experimental.pallas import tpu as pltpu\n\nLIMIT = {'vmem_limit_bytes': 1 << 20}\n\n\ndef _body"
    refused = Candidate(text.replace("def _body", head, 1), "a tight limit", "test")
    plain, barred = (bench.judge.evaluate(softmax, refused, bar_us=bar) for bar in (None, MISSED))
    assert plain.verdict == barred.verdict == "compile_error"
    assert gates(plain) == gates(barred) == WHOLE[:5]


def test_a_judgement_whose_time_is_over_ends_with_a_timeout(bench: compose.Bench, softmax: Workload) -> None:
    hurried = OfflineJudge(bench.pool, bench.client, bench.chip, trial_s=0.05)
    evaluation = hurried.evaluate(softmax, candidate("h00_control_good"))
    assert evaluation.verdict == "timeout" and not evaluation.timings
    assert bench.judge.evaluate(softmax, candidate("h00_control_good")).accepted

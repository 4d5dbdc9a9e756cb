"""Every hostile file and every cheat ends with the verdict that it must get; what is honest is accepted.

The files are cheats against softmax, judged with the static gate and, to see that the other walls hold, without it.
`cheats.py` holds the ones against other ops.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cheats import CHEATS, HONEST, OPS, Cheat

from aka.cli import compose
from aka.evaluate import proctree
from aka.evaluate.judge import OfflineJudge
from aka.types import Candidate, Evaluation, Workload
from aka.workload.read import read_workload

HERE = Path(__file__).parent
STATIC = "static_reject"
FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    # name: (with the static gate, without it)
    "h00_control_good": ("ACCEPT", ("ACCEPT",)),
    "h01_jnp_fallback": ("not_a_kernel", ("not_a_kernel",)),
    "h02_decorative_pallas": ("work_outside_kernel", ("work_outside_kernel",)),
    "h03_try_except_fallback": ("not_a_kernel", ("not_a_kernel",)),
    "h05_zeros": ("incorrect", ("incorrect",)),
    "h06_noop_uninitialised": ("incorrect", ("incorrect",)),
    "h07_no_max_subtraction": ("incorrect", ("incorrect",)),
    "h08_bf16_downgrade": ("incorrect", ("incorrect",)),
    "h09_hardcoded_shape": ("incorrect", ("incorrect",)),
    "h14_host_callback": (STATIC, ("forbidden_primitive",)),
    "h15_monkeypatch_timer": (STATIC, ("incorrect",)),
    "h18_env_and_network": (STATIC, ("ACCEPT",)),
    "h20_fork_swarm": (STATIC, ("timeout", "resource_limit")),
    "h21_memory_hog": ("resource_limit", ("resource_limit",)),
    "h22_infinite_trace": ("timeout", ("timeout",)),
    "h24_log_flood": (STATIC, ("log_limit",)),
    "h25_disk_fill": (STATIC, ("resource_limit",)),
    "h26_evaluator_overwrite": (STATIC, ("ACCEPT",)),
    "h28_interpret_flag": ("not_a_kernel", ("not_a_kernel",)),
    "h29_all_nan": ("incorrect", ("incorrect",)),
    "h31_exit_zero": (STATIC, ("protocol_error",)),
    "h32_seed_guess": ("work_outside_kernel", ("work_outside_kernel",)),
    "h34_lying_cost": ("ACCEPT", ("ACCEPT",)),
    "h36_symlink_artifact": (STATIC, ("candidate_error",)),
    "h37_busy_threads": (STATIC, ("ACCEPT",)),
    "h40_raises_at_import": ("candidate_error", ("candidate_error",)),
}
LATER = {"h03_try_except_fallback", "h07_no_max_subtraction", "h22_infinite_trace", "h32_seed_guess", "h34_lying_cost"}
"""Files that only the slow run judges with the static gate."""
QUICK = {"never_accumulates", "no_maximum", "last_block_skipped", "second_output_never_written", "no_bounds_checks"}
"""Cheats of the quick run, one for each of some ops; all in the slow one."""


@pytest.fixture(scope="module")
def bench() -> Iterator[compose.Bench]:
    with compose.bench("v5e") as made:
        yield made


@pytest.fixture(scope="module")
def known() -> dict[str, Workload]:
    return {}


@pytest.fixture
def softmax(bench: compose.Bench, known: dict[str, Workload]) -> Workload:
    if "softmax" not in known:
        known["softmax"] = bench.client.describe(read_workload(HERE / "op_softmax.py"))
    return known["softmax"]


def workload(bench: compose.Bench, known: dict[str, Workload], folder: Path, op: str) -> Workload:
    if op not in known:
        path = folder / f"{op}.py"
        path.write_text(OPS[op].workload)
        known[op] = bench.client.describe(read_workload(path))
    return known[op]


def judged(judge: OfflineJudge, workload: Workload, code: str) -> Evaluation:
    return judge.evaluate(workload, Candidate(code, "as written", "test"))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in LATER else [], id=n) for n in FILES])
def test_with_the_static_gate(bench: compose.Bench, softmax: Workload, name: str) -> None:
    evaluation = judged(bench.judge, softmax, (HERE / f"{name}.py").read_text())
    assert evaluation.verdict == FILES[name][0], evaluation.gates[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_the_other_walls_hold_without_it(bench: compose.Bench, softmax: Workload, name: str) -> None:
    judge = OfflineJudge(bench.pool, bench.client, bench.chip, static_gate=False)
    before = set(proctree.descendants(1)) if name == "h20_fork_swarm" else set()
    evaluation = judged(judge, softmax, (HERE / f"{name}.py").read_text())
    assert evaluation.verdict in FILES[name][1], evaluation.gates[-1]
    if name == "h20_fork_swarm":
        assert len(set(proctree.descendants(1)) - before) < 10, "its sleepers live on"


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_the_honest_kernel_is_accepted(
    bench: compose.Bench, known: dict[str, Workload], tmp_path: Path, op: str
) -> None:
    evaluation = judged(bench.judge, workload(bench, known, tmp_path, op), OPS[op].honest)
    assert evaluation.accepted, evaluation.gates[-1]


@pytest.mark.slow
@pytest.mark.parametrize("twin", [pytest.param(t, id=f"{t.op}-{t.name}") for t in HONEST])
def test_what_only_looks_like_a_cheat_is_accepted(
    bench: compose.Bench, known: dict[str, Workload], tmp_path: Path, twin: Cheat
) -> None:
    evaluation = judged(bench.judge, workload(bench, known, tmp_path, twin.op), twin.source)
    assert evaluation.verdict in twin.verdicts, evaluation.gates[-1]


def chosen() -> list[object]:
    return [pytest.param(c, marks=[] if c.name in QUICK else [pytest.mark.slow], id=f"{c.op}-{c.name}") for c in CHEATS]


@pytest.mark.parametrize("cheat", chosen())
def test_a_cheat_is_rejected(bench: compose.Bench, known: dict[str, Workload], tmp_path: Path, cheat: Cheat) -> None:
    evaluation = judged(bench.judge, workload(bench, known, tmp_path, cheat.op), cheat.source)
    assert evaluation.verdict in cheat.verdicts, evaluation.gates[-1]


def test_there_are_enough_of_them() -> None:
    assert len(CHEATS) >= 25 and len({(c.op, c.name) for c in CHEATS}) == len(CHEATS)
    assert {c.op for c in CHEATS} == set(OPS)
    assert {path.stem for path in HERE.glob("h[0-9]*.py")} == set(FILES)
